"""slow-worker with one dp rank: a stage that is slow in the optimizer for what it computes."""

import numpy as np
import pytest
from typing_extensions import override

from app.diagnosis.detectors.other_slow_workers import slow_optimizer
from app.result.finding import Culprit
from app.synth.costs import OperationCosts
from app.synth.faults.fault import FaultSteps, factor_while
from app.synth.faults.slow_compute import LongLastStage, SlowStage, SlowWorker
from tests.diagnosis.detectors.test_slow_worker import SlowOptimizer
from tests.diagnosis.jobs import (
    NUM_STEPS,
    case_of,
    diagnosed,
    findings_of,
    made,
    only_finding,
    window_of,
)
from tests.synth.faulty_jobs import costs_of

SLOW_OPTIMIZER = OperationCosts(optimizer_s=6e-3)


@pytest.mark.parametrize(("stage", "slowdown"), [(1, 8.0), (0, 20.0), (3, 20.0)])
def test_the_stage_is_named_with_the_operation_and_the_doubt(stage, slowdown):
    job = made(SlowOptimizer(0, stage, slowdown), dp=1, costs=SLOW_OPTIMIZER)
    found = only_finding(diagnosed(window_of(job)))
    assert found.cause == "slow-worker"
    assert found.culprits == job.faults[0].culprits(job.world)
    assert found.evidence["optypes"] == ["optimizer"]
    assert "as long as the other stages in the optimizer for what it computes" in found.sentence
    assert "which with one dp rank look alike" in found.sentence
    assert found.cost == pytest.approx(costs_of(job, range(NUM_STEPS))[0], abs=0.01)


@pytest.mark.parametrize(
    "job",
    [
        made(dp=1),
        made(SlowOptimizer(0, 0, 4.0), dp=1),  # embeddings of a small model
        made(SlowOptimizer(0, 1, 2.0), dp=1),
        made(SlowStage(1, 3.0), dp=1),
        made(LongLastStage(), dp=1),
        made(dp=1, pp=1),
        made(SlowOptimizer(1, 1, 20.0), dp=2),
    ],
)
def test_parameters_and_other_causes_are_no_slow_optimizer(job):
    assert slow_optimizer(case_of(window_of(job))) is None


def test_a_slow_gpu_is_as_slow_in_all_it_does():
    job = made(SlowWorker(0, 1, 2.0), dp=1)
    assert slow_optimizer(case_of(window_of(job))) is None


def test_repair_is_of_the_optimizer_of_that_stage_alone():
    job = made(SlowOptimizer(0, 1, 8.0), dp=1, costs=SLOW_OPTIMIZER)
    case = case_of(window_of(job))
    found = slow_optimizer(case)
    assert found is not None
    assert found.repair is not None
    [group] = case.replay.groups
    repaired = found.repair(group)
    [row] = repaired.rows
    assert (group.template.name(row), group.template.stage[row]) == ("optimizer", 1)
    others = group.template.ops(2, "optimizer")
    usual_s = float(np.median(group.durations.recorded_s[others]))
    assert float(np.median(repaired.duration_s)) == pytest.approx(usual_s, rel=0.1)


class SlowOptimizerOfStage(SlowStage):
    """A stage of which only the optimizer takes longer, on every dp rank."""

    @override
    def change(self, drawn, world, lasts, rng_of):
        factor = factor_while(self.slowdown, lasts)
        drawn.once_s["optimizer"][self.stage] *= factor[:, None]


def costly(*faults, **about):
    return made(*faults, costs=OperationCosts(optimizer_s=2e-2), **about)


@pytest.mark.parametrize(("stage", "slowdown"), [(1, 8.0), (2, 3.5), (0, 10.0), (3, 10.0)])
def test_a_stage_that_is_slow_in_the_optimizer_on_all_dp_ranks_is_named(stage, slowdown):
    job = costly(SlowOptimizerOfStage(stage, slowdown))
    found = only_finding(diagnosed(window_of(job)))
    assert (found.cause, found.culprits) == ("stage-imbalance", (Culprit(stage=stage),))
    assert found.evidence["optypes"] == ["optimizer"]
    assert found.evidence["slowdown_against_stages"] == pytest.approx(slowdown, rel=0.05)
    assert "as the other stages in the optimizer for what it computes, on all" in found.sentence
    assert found.cost == pytest.approx(costs_of(job, range(NUM_STEPS))[0], abs=0.01)


@pytest.mark.parametrize("dp", [1, 4])
def test_a_stage_that_becomes_slower_in_the_optimizer_has_no_more_parameters(dp):
    job = costly(SlowOptimizerOfStage(0, 2.5, when=FaultSteps(6)), dp=dp)
    found = only_finding(diagnosed(window_of(job)))
    assert found.cause == ("slow-worker" if dp == 1 else "stage-imbalance")
    assert (found.onset_step, found.persistence) == (6, "chronic")
    assert found.evidence["slowdown_against_itself"] == pytest.approx(2.5, rel=0.05)
    assert "2.5x as long as before in the optimizer" in found.sentence
    assert found.cost == pytest.approx(costs_of(job, range(NUM_STEPS))[0], abs=0.01)


def test_the_history_shows_that_a_stage_was_faster():
    job = costly(SlowOptimizerOfStage(1, 2.0, when=FaultSteps(NUM_STEPS)))
    before = case_of(window_of(job)).new_history
    found = only_finding(diagnosed(window_of(job, first=NUM_STEPS), before))
    assert (found.cause, found.onset_step) == ("stage-imbalance", NUM_STEPS)
    assert findings_of(diagnosed(window_of(job, first=NUM_STEPS))) == ()


@pytest.mark.parametrize(
    "job",
    [
        costly(SlowOptimizerOfStage(1, 2.5)),
        made(SlowOptimizerOfStage(0, 5.0)),  # embeddings, for next to nothing
        costly(SlowOptimizerOfStage(1, 8.0, when=FaultSteps(5, 2))),
        costly(),
    ],
)
def test_more_parameters_and_single_long_steps_are_no_slow_stage(job):
    assert findings_of(diagnosed(window_of(job))) == ()


def test_some_dp_ranks_of_a_stage_are_slow_workers():
    job = costly(*(SlowOptimizer(dp_rank, 1, 8.0) for dp_rank in (0, 1)), dp=4)
    assert only_finding(diagnosed(window_of(job))).cause == "slow-worker"
