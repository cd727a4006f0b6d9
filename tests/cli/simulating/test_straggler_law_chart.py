"""The chart of the straggler law is a valid figure in both themes."""

import json
import math

import plotly.graph_objects as go
import pytest

from app.charts.base.theme import DARK, LIGHT
from app.cli.simulating.straggler_law_chart import straggler_law
from app.synth.straggler_law import TAILS, WORKERS
from tests.charts.results import numbers_in


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda theme: theme.name)
def test_figure_is_valid_and_its_table_has_a_row_for_each_number_of_workers(theme):
    figure = straggler_law(TAILS, WORKERS, theme=theme)
    go.Figure(data=figure["data"], layout=figure["layout"])
    assert all(math.isfinite(number) for number in numbers_in(figure))
    json.dumps(figure, allow_nan=False)
    table = figure["meta"]["table"]
    assert table["columns"] == ["workers", *(tail.label for tail in TAILS)]
    assert [len(row) for row in table["rows"]] == [1 + len(TAILS)] * len(WORKERS)
    assert figure["meta"]["text"].endswith(".")
    assert "title" not in figure["layout"]
    assert figure["layout"]["paper_bgcolor"] == "rgba(0,0,0,0)"
