import dataclasses

import numpy as np
import pytest

from app.diagnosis.detector import Suspicion
from app.diagnosis.diagnose import _is_healthy_wait
from app.diagnosis.repair import Repaired
from app.diagnosis.suspicions import doubted_by_clocks, drop_explained
from app.engine.clocks.measure import Clocks
from app.result.causes import CAUSES
from app.result.finding import Culprit
from app.synth.faults.interruptions import GcPauses
from app.synth.faults.slow_compute import LongLastStage, SlowWorker
from app.synth.normal_variation import SpecialSteps
from tests.diagnosis.jobs import (
    NUM_STEPS,
    case_of,
    diagnosed,
    made,
    only_finding,
    reason_against,
    window_of,
)
from tests.synth.faulty_jobs import costs_of
from tests.window_factory import Row, in_row, replicas, window


def suspicion(cause, repair=None, delays=None, **about):
    return Suspicion(cause, 1.0, 1.0, (Culprit(0, 0),), "", repair, delays, **about)


def shorter_by(excess_s):
    """A repair of the forward computations of dp rank 0, of two lanes."""

    def repair(group):
        rows = np.array([0])
        return Repaired(rows, group.durations.recorded_s[rows] - np.array([[excess_s, 0.0]]))

    return repair


def late_by(late_s):
    return lambda group: Repaired(np.array([0]), np.array([[late_s, 0.0]]))


@pytest.fixture(scope="module")
def a_case():
    rows = in_row(("forward-compute", 20), ("backward-compute", 4), ("optimizer", 1))
    return case_of(window(replicas(rows, 2), dp_size=2))


def test_a_cause_below_the_minimum_cost_is_ruled_out():
    seen = diagnosed(window_of(made(SlowWorker(1, 1, 1.05), pp=8, microbatches=4)))
    assert seen.findings == ()
    assert "costs only" in reason_against(seen, "slow-worker")


def test_causes_are_withheld_where_the_replay_is_far_from_the_record():
    # A gap of 3 s in every step before the optimizer, which no cause is about.
    rows = [
        row.on(step=step, start_s=row.start_s + 3 * (row.optype == "optimizer"))
        for step in range(6)
        for row in replicas(
            in_row(("forward-compute", 2), ("backward-compute", 4), ("optimizer", 1)), 2
        )
    ]
    seen = diagnosed(window(rows, dp_size=2))
    assert seen.findings is None
    assert {each.cause for each in seen.ruled_out} == {*CAUSES}
    # Nothing is suspected, so each cause keeps what rules it out.
    assert not any("suspected" in each.reason for each in seen.ruled_out)


def test_odd_steps_do_not_withhold_causes_and_count_as_job_time():
    job = made(SlowWorker(1, 1, 1.5), odd_steps=SpecialSteps(evaluate_every=6, evaluation_s=3.0))
    found = only_finding(diagnosed(window_of(job)))
    assert found.cost == pytest.approx(costs_of(job, range(NUM_STEPS))[0], abs=0.005)


def test_findings_are_most_costly_first_with_their_share_of_loss():
    seen = diagnosed(window_of(made(SlowWorker(1, 1, 1.3), SlowWorker(0, 3, 1.8))))
    found = only_finding(seen)
    assert [culprit.dp_rank for culprit in found.culprits] == [0, 1]
    assert found.evidence["share_of_loss"] == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize("pp", [1, 4])
def test_shares_of_the_loss_are_together_no_more_than_all_of_it(pp):
    stages = [LongLastStage()] if pp > 1 else []
    for first, second in ((1.2, 1.5), (1.5, 1.5), (2.0, 1.2)):
        job = made(SlowWorker(0, pp - 1, first), GcPauses(rate=0.1 * second), *stages, pp=pp)
        shares = [
            finding.evidence["share_of_loss"]
            for finding in diagnosed(window_of(job)).findings or ()
        ]
        assert shares
        assert sum(share or 0.0 for share in shares) <= 1.0 + 1e-9


def test_stalls_explain_a_slow_worker(a_case):
    # 6 of its 6 s are in the same operations that stall.
    slow, stalls = (
        suspicion("slow-worker", shorter_by(6.0)),
        suspicion("allocator-stall", shorter_by(10.0)),
    )
    left, explained = drop_explained(a_case, [slow, stalls])
    assert left == [stalls]
    assert [each.cause for each in explained] == ["slow-worker"]
    assert "explained by allocator stalling" in explained[0].reason


def test_shared_delays_explain_a_suspicion_like_durations(a_case):
    loading, stalls = (
        suspicion("data-loading", delays=late_by(4.0)),
        suspicion("allocator-stall", delays=late_by(3.0)),
    )
    left, _ = drop_explained(a_case, [loading, stalls])
    assert left == [loading]


def test_two_faults_of_one_worker_keep_their_names(a_case):
    slow, late = suspicion("slow-worker", shorter_by(6.0)), suspicion("gc-pause", shorter_by(0.0))
    assert drop_explained(a_case, [slow, late]) == ([slow, late], [])


def test_a_slow_worker_and_its_slow_stage_both_remain(a_case):
    both = [suspicion(name, shorter_by(6.0)) for name in ("slow-worker", "stage-imbalance")]
    assert drop_explained(a_case, both) == (both, [])


@pytest.mark.parametrize(
    ("cause", "residual_s", "is_doubted"),
    [
        ("slow-link", 1e-3, False),
        ("slow-link", 3e-3, True),
        ("flapping-link", 3e-3, True),
        ("slow-link", None, False),
        # A computation has one clock.
        ("slow-worker", 3e-3, False),
    ],
)
def test_a_transfer_excess_below_the_clock_error_is_ruled_out(
    a_case, cause, residual_s, is_doubted
):
    replay = dataclasses.replace(a_case.replay, clocks=Clocks(residual_s=residual_s))
    case = dataclasses.replace(a_case, replay=replay)
    answer = doubted_by_clocks(case, suspicion(cause, shorter_by(2e-3)))
    assert (answer is not None) == is_doubted
    if answer is not None:
        assert answer.insufficient
        assert "2 ms too long, and the hosts' clocks are known to 3 ms only" in answer.reason


def test_without_a_replayed_step_findings_are_none():
    rows = [Row("forward-compute", 0, 2), Row("optimizer", 2, 1)]
    seen = diagnosed(window(rows))
    assert seen.findings == ()
    assert "no forward or no backward" in reason_against(seen, "slow-worker")


@pytest.mark.parametrize(
    ("share", "cost_range", "is_healthy"),
    [
        (0.030, (0.008, 0.053), True),  # a GPU as slow as the slowest of healthy ones
        (0.138, (0.0, 0.276), False),
        (0.040, (0.020, 0.060), False),
    ],
)
def test_waits_that_may_cost_nothing_name_nobody(share, cost_range, is_healthy):
    late = Suspicion("slow-worker", 0.9, 0.9, (Culprit(1, 0),), "late")
    assert _is_healthy_wait(late, share, cost_range) is is_healthy
