from app.charts.base.step_axis import StepAxis, StepEvent, event_labels, event_lines
from app.charts.base.theme import LIGHT
from app.charts.job.step_times import StepPoint, step_times


def texts(events, axis):
    return [each["text"] for each in event_labels(events, axis, LIGHT)]


def test_an_event_stands_before_its_step():
    axis = StepAxis.over(list(range(100)))
    [line] = event_lines([StepEvent(40, "slow")], axis, LIGHT)
    assert (line["x0"], line["x1"], line["line"]["dash"]) == (39.5, 39.5, "dot")


def test_events_at_one_step_share_a_line():
    events = [StepEvent(40, "slow"), StepEvent(40, "alert")]
    assert len(event_lines(events, StepAxis.over(list(range(100))), LIGHT)) == 1


def test_overlapping_event_labels_are_omitted():
    axis = StepAxis.over(list(range(100)))
    events = [StepEvent(40, "slow"), StepEvent(43, "alert"), StepEvent(80, "restart")]
    assert texts(events, axis) == ["slow", "restart"]
    assert len(event_lines(events, axis, LIGHT)) == 3


def test_step_time_chart_draws_events():
    points = [StepPoint(step, 1.0, 1.0, 1.0) for step in range(10)]
    layout = step_times(points, theme=LIGHT, events=[StepEvent(4, "slow")])["layout"]
    assert [each["x0"] for each in layout["shapes"]] == [3.5]
    assert [each["text"] for each in layout["annotations"]] == ["slow"]
