from app.charts.step_axis import StepAxis
from app.charts.thinning import MAX_POINTS, MAX_READ, thinned


def timed(*steps, slow=()):
    return [(step, 2.0 if step in slow else 1.0) for step in steps]


def test_what_can_be_drawn_is_drawn_step_by_step():
    axis = thinned(timed(*range(MAX_POINTS)))
    assert axis == StepAxis.over(list(range(MAX_POINTS)))
    assert axis.most_of_one == 1


def test_of_more_steps_the_slowest_stands_for_each_few():
    axis = thinned(timed(*range(2 * MAX_POINTS), slow={7, 1001}))
    assert len(axis.steps) == MAX_POINTS
    assert axis.spans[3] == (6, 7)
    assert axis.steps[3] == 7
    assert axis.steps[500] == 1001
    assert axis.most_of_one == 2


def test_every_step_is_stood_for_by_one():
    axis = thinned(timed(*range(5000)))
    assert len(axis.steps) <= MAX_READ
    assert [step for first, last in axis.spans for step in range(first, last + 1)] == [*range(5000)]
    assert axis.of(0) == axis.position[0]
    assert axis.of(4999) == axis.position[-1]
    assert axis.of(5000) is None


def test_nothing_stands_for_steps_across_a_gap():
    axis = thinned(timed(*range(701), *range(1000, 1701)))
    assert len(axis.steps) <= MAX_POINTS
    assert [gap.num_steps for gap in axis.gaps] == [299]
    assert not any(first <= 700 and last >= 1000 for first, last in axis.spans)
    assert axis.of(800) is None


def test_a_run_in_a_thousand_pieces_is_still_drawn():
    axis = thinned(timed(*range(0, 4000, 2)))
    assert 0 < len(axis.steps) <= MAX_POINTS


def test_a_page_learns_which_steps_a_point_stands_for():
    axis = thinned(timed(*range(2 * MAX_POINTS)))
    assert axis.along["items"][:2] == [[0, 1], [2, 3]]
    assert axis.along["at"] == list(axis.position)
    assert StepAxis.over([3, 4]).along["items"] == [3, 4]
