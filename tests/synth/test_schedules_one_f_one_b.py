import numpy as np
import pytest

from app.synth.job import SimulatedJob
from app.synth.schedules import OneFOneB
from app.trace.job import Parallelism
from tests.synth.faulty_jobs import compute_only_costs


def words(stage, pp_size, num_microbatches):
    order = OneFOneB().order(
        stage, pp_size=pp_size, num_microbatches=num_microbatches, num_chunks=1
    )
    return " ".join(f"{work.direction.value[0]}{work.microbatch}" for work in order)


def test_three_stages_alternate_after_their_own_head_start():
    assert words(0, 3, 4) == "f0 f1 f2 b0 f3 b1 b2 b3"
    assert words(1, 3, 4) == "f0 f1 b0 f2 b1 f3 b2 b3"
    assert words(2, 3, 4) == "f0 b0 f1 b1 f2 b2 f3 b3"


def test_fewer_microbatches_than_stages_are_all_sent_forward_first():
    assert words(0, 4, 1) == "f0 b0"
    assert words(0, 4, 2) == "f0 f1 b0 b1"


@pytest.mark.parametrize("pp_size", [1, 2, 4, 7])
@pytest.mark.parametrize("num_microbatches", [1, 2, 5, 16])
@pytest.mark.parametrize("dp_size", [1, 3])
def test_a_noiseless_step_takes_the_closed_form_of_1f1b(pp_size, num_microbatches, dp_size):
    job = SimulatedJob(
        Parallelism(dp_size, pp_size),
        num_microbatches,
        costs=compute_only_costs(forward_s=0.25, backward_s=0.5),
    )
    trace = job.make_step(0)
    step_s = (trace.start_s + trace.duration_s).max()
    np.testing.assert_allclose(step_s, (num_microbatches + pp_size - 1) * 0.75, rtol=1e-12)
