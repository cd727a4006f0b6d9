from app.charts.base.step_axis import MAX_DRAWN_STEPS, MAX_READ_STEPS, StepAxis, thinned_axis


def timed(*steps, slow=()):
    return [(step, 2.0 if step in slow else 1.0) for step in steps]


def test_few_steps_are_drawn_one_by_one():
    axis = thinned_axis(timed(*range(MAX_DRAWN_STEPS)))
    assert axis == StepAxis.over(list(range(MAX_DRAWN_STEPS)))
    assert axis.max_steps_per_point == 1


def test_many_steps_are_thinned_to_the_slowest_of_each_group():
    axis = thinned_axis(timed(*range(2 * MAX_DRAWN_STEPS), slow={7, 1001}))
    assert len(axis.steps) == MAX_DRAWN_STEPS
    assert axis.spans[3] == (6, 7)
    assert axis.steps[3] == 7
    assert axis.steps[500] == 1001
    assert axis.max_steps_per_point == 2


def test_every_step_belongs_to_one_point():
    axis = thinned_axis(timed(*range(5000)))
    assert len(axis.steps) <= MAX_READ_STEPS
    assert [step for first, last in axis.spans for step in range(first, last + 1)] == [*range(5000)]
    assert axis.position_of(0) == axis.position[0]
    assert axis.position_of(4999) == axis.position[-1]
    assert axis.position_of(5000) is None


def test_no_point_covers_steps_across_a_gap():
    axis = thinned_axis(timed(*range(701), *range(1000, 1701)))
    assert len(axis.steps) <= MAX_DRAWN_STEPS
    assert [gap.num_steps for gap in axis.gaps] == [299]
    assert not any(first <= 700 and last >= 1000 for first, last in axis.spans)
    assert axis.position_of(800) is None


def test_run_with_a_thousand_gaps_is_drawn():
    axis = thinned_axis(timed(*range(0, 4000, 2)))
    assert 0 < len(axis.steps) <= MAX_DRAWN_STEPS
