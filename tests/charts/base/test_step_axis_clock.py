"""The clock beside the steps of an axis."""

from app.charts.base.figure import meta
from app.charts.base.step_axis import StepAxis
from app.charts.base.theme import LIGHT

# 2026-11-24 02:41:07 UTC
START_S = 1_795_488_067.0


def axis(num_steps: int, step_s: float) -> StepAxis:
    steps = list(range(num_steps))
    return StepAxis.over(steps).with_clock({step: START_S + step * step_s for step in steps})


def labels(at: StepAxis) -> list[str]:
    return at.x_axis(LIGHT)["ticktext"]


def test_some_ticks_have_the_time_of_day_as_a_second_line():
    found = labels(axis(32, 20.0))
    assert found[0] == "0<br>02:41:07"
    assert 2 <= sum("<br>" in each for each in found) <= 4 < len(found)


def test_long_runs_have_minutes_and_longer_ones_days():
    assert labels(axis(32, 100.0))[0] == "0<br>02:41"
    assert labels(axis(32, 10_000.0))[0] == "0<br>24 Nov 02:41"


def test_a_step_of_unknown_time_has_no_label_and_no_place_in_the_clock():
    at = StepAxis.over([0, 5, 10]).with_clock({5: START_S, 10: START_S + 50})
    assert at.clock is not None
    assert at.clock["started_s"] == [None, START_S, START_S + 50]
    assert "<br>" not in labels(at)[0]


def test_the_figure_has_the_times_for_readers_in_other_zones():
    at = axis(4, 60.0)
    clock = meta("A sentence.", ["step"], [], clock=at.clock)["clock"]
    assert clock["steps"] == [0, 1, 2, 3]
    assert clock["started_s"][1] == START_S + 60
    assert clock["ticks"][0] == START_S
    assert at.title == "step · time, UTC"
