import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from app.diagnosis.detectors import stage_imbalance
from app.diagnosis.detectors.stage_imbalance import MIN_RATIO, against_others
from app.diagnosis.finding import MIN_SCORE, Culprit
from app.diagnosis.statistics.robust import stretches
from app.synth.costs import OperationCosts
from app.synth.faults.fault import FaultSteps
from app.synth.faults.slow_compute import LongLastStage, SlowStage, SlowWorker
from tests.diagnosis.jobs import (
    NUM_STEPS,
    diagnosed,
    findings_of,
    made,
    only_finding,
    reason_against,
    window_of,
)
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


def test_of_two_stages_the_longer_one_is_named():
    found = only_finding(diagnosed(window_of(made(SlowStage(1, 1.3), pp=2))))
    assert found.culprits == (Culprit(stage=1),)


def test_first_and_last_stage_may_both_be_long():
    costs = OperationCosts(stage_factors=(1.3, 1.0, 1.0, 1.6))
    found = only_finding(diagnosed(window_of(made(costs=costs))))
    assert found.culprits == (Culprit(stage=3), Culprit(stage=0))


@pytest.mark.parametrize("dp", [2, 4])
def test_a_slow_worker_is_no_stage_imbalance(dp):
    seen = diagnosed(window_of(made(SlowWorker(1, 1, 2.0), dp=dp)))
    assert [found.cause for found in findings_of(seen)] == ["slow-worker"]


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
    found = stretches(both, 0.01, MIN_RATIO - 1)
    return stage_imbalance._StageLoad(both, both, both, np.arange(len(ratio)), found)


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
