from app.charts.base.step_axis import StepAxis, StepEvent, event_labels, event_lines
from app.charts.base.theme import LIGHT


def texts(events, axis):
    return [each["text"] for each in event_labels(events, axis, LIGHT)]


def test_an_event_stands_before_its_step():
    axis = StepAxis.over(list(range(100)))
    [line] = event_lines([StepEvent(40, "slow")], axis, LIGHT)
    assert (line["x0"], line["x1"], line["line"]["dash"]) == (39.5, 39.5, "dot")


def test_overlapping_event_labels_are_omitted():
    axis = StepAxis.over(list(range(100)))
    events = [StepEvent(40, "slow"), StepEvent(43, "alert"), StepEvent(80, "restart")]
    assert texts(events, axis) == ["slow", "restart"]
    assert len(event_lines(events, axis, LIGHT)) == 3
