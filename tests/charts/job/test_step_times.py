from app.charts.base.step_axis import StepAxis
from app.charts.base.theme import LIGHT
from app.charts.job.step_heatmaps import worker_steps
from app.charts.job.step_times import StepPoint, step_times


def points(*recorded):
    return [StepPoint(step, time_s, time_s, 1.0) for step, time_s in recorded]


def trace(figure, name):
    return next(trace for trace in figure["data"] if trace["name"] == name)


def test_gap_is_one_step_wide_whatever_its_length():
    axis = StepAxis.over([7, 8, 100, 101])
    assert axis.position == (0.0, 1.0, 3.0, 4.0)
    assert [(gap.x0, gap.x1, gap.num_steps) for gap in axis.gaps] == [(1.5, 2.5, 91)]
    assert axis.runs == [range(0, 2), range(2, 4)]


def test_sparsely_recorded_steps_show_only_large_gaps():
    recorded = [23, 24, 26, 30, 36, *range(259, 289, 3), *range(514, 541, 3)]
    axis = StepAxis.over(recorded)
    assert [gap.num_steps for gap in axis.gaps] == [222, 227]
    assert axis.runs == [range(0, 5), range(5, 15), range(15, 24)]
    assert axis.position[4:6] == (4.0, 6.0)
    assert axis.title == "step, recorded ones only"
    assert StepAxis.over(range(3, 300, 10)).gaps == ()


def test_lone_step_among_many_has_a_dot():
    figure = step_times(points(*((step, 1.5) for step in (*range(80), 200))), theme=LIGHT)
    sizes = trace(figure, "recorded")["marker"]["size"]
    assert (len(sizes), sizes[-1], set(sizes[:-1])) == (82, 4, {0})


def test_low_fidelity_draws_recorded_times_only():
    far_off = [StepPoint(1, 2.0, 1.7, 1.0), StepPoint(2, 2.0, 1.9, 1.0)]
    figure = step_times(far_off, theme=LIGHT)
    assert [each["name"] for each in figure["data"]] == ["recorded"]
    assert figure["meta"]["note"].startswith(
        "Only recorded times are drawn: the simulated ones are 10 % off, over the limit of 5 %"
    )
    assert figure["meta"]["text"] == "Over 2 steps, from 1 to 2, a step takes 2 s."
    assert figure["meta"]["table"]["rows"][0][3] == "not measured"
    assert figure["layout"]["yaxis"]["range"][0] > 1.0


def test_lines_stop_at_a_gap_instead_of_crossing_it():
    figure = step_times(points((1, 1.5), (2, 1.6), (9, 1.7)), theme=LIGHT)
    assert trace(figure, "recorded")["y"] == [1.5, 1.6, None, 1.7]
    assert figure["layout"]["annotations"][0]["text"] == "6 skipped"


def test_lost_area_lies_between_recorded_and_ideal_times():
    lost = trace(step_times(points((1, 1.5), (2, 1.6)), theme=LIGHT), "time lost")
    assert lost["x"] == [0.0, 1.0, 1.0, 0.0]
    assert lost["y"] == [1.5, 1.6, 1.0, 1.0]
    assert lost["fillcolor"] == LIGHT.lost_area


def test_a_skipped_step_is_a_gap_with_its_reason_in_the_table():
    seen = [*points((1, 1.5)), StepPoint(2, None, None, None, "rank 3 silent"), *points((3, 1.5))]
    figure = step_times(seen, theme=LIGHT)
    assert figure["layout"]["annotations"][0]["text"] == "1 skipped"
    assert figure["meta"]["table"]["rows"][1] == [2, *["not measured"] * 3, "rank 3 silent"]


def test_missing_data_is_a_labelled_band_after_the_last_step():
    figure = step_times(
        points((1, 1.5), (2, 1.5)), theme=LIGHT, silent_since="no data for 12 minutes"
    )
    assert figure["layout"]["xaxis"]["range"][1] > 1.5
    assert figure["layout"]["shapes"][-1]["x0"] == 1.5
    label = figure["layout"]["annotations"][-1]
    assert label["text"] == "no data for<br>12 minutes"
    end = figure["layout"]["xaxis"]["range"][1]
    assert (label["x"], label["xanchor"]) == ((1.5 + end) / 2, "center")


def test_the_fourteen_slowest_workers_come_slowest_first():
    slowdown = [[[1 + dp / 100] for dp in range(20)]]
    figure = worker_steps([5], slowdown, hosts={(19, 0): "h"}, theme=LIGHT)
    labels = figure["layout"]["yaxis"]["ticktext"]
    assert len(labels) == 14
    assert labels[0].startswith("dp 19 \u00b7 s0 <span")
    assert labels[1] == "dp 18 \u00b7 s0 "


def test_unmeasured_worker_is_an_empty_cell_and_not_slow():
    figure = worker_steps(
        [1, 2], [[[float("nan")], [1.1]], [[1.3], [1.1]]], hosts=None, theme=LIGHT
    )
    assert figure["data"][0]["z"] == [[None, 1.3], [1.1, 1.1]]


def test_step_below_its_ideal_has_no_time_lost():
    lost = trace(step_times(points((1, 1.5), (2, 0.9)), theme=LIGHT), "time lost")
    assert lost["y"] == [1.5, 1.0, 1.0, 1.0]
