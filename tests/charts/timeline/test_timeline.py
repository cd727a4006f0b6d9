"""The timeline and what stands beneath it, of the job of tests/engine/questions/jobs.py."""

import math
from functools import cache

import plotly.graph_objects as go
import pytest

from app.charts.base.theme import LIGHT, THEMES
from app.charts.timeline.bars import LaneLayout, time_axis, waiting_by_stage
from app.charts.timeline.critical_path import parts_of, path_boxes, path_parts
from app.charts.timeline.timeline import MAX_BARS, step_headline, timeline
from app.engine.replays import prepare
from app.engine.timeline.step_run import waiting_share
from app.engine.timeline.step_view import step_view
from app.synth.job import SimulatedJob
from app.trace.job import Job, Parallelism
from app.trace.window import Window
from tests.charts.results import numbers_in, unpacked
from tests.engine.questions.jobs import two_stages
from tests.window_factory import window


def two_stage_view(dp_size=1):
    return step_view(prepare(window(two_stages(dp_size), dp_size=dp_size, pp_size=2)), 0)


def slow_view():
    """Two steps; in the first one the forward of stage 1 takes 4 s instead of 2 s."""
    first = [
        row.on(duration_s=4.0) if (row.optype, row.stage) == ("forward-compute", 1)
        else row.on(start_s=row.start_s + 2) if row.start_s >= 3.5 else row
        for row in two_stages()
    ]  # fmt: skip
    rows = [row.on(duration_s=3.0) if row.optype == "backward-recv" else row for row in first]
    return step_view(prepare(window([*rows, *two_stages(step=1)], pp_size=2)), 0)


@cache
def long_view():
    sizes = Parallelism(1, 8)
    made = SimulatedJob(sizes, 32).make((3,))
    return step_view(prepare(Window(Job.of("made", sizes), 1, 3, (3,), made, state="complete")), 3)


def bars(figure, name):
    [trace] = [trace for trace in figure["data"] if trace["name"] == name]
    return list(zip(unpacked(trace["base"]), unpacked(trace["x"]), strict=True))


def test_bars_are_where_the_operations_were():
    figure = timeline(two_stage_view(), theme=LIGHT)
    assert bars(figure, "recorded forward") == [(0.0, 1.0), (1.5, 2.0)]
    assert bars(figure, "recorded backward") == [(6.0, 1.0), (3.5, 2.0)]
    # Forwards take 1.5 s on the mean, and so do backwards.
    assert bars(figure, "ideal forward") == [(0.0, 1.5), (2.0, 1.5)]


@pytest.mark.parametrize(("run", "took"), [("recorded", "1 s"), ("ideal", "1.5 s")])
def test_a_bar_says_which_operation_of_which_run_it_is(run, took):
    figure = timeline(two_stage_view(), theme=LIGHT)
    [trace] = [trace for trace in figure["data"] if trace["name"] == f"{run} forward"]
    told, *place = unpacked(trace["customdata"])[0]
    assert told == f"forward, stage 0<br><b>{took}</b> from 0 ms"
    assert place == [run, 0, "forward-compute", 0]


def test_the_loss_is_the_area_between_both_ends():
    view = slow_view()
    figure = timeline(view, theme=LIGHT)
    lost, recorded, ideal = figure["layout"]["shapes"]
    assert (lost["x0"], lost["x1"]) == (ideal["x0"], recorded["x0"])
    assert (recorded["x0"], ideal["x0"]) == (view.recorded_s, view.ideal_s)


def test_number_of_bars_is_bounded():
    view = long_view()
    for width_px in (400, 8000):
        figure = timeline(view, theme=LIGHT, width_px=width_px)
        drawn = sum(len(unpacked(trace["y"])) for trace in figure["data"][:-1])
        assert 0 < drawn <= MAX_BARS


@pytest.mark.parametrize(("low", "high"), [(5.0, 4.0), (900.0, 901.0), (3.0, 3.0)])
def test_range_outside_the_step_shows_the_whole_step(low, high):
    figure = timeline(two_stage_view(), theme=LIGHT, from_s=low, to_s=high)
    assert figure["layout"]["xaxis"]["range"] == [0.0, pytest.approx(7.65)]


def test_the_path_is_outlined_bar_by_bar_and_joined():
    view, places = two_stage_view(), LaneLayout.of(2)
    found = path_boxes(view.path.links, 0, view.recorded.template.op_types, places, 0.001)
    assert [(box.start_s, box.end_s) for box in found] == [
        (0.0, 1.0), (1.0, 1.5), (1.5, 3.5), (3.5, 5.5), (5.5, 6.0), (6.0, 7.0), (7.0, 7.5),
    ]  # fmt: skip
    computing = [box.y for box in found if box.half_px > 10]
    assert set(computing) == {places.bar_y(0, 0), places.bar_y(0, 1)}


def test_parts_of_the_path_sum_to_its_length():
    view = two_stage_view()
    parts = parts_of(view.path, view.recorded.template.op_types)
    for each in (view, slow_view(), long_view()):
        found = parts_of(each.path, each.recorded.template.op_types)
        assert sum(found.values()) == pytest.approx(each.path.length_s)
    assert parts == pytest.approx(
        {
            "Stage 1 compute": 4.0,
            "Stage 0 compute": 2.0,
            "Transfers between stages": 1.0,
            "Optimizer": 0.5,
        }
    )


def test_a_step_faster_than_its_ideal_has_lost_nothing():
    fast = [row.on(duration_s=row.duration_s / 2, start_s=row.start_s / 2) for row in two_stages()]
    view = step_view(prepare(window([*fast, *two_stages(step=1)], pp_size=2)), 0)
    assert view.lost_s < 0
    assert "less than its ideal" in step_headline(view)[0]
    figure = timeline(view, theme=LIGHT)
    assert len(figure["layout"]["shapes"]) == 2
    assert "lost" not in str(figure["layout"]["annotations"])


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (0.0, 2.3, ["0.0 s", "0.2 s", "0.4 s"]),
        (0.0, 0.04, ["0 ms", "5 ms", "10 ms"]),
        (0.46, 0.86, ["500 ms", "550 ms", "600 ms"]),
        (0.0, 46.0, ["0 s", "5 s", "10 s"]),
        (1.0001, 1.0002, ["1.00010 s", "1.00011 s", "1.00012 s"]),
    ],
)
def test_times_are_labelled_at_round_moments(low, high, labels):
    assert time_axis(low, high, LIGHT)["ticktext"][:3] == labels


def drawn():
    """Every figure of the timeline's page and the worker's, in both themes."""
    for theme in THEMES.values():
        for name, view in {"two stages": two_stage_view(2), "long": long_view()}.items():
            op_types = view.recorded.template.op_types
            share = waiting_share(view.recorded, view.dp_rank)
            told = f"{name}, {theme.name}"
            yield f"timeline, {told}", timeline(view, theme=theme)
            yield f"parts, {told}", path_parts(view.path, op_types, theme=theme)
            yield f"waiting, {told}", waiting_by_stage(share, view.recorded_s, 0, theme=theme)


@pytest.mark.parametrize("figure", [each for _, each in drawn()], ids=[name for name, _ in drawn()])
def test_plotly_takes_every_figure_and_no_number_in_it_is_unknown(figure):
    go.Figure(data=figure["data"], layout=figure["layout"])
    assert all(math.isfinite(number) for number in numbers_in(figure))
    assert figure["meta"]["text"].endswith(".")
    table = figure["meta"]["table"]
    assert all(len(row) == len(table["columns"]) for row in table["rows"])
