"""Does the engine find in made jobs what was put there?"""

import numpy as np
import pytest

from app.engine.report import analyse, report_as_json
from app.synth.faults.slow_compute import LongLastStage, SlowStage, SlowWorker
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from app.trace.window import Window

NUM_STEPS = 4


def result_of(*, dp_size=8, pp_size=4, num_microbatches=8, faults=()):
    made = SimulatedJob(Parallelism(dp_size, pp_size), num_microbatches, faults=faults)
    steps = tuple(range(NUM_STEPS))
    return report_as_json(
        analyse(Window(made.job, 1, 0, steps, made.make(steps), state="complete"))
    )


@pytest.mark.parametrize("num_microbatches", [8, 16])
def test_a_healthy_job_hardly_straggles(num_microbatches):
    assert result_of(num_microbatches=num_microbatches)["slowdown"] < 1.02


def test_a_slow_worker_is_the_hottest_and_explains_the_loss():
    result = result_of(num_microbatches=16, faults=(SlowWorker(2, 1, 1.6),))
    assert result["slowdown"] > 1.4
    assert divmod(int(np.argmax(result["worker_slowdown"])), 4) == (2, 1)
    assert result["m_w"] > 0.9


def test_a_long_last_stage_explains_the_loss():
    result = result_of(faults=(LongLastStage(),))
    assert 1.15 < result["slowdown"] < 1.35
    assert result["m_s"] > 0.9
    assert np.argmax(result["stage_slowdown"]) == 3


@pytest.mark.parametrize(
    ("dp_size", "pp_size", "num_microbatches"),
    [(1, 1, 1), (4, 1, 2), (1, 4, 8), (2, 2, 1), (2, 6, 3), (8, 4, 8)],
)
@pytest.mark.parametrize("faults", [(), (SlowStage(0, 1.5),)], ids=["healthy", "slow stage"])
def test_the_model_reproduces_the_recorded_step_time(dp_size, pp_size, num_microbatches, faults):
    result = result_of(
        dp_size=dp_size, pp_size=pp_size, num_microbatches=num_microbatches, faults=faults
    )
    assert result["fidelity"]["discrepancy"] < 0.02
