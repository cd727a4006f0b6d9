"""What holds for every chart, in both themes, on ordinary and on odd results."""

import json
import math

import numpy as np
import plotly.graph_objects as go
import pytest

from app.charts.base.theme import THEMES
from app.charts.job.sequence_lengths import MicroBatchPairs, lengths
from app.charts.job.step_times import StepPoint, step_times
from app.charts.job.window_charts import WINDOW_CHARTS, ChartOptions
from tests.charts.results import numbers_in, result
from tests.results import unexplained, window_result

NAN = math.nan

WINDOWS = {
    "ordinary": result(),
    "one worker": result([[1.0]], stage_share=[None], m_w=None),
    "a worker not measured": result([[1.2, NAN], [1.0, 1.0]]),
    "nothing measured": result([[NAN, NAN]], optype_slowdown={}, stage_share=[None]),
    "wide": result(np.ones((1024, 2)), stage_share=[-0.1, 1.2]),
    "without times": result(stage_compute_s=None, optype_time_s={}),
    "with losses": result(unexplained=unexplained(0.06, ideal_share=0.65)),
}

POINTS = [
    StepPoint(4, 1.2, 1.1, 1.0),
    StepPoint(5, None, None, None, "rank 3 did not report"),
    StepPoint(6, 1.4, 1.3, 1.0),
]

PAIRS = {
    "as sent": MicroBatchPairs(np.array([1e8, 2e8, 4e8]), np.array([0.1, 0.15, 0.27]), True, 0),
    "not sent": MicroBatchPairs(np.array([0.1, 0.2, 0.3]), np.array([0.2, 0.4, 0.6]), False, 0),
    "all alike": MicroBatchPairs(np.ones(3), np.ones(3), False, 0),
}


def figures():
    for theme in THEMES.values():
        for window, seen in WINDOWS.items():
            for name, chart in WINDOW_CHARTS.items():
                yield f"{name}, {window}, {theme.name}", chart.draw(seen, ChartOptions(theme))
        for count in range(4):
            yield f"{count} steps, {theme.name}", step_times(POINTS[:count], theme=theme)
        for name, pairs in PAIRS.items():
            yield f"lengths, {name}, {theme.name}", lengths(pairs, theme=theme)
        yield (
            f"silent, {theme.name}",
            step_times(POINTS, theme=theme, silent_since="no data for 1 hour"),
        )


FIGURES = dict(figures())


@pytest.mark.parametrize("figure", FIGURES.values(), ids=FIGURES)
def test_plotly_takes_every_figure_with_a_sentence_and_a_whole_table(figure):
    # Plotly refuses unknown properties and values by raising.
    go.Figure(data=figure["data"], layout=figure["layout"])
    assert all(math.isfinite(number) for number in numbers_in(figure))
    json.dumps(figure, allow_nan=False)
    assert figure["meta"]["text"].endswith(".")
    table = figure["meta"]["table"]
    assert all(len(row) == len(table["columns"]) for row in table["rows"])


@pytest.mark.parametrize("name", WINDOW_CHARTS)
def test_a_chart_says_when_a_result_has_nothing_to_draw(name):
    chart = WINDOW_CHARTS[name]
    assert chart.can_draw(WINDOWS["with losses"])
    assert not chart.can_draw(window_result(steps=[]))
