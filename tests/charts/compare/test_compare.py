"""What changed between two windows: the sentence, the causes and the pictures."""

import json
import math

import plotly.graph_objects as go
import pytest

from app.charts.base.theme import LIGHT, THEMES
from app.charts.compare.bars import compare_optypes, compare_stages
from app.charts.compare.steps import MAX_POINTS, compare_steps
from app.charts.compare.summary import Side, compare_headline, compared_causes, step_time_change
from tests import results
from tests.charts.results import numbers_in, unpacked


def finding(cause="slow-worker", *culprits, cost=0.29):
    return results.finding(cause, culprits=culprits, cost=cost)


def side(window="1-0", *findings, recorded_s=20.0, ideal_s=19.0, slowdown=1.02, dp_size=4, **parts):
    """Four steps on dp_size x 2 workers."""
    known = {
        "window": {"id": window},
        "job": {"dp_size": dp_size, "pp_size": 2, "tp_size": 8},
        "steps": [10, 11, 12, 13],
        "step_time_s": {"recorded": [recorded_s] * 4, "ideal": [ideal_s] * 4},
        "fidelity": {"discrepancy": 0.001, "verdict": "ok"},
        "slowdown": slowdown,
        "optype_slowdown": {"forward-compute": slowdown or 1.0, "optimizer": 1.0},
        "stage_slowdown": [1.0, slowdown],
        "skipped_steps": [],
        "findings": list(findings),
    }
    return Side("llm-70b", "llm-70b", 64, results.window_result(**known | parts))


def told(a, b):
    return compare_headline(a, b, compared_causes(a, b))


SLOW = finding("slow-worker", {"dp_rank": 3, "stage": 1, "host": "host-017"})


def test_the_sentence_says_how_much_slower_and_which_cause_is_new():
    # 27.4 s against 19.9 s is 37.7 % more.
    before, now = side(recorded_s=19.9), side("1-8", SLOW, recorded_s=27.4, slowdown=1.42)
    sentence, sub = told(before, now)
    assert (
        sentence == "1.42\u00d7 against 1.02\u00d7: a step takes 38 % longer; a slow worker is new."
    )
    assert sub == "A step takes 27.4 s against 19.9 s; without stragglers 19 s against 19 s."


def test_step_times_of_different_shapes_are_not_compared():
    before, now = side(dp_size=8), side("1-8", slowdown=1.25)
    sentence, sub = told(before, now)
    assert sentence == "1.25\u00d7 against 1.02\u00d7: it loses 20 % of its GPU time against 2 %."
    assert step_time_change(before, now) is None
    assert "shapes differ" in sub


def test_low_fidelity_compares_recorded_times_only():
    low = side("1-8", recorded_s=22.0, fidelity={"discrepancy": 0.1, "verdict": "low"})
    assert told(side(), low)[0] == "A step takes 10 % longer: B has low fidelity."


def test_a_side_without_figures_is_named_with_the_reason():
    skipped = [{"step": 10, "reason": "rank 3 did not report"}]
    nothing = side("1-8", slowdown=None, skipped_steps=skipped, findings=None)
    assert told(nothing, side()) == (
        "A has no figures to compare.",
        "A: step 10 was left out: rank 3 did not report.",
    )


CULPRITS = [
    ({"dp_rank": 3, "stage": 1, "host": "a"}, {"dp_rank": 3, "stage": 1, "host": "b"}, "same"),
    ({"dp_rank": 3, "stage": 1, "host": "a"}, {"dp_rank": 5, "stage": 0, "host": "a"}, "same"),
    ({"dp_rank": 3, "stage": 1, "host": "a"}, {"dp_rank": 5, "stage": 0, "host": "b"}, "new"),
    ({"dp_rank": 3, "stage": 1}, {"dp_rank": 3, "stage": 2}, "new"),
]


@pytest.mark.parametrize(("was", "now", "change"), CULPRITS)
def test_a_cause_is_the_same_on_the_same_worker_or_host(was, now, change):
    found = compared_causes(
        side("1-0", finding("slow-worker", was)), side("1-8", finding("slow-worker", now))
    )
    assert found[0].change == change
    assert len(found) == (1 if change == "same" else 2)


def test_causes_come_new_ones_first_and_the_costly_before_the_cheap():
    cheap, dear = finding("gc-pause", cost=0.01), finding("slow-link", {"stage": 1}, cost=0.2)
    gone, both = finding("data-loading", cost=0.5), finding("sequence-imbalance", cost=None)
    found = compared_causes(side("1-0", gone, both), side("1-8", cheap, both, dear))
    assert [(each.change, each.finding.cause) for each in found] == [
        ("new", "slow-link"),
        ("new", "gc-pause"),
        ("same", "sequence-imbalance"),
        ("gone", "data-loading"),
    ]


def test_bars_show_the_excess_of_each_type_and_stage():
    before, now = side(slowdown=1.02), side("1-8", slowdown=1.42)
    for draw, labels in (
        (compare_optypes, ["Forward compute  ", "Optimizer  "]),
        (compare_stages, ["stage 0  ", "stage 1  "]),
    ):
        figure = draw(before, now, theme=LIGHT)
        assert figure["layout"]["yaxis"]["ticktext"] == labels
        of_a, of_b = (sorted(unpacked(trace["x"])) for trace in figure["data"])
        assert of_a == pytest.approx([0, 0.02])
        assert of_b == pytest.approx([0, 0.42])


def test_long_windows_are_thinned_to_their_means():
    steps = list(range(2 * MAX_POINTS))
    times = {"recorded": [1.0, 3.0] * MAX_POINTS, "ideal": [1.0] * 2 * MAX_POINTS}
    figure = compare_steps(side(), side("1-8", steps=steps, step_time_s=times), theme=LIGHT)
    line = figure["data"][-1]
    assert unpacked(line["y"]) == [2.0] * MAX_POINTS
    assert unpacked(line["customdata"])[0] == "steps 0 to 1, their mean"


MANY_STAGES = {"stage_slowdown": [1.0 + stage / 100 for stage in range(64)]}


@pytest.mark.parametrize("theme", THEMES.values(), ids=THEMES)
@pytest.mark.parametrize("draw", [compare_steps, compare_optypes, compare_stages])
@pytest.mark.parametrize(
    "parts", [{}, MANY_STAGES, {"stage_slowdown": None, "optype_slowdown": {}}], ids=str
)
def test_every_figure_is_one_for_plotly(draw, theme, parts):
    figure = draw(side(), side("1-8", slowdown=1.4, **parts), theme=theme)
    go.Figure(data=figure["data"], layout=figure["layout"])
    assert all(math.isfinite(number) for number in numbers_in(figure))
    json.dumps(figure, allow_nan=False)
    table = figure["meta"]["table"]
    assert all(len(row) == len(table["columns"]) for row in table["rows"])
    assert figure["meta"]["text"].endswith(".")
