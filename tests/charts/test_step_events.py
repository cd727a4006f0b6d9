from app.charts.step_axis import StepAxis
from app.charts.step_events import StepEvent, labels, lines
from app.charts.steps import StepPoint, steps
from app.charts.theme import LIGHT


def texts(events, axis):
    return [each["text"] for each in labels(events, axis, LIGHT)]


def test_an_event_stands_before_its_step():
    axis = StepAxis.over(list(range(100)))
    [line] = lines([StepEvent(40, "slow")], axis, LIGHT)
    assert (line["x0"], line["x1"], line["line"]["dash"]) == (39.5, 39.5, "dot")


def test_events_at_one_step_share_a_line():
    events = [StepEvent(40, "slow"), StepEvent(40, "alert")]
    assert len(lines(events, StepAxis.over(list(range(100))), LIGHT)) == 1


def test_labels_that_would_touch_give_way_to_the_first():
    axis = StepAxis.over(list(range(100)))
    events = [StepEvent(40, "slow"), StepEvent(43, "alert"), StepEvent(80, "restart")]
    assert texts(events, axis) == ["slow", "restart"]
    assert len(lines(events, axis, LIGHT)) == 3


def test_how_much_is_missing_in_a_gap_goes_before_an_event_beside_it():
    axis = StepAxis.over([*range(50), *range(60, 100)])
    assert texts([StepEvent(60, "alert")], axis) == ["10 skipped"]


def test_the_chart_of_step_times_has_them():
    points = [StepPoint(step, 1.0, 1.0, 1.0) for step in range(10)]
    layout = steps(points, theme=LIGHT, events=[StepEvent(4, "slow")])["layout"]
    assert [each["x0"] for each in layout["shapes"]] == [3.5]
    assert [each["text"] for each in layout["annotations"]] == ["slow"]
