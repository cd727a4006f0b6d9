"""The chart of a question's answer."""

import json

import plotly.graph_objects as go
import pytest

from app.charts.base.theme import LIGHT, THEMES
from app.charts.job.what_if import what_if
from tests.charts.results import unpacked

TIMES = {
    "recorded": [2.5, 2.5],
    "simulated": [2.0, 2.0],
    "what_if": [1.5, 2.5],
    "ideal": [1.0, 1.0],
}


def trace(figure, name):
    [found] = [each for each in figure["data"] if each["name"] == name]
    return found


def test_what_if_areas_are_time_won_back_and_time_still_lost():
    figure = what_if([8, 9], TIMES, theme=LIGHT)
    # From the simulated time down to the asked one; in step 9, which gets longer, nothing is won.
    # Both are scaled to the record, which is 1.25 times the simulation.
    assert trace(figure, "won back")["y"] == [2.5, 3.125, 3.125, 1.875]
    assert trace(figure, "still lost")["y"] == [1.875, 3.125, 1.25, 1.25]
    assert unpacked(trace(figure, "what if")["y"]) == [1.875, 3.125]
    assert unpacked(trace(figure, "recorded")["y"]) == [2.5, 2.5]


@pytest.mark.parametrize("theme", THEMES.values(), ids=THEMES)
@pytest.mark.parametrize("what_if_s", [0.0, 1.5])
def test_every_figure_is_one_for_plotly(theme, what_if_s):
    figure = what_if([8, 9], TIMES | {"what_if": [what_if_s] * 2}, theme=theme)
    go.Figure(data=figure["data"], layout=figure["layout"])
    json.dumps(figure, allow_nan=False)
