from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from app.diagnosis.detectors import stage_imbalance
from app.diagnosis.detectors.stage_imbalance import LIMITS, against_others
from app.diagnosis.finding import MIN_SCORE
from app.diagnosis.statistics.robust import stretches
from app.result.finding import Culprit
from app.synth.costs import OperationCosts
from app.synth.faults.fault import FaultSteps
from app.synth.faults.slow_compute import LongLastStage, SlowStage, SlowWorker
from app.synth.schedules import SCHEDULES
from app.synth.truth import step_times
from tests.diagnosis.jobs import (
    NUM_STEPS,
    case_of,
    diagnosed,
    made,
    only_finding,
    reason_against,
    window_of,
)
from tests.diagnosis.suspects import denied
from tests.synth.faulty_jobs import costs_of


@pytest.mark.parametrize(
    "fault",
    [LongLastStage(), SlowStage(0, 1.3), SlowStage(2, 1.08), SlowStage(1, 1.5, when=FaultSteps(6))],
)
def test_any_stage_with_more_work_is_named_with_what_it_costs(fault):
    job = made(fault)
    found = only_finding(diagnosed(window_of(job)))
    stage = 3 if isinstance(fault, LongLastStage) else fault.stage
    assert (found.cause, found.culprits) == ("stage-imbalance", (Culprit(stage=stage),))
    assert found.cost == pytest.approx(costs_of(job, range(NUM_STEPS))[0], abs=0.005)


def test_first_and_last_stage_may_both_be_long():
    costs = OperationCosts(stage_factors=(1.3, 1.0, 1.0, 1.6))
    found = only_finding(diagnosed(window_of(made(costs=costs))))
    assert found.culprits == (Culprit(stage=3), Culprit(stage=0))


def test_one_stage_gives_insufficient_evidence():
    seen = diagnosed(window_of(made(SlowStage(0, 1.5), pp=1)))
    assert seen.findings == ()
    assert "one stage" in reason_against(seen, "stage-imbalance")


@given(
    arrays.arrays(
        np.float64,
        arrays.array_shapes(min_dims=3, max_dims=3, min_side=2, max_side=5),
        elements=st.floats(0.1, 10),
    )
)
def test_each_stage_is_compared_with_the_lower_median_of_the_others(took_s):
    got = against_others(took_s)
    for stage in range(took_s.shape[2]):
        others_s = np.sort(np.delete(took_s, stage, axis=2), axis=2)
        typical_s = others_s[:, :, (others_s.shape[2] - 1) // 2]
        np.testing.assert_allclose(got[:, :, stage], took_s[:, :, stage] / typical_s)


def load_of(ratio):
    """Of one stage beside one that is as usual, by its ratio in each step."""
    both = np.stack([np.array(ratio), np.ones(len(ratio))], axis=1)
    found = stretches(both, 0.01, LIMITS.min_ratio - 1)
    alike, took_s = np.ones(2, np.bool_), both[:, None]
    usual, least = np.arange(len(ratio)), np.full(2, LIMITS.min_ratio)
    return stage_imbalance._StageLoad(
        both, both, both, usual, found, alike, (took_s, took_s), least
    )


@pytest.mark.parametrize(
    ("ratio", "is_named"),
    [
        ([1.03] * 16, False),
        # Its best stretch has 1.046, and that five standard errors above 1.
        ([1.01] * 10 + [1.046] * 6, False),
        ([1.05] * 16, True),
        ([1.0] * 12 + [1.2] * 4, True),
    ],
    ids=["little", "a stretch by chance", "all of it", "surely in a part"],
)
def test_a_slow_stage_shows_in_the_whole_window_or_surely_in_a_part(ratio, is_named):
    load = load_of(ratio)
    assert (stage_imbalance._scores(load)[0] >= MIN_SCORE) == is_named


def true_cost(job):
    """Against the same job with all stages and chunks alike."""
    alike = replace(job, costs=replace(job.costs, stage_factors=(), chunk_factors=()))
    with_it, without = (step_times(each, range(NUM_STEPS)).mean() for each in (job, alike))
    return 1 - without / with_it


def test_loss_layer_in_the_last_virtual_chunk_costs_what_it_costs():
    costs = OperationCosts(chunk_factors=(1.0,) * 7 + (2.2,), noise=0.02)
    job = made(vpp=2, costs=costs, schedule=SCHEDULES["interleaved"])
    found = only_finding(diagnosed(window_of(job)))
    assert (found.cause, found.culprits) == ("stage-imbalance", (Culprit(stage=3),))
    assert found.cost == pytest.approx(true_cost(job), abs=0.01)


@pytest.mark.parametrize(("pp", "rise"), [(4, 0.6), (8, 0.3)])
def test_stages_that_get_heavier_one_after_the_other_cost_the_way_to_the_lightest(pp, rise):
    factors = tuple(1 + rise * stage / (pp - 1) for stage in range(pp))
    job = made(pp=pp, costs=OperationCosts(stage_factors=factors, noise=0.02))
    found = only_finding(diagnosed(window_of(job)))
    assert f"from stage 0 to stage {pp - 1}, which takes {1 + rise:.1f}x" in found.sentence
    assert found.cost == pytest.approx(true_cost(job), abs=0.01)


def test_one_light_stage_makes_no_other_long():
    costs = OperationCosts(stage_factors=(0.8, 1.0, 1.0, 1.0))
    assert diagnosed(window_of(made(costs=costs))).findings == ()


@pytest.mark.parametrize(("dp", "slowdowns"), [(4, (1.2, 1.4, 1.6)), (2, (1.0, 2.0))], ids=str)
def test_a_stage_slow_on_some_dp_ranks_is_not_long(dp, slowdowns):
    slow = [SlowWorker(at, 1, by) for at, by in enumerate(slowdowns) if by > 1]
    window = window_of(made(*slow, dp=dp))
    found = only_finding(diagnosed(window))
    assert found.cause == "slow-worker"
    assert {culprit.dp_rank for culprit in found.culprits} == {fault.dp_rank for fault in slow}
    assert denied(stage_imbalance.StageImbalance(), case_of(window)).score < MIN_SCORE


def test_ranks_slow_in_every_other_step_make_no_stage_long():
    # The median of two is in between in every step.
    ratio = np.ones((16, 2, 3))
    ratio[::2, 0, 1] = ratio[1::2, 1, 1] = 1.5
    found = stretches(np.median(ratio, axis=1), 0.01, LIMITS.min_ratio - 1)
    is_alike = stage_imbalance._is_alike(ratio, found, 0.0)
    assert found.mean[1] == pytest.approx(1.25)
    assert is_alike.tolist() == [True, False, True]


@pytest.mark.parametrize("slowdown", [1.1, 1.4])
def test_with_one_replica_both_explanations_are_given(slowdown):
    job = made(SlowStage(2, slowdown), dp=1, costs=OperationCosts(noise=0.02))
    found = only_finding(diagnosed(window_of(job)))
    assert (found.cause, found.culprits) == ("stage-imbalance", (Culprit(stage=2),))
    assert "either its share of the model is larger or its GPU slower" in found.sentence
    assert found.evidence["workers"] == [[0, 2]]
    assert found.cost == pytest.approx(costs_of(job, range(NUM_STEPS))[0], abs=0.01)


def test_with_one_replica_stages_of_a_healthy_job_are_alike():
    costs = OperationCosts(stage_factors=(0.985, 1.015, 1.0, 0.99, 1.01, 1.015), noise=0.02)
    seen = diagnosed(window_of(made(dp=1, pp=6, costs=costs)))
    assert seen.findings == ()


def test_a_stage_of_one_host_alone_may_be_that_host():
    seen = diagnosed(window_of(made(SlowStage(1, 1.4), tp=2)))
    found = only_finding(seen)
    assert (found.cause, found.culprits) == ("stage-imbalance", (Culprit(stage=1),))
    assert (
        "either its share of the model is larger, or host-001, which holds all of it, is slower"
        in found.sentence
    )
