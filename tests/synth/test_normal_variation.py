from dataclasses import replace

import numpy as np
import pytest

from app.errors import InvalidRequest
from app.synth.costs import OperationCosts
from app.synth.job import SimulatedJob
from app.synth.normal_variation import SpecialSteps, sampled_steps
from app.trace.job import Parallelism

MADE = SimulatedJob(Parallelism(2, 2), 4, costs=OperationCosts(noise=0.0, transfer_noise=0.0))
ODD = SpecialSteps(num_first=2, evaluate_every=4, checkpoint_every=6)


def step_s(made, steps):
    return np.concatenate([block.step_s() for block in made.blocks(steps)])


def test_first_evaluation_and_checkpoint_steps_are_longer_on_every_worker():
    usual_s, odd_s = (step_s(made, range(13)) for made in (MADE, replace(MADE, odd_steps=ODD)))
    longer_s = odd_s - usual_s
    # (4 + 1) x 60 ms of computation, three times as long; a pause of 2 s, of 1 s, and of both.
    np.testing.assert_allclose(longer_s[:2], 2 * 5 * 0.06, rtol=0.02)
    np.testing.assert_allclose(longer_s[[4, 8]], 2.05, atol=0.06)
    np.testing.assert_allclose(longer_s[6], 1.05, atol=0.06)
    np.testing.assert_allclose(longer_s[12], 3.1, atol=0.12)
    np.testing.assert_allclose(longer_s[[2, 3, 5, 7, 9, 10, 11]], 0, atol=1e-12)


def test_windows_of_steps_are_sampled():
    assert sampled_steps(5, recorded=2, every=10) == [0, 1, 10, 11, 20]
    assert sampled_steps(80)[39:41] == [39, 400]


@pytest.mark.parametrize(
    "make",
    [
        lambda: SpecialSteps(num_first=-1),
        lambda: SpecialSteps(evaluation_s=np.inf),
        lambda: sampled_steps(3, recorded=0, every=4),
        lambda: sampled_steps(3, recorded=5, every=4),
    ],
)
def test_odd_steps_that_cannot_be_are_refused(make):
    with pytest.raises(InvalidRequest):
        make()
