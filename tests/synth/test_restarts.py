"""Jobs that are started again."""

from dataclasses import replace

import numpy as np
import pytest

from app.errors import InvalidRequest
from app.synth.faults.slow_compute import SlowWorker
from app.synth.job import Resize, Restart, SimulatedJob, simulated_runs
from app.synth.normal_variation import SpecialSteps
from app.synth.truth import step_times
from app.trace.job import Parallelism

MADE = SimulatedJob(Parallelism(3, 2), 2)


def spans(attempts):
    return [(attempt.epoch, attempt.steps[0], attempt.steps[-1]) for attempt in attempts]


def test_steps_since_the_checkpoint_are_trained_again():
    attempts = simulated_runs(MADE, range(20), [Restart(12, lost_steps=4)])
    assert spans(attempts) == [(1, 0, 11), (2, 8, 19)]


def test_events_come_in_the_order_of_their_steps():
    attempts = simulated_runs(MADE, range(20), [Resize(15, dp_size=1), Restart(5)])
    assert spans(attempts) == [(1, 0, 4), (2, 5, 14), (3, 15, 19)]
    assert [each.job.parallelism.dp_size for each in attempts] == [3, 3, 1]


def test_a_step_that_is_trained_again_does_not_take_what_it_took():
    first, again = simulated_runs(MADE, range(6), [Restart(4, lost_steps=2)])
    one, other = (each.job.make([2]).duration_s for each in (first, again))
    assert not np.array_equal(one, other)


def test_the_first_steps_after_a_restart_are_long_again():
    made = replace(MADE, odd_steps=SpecialSteps(num_first=2))
    again = simulated_runs(made, range(8), [Restart(5, lost_steps=1)])[1]
    times_s = step_times(again.job, again.steps)
    assert (times_s > 2 * times_s[-1]).tolist() == [True, True, False, False]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: simulated_runs(MADE, range(8), [Restart(0)]), "steps 0 to 7"),
        (lambda: simulated_runs(MADE, range(8), [Restart(8)]), "restart at step 8"),
        (lambda: Restart(4, lost_steps=-1), "-1 lost steps"),
        (lambda: simulated_runs(MADE, range(8), [Resize(4, dp_size=0)]), "dp_size is 0"),
        (
            lambda: [
                run.job.make(run.steps)
                for run in simulated_runs(
                    SimulatedJob(Parallelism(3, 2), 2, faults=(SlowWorker(2, 0, 1.5),)),
                    range(8),
                    [Resize(4, dp_size=2)],
                )
            ],
            "dp rank 2: this job has 0 to 1",
        ),
    ],
)
def test_what_cannot_happen_is_refused(make, message):
    with pytest.raises(InvalidRequest, match=message):
        make()
