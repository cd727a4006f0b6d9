"""Ranks that everybody waits for: what their delay is made of, its name, and what it costs."""

from dataclasses import replace

import numpy as np
import pytest
from typing_extensions import override

from app.diagnosis import diagnose as diagnosing
from app.diagnosis.case import Case
from app.diagnosis.detector import Suspicion
from app.diagnosis.detectors.late_host import LateHost
from app.diagnosis.evidence.interruptions import annotated_s
from app.diagnosis.evidence.late_workers import LateWorker, WaitCost, late_workers, wait_cost
from app.diagnosis.suspicions import SuspicionCosts
from app.result.finding import Finding
from app.synth.faults.slow_compute import SlowWorker
from app.trace.window import Window
from tests.diagnosis import late_jobs
from tests.diagnosis.detectors.test_slow_worker import SlowForward
from tests.diagnosis.jobs import (
    NUM_STEPS,
    case_of,
    diagnosed,
    findings_of,
    made,
    only_finding,
    reason_against,
    window_of,
)
from tests.diagnosis.late_jobs import HEALTHY_S, MICROBATCHES, LateJob, with_launches
from tests.engine.arrivals.ddp_windows import BACKWARD_S, FORWARD_S, OPTIMIZER_S, TRANSFER_S, ddp
from tests.synth.faulty_jobs import costs_of
from tests.window_factory import Row, in_row, window

LATE = 2
LATE_S = 0.08
# Of the step of the late job, which waits for the late rank as long as it is late.
SHARE = LATE_S / (HEALTHY_S + LATE_S)


def the_late_worker(window: Window) -> tuple[Case, LateWorker]:
    case = case_of(window)
    (found,) = late_workers(case)
    return case, found


def alike(seconds: float) -> dict[int, float]:
    return dict.fromkeys(range(8), seconds)


@pytest.mark.parametrize(
    ("job", "kind", "seconds"),
    [
        (LateJob(host_s={LATE: LATE_S}), "host", LATE_S),
        (LateJob(gc_s={LATE: LATE_S}), "gc", LATE_S),
        (LateJob(gc_inside_s={LATE: LATE_S}), "gc", LATE_S),
        (LateJob(gc_inside_s=alike(0.02) | {LATE: LATE_S}), "gc", LATE_S - 0.02),
        (LateJob(data_s=alike(0.003) | {LATE: LATE_S}), "data-wait", LATE_S - 0.003),
        (LateJob(factor={LATE: 1.4}), "compute", 0.4 * 0.24),
        # Of two the longer one.
        (LateJob(host_s={LATE: 0.05}, gc_s={LATE: 0.03}), "host", 0.05),
        (LateJob(host_s={LATE: 0.03}, factor={LATE: 1.2}), "compute", 0.2 * 0.24),
    ],
)
def test_parts_of_a_delay(job, kind, seconds):
    _, found = the_late_worker(job.window())
    assert found.worker == (LATE, 0)
    assert found.kind == kind
    assert found.parts_s[kind] == pytest.approx(seconds, rel=0.05)


@pytest.mark.parametrize("inside_s", [0.0, 0.04, 0.08])
def test_all_parts_of_a_mixed_delay(inside_s):
    mixed = LateJob(
        host_s={LATE: 0.05},
        gc_s={LATE: 0.03},
        gc_inside_s={LATE: inside_s},
        data_s={LATE: 0.02},
        noise=0.0,
    )
    _, found = the_late_worker(mixed.window())
    expected = {"host": 0.05, "gc": 0.03 + inside_s, "data-wait": 0.02, "compute": 0.0}
    assert found.parts_s == pytest.approx(expected)


# Python between operations: from what hardly matters to five times what the rank computes.
@pytest.mark.parametrize("late_s", [0.03, 0.08, 0.12, 0.3, 1.2])
def test_a_host_that_launches_late_is_named(late_s):
    found = only_finding(diagnosed(LateJob(host_s={LATE: late_s}).window()))
    assert found.cause == "late-host"
    assert found.evidence["late_because"] == "unknown host work"
    (culprit,) = found.culprits
    assert (culprit.dp_rank, culprit.stage, culprit.rank, culprit.host) == (2, 0, 2, "host-2")
    assert found.cost == pytest.approx(late_s / (HEALTHY_S + late_s), abs=0.01)
    assert found.cost_range is None
    assert "its host launches late" in found.sentence


def test_two_late_hosts_are_named_together():
    found = only_finding(diagnosed(LateJob(host_s={2: LATE_S, 5: LATE_S}).window()))
    assert found.cause == "late-host"
    assert {each.rank for each in found.culprits} == {2, 5}
    assert found.cost == pytest.approx(SHARE, abs=0.01)


def test_garbage_collection_between_operations_is_a_gc_pause():
    found = only_finding(diagnosed(LateJob(gc_s={LATE: LATE_S}).window()))
    assert (found.cause, found.evidence["reported_by_client"]) == ("gc-pause", 64)
    assert [each.rank for each in found.culprits] == [LATE]
    assert "stops before a launch" in found.sentence
    assert found.cost == pytest.approx(SHARE, abs=0.01)


def test_garbage_collection_inside_computations_is_named_once():
    found = only_finding(diagnosed(LateJob(gc_inside_s={LATE: LATE_S}).window()))
    assert found.cause == "gc-pause" or found.evidence["late_because"] == "gc"
    assert [each.rank for each in found.culprits] == [LATE]
    assert found.cost == pytest.approx(SHARE, abs=0.01)


def test_one_rank_that_waits_for_data_long_is_data_loading():
    window = LateJob(data_s=alike(0.003) | {LATE: LATE_S}).window()
    found = diagnosed(window)
    loading = only_finding(found)
    assert loading.cause == "data-loading"
    assert [each.rank for each in loading.culprits] == [LATE]
    assert loading.cost == pytest.approx(SHARE, abs=0.015)
    assert "explained" in reason_against(found, "late-host")


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
@pytest.mark.parametrize("noise", [0.01, 0.03])
def test_healthy_noise_has_no_cause(seed, noise):
    found = diagnosed(LateJob(noise=noise, seed=seed).window())
    assert findings_of(found) == ()
    assert found.unexplained_share is not None
    assert found.unexplained_share < diagnosing.MIN_UNEXPLAINED
    assert found.coverage == pytest.approx(1.0)


def test_a_rank_that_computes_longer_is_a_slow_worker_and_no_late_host():
    found = diagnosed(LateJob(factor={LATE: 1.4}).window())
    assert only_finding(found).cause == "slow-worker"
    assert only_finding(found).evidence["arrivals"]["rank"] == LATE
    assert [each.cause for each in found.ruled_out].count("late-host") == 1


def test_a_late_host_beside_a_slow_worker():
    # The host is later than the GPU is slow: mending the GPU alone gives nothing.
    found = findings_of(diagnosed(LateJob(factor={2: 1.4}, host_s={5: 0.12}).window()))
    late, slow = found
    assert (late.cause, slow.cause) == ("late-host", "slow-worker")
    assert [each.rank for each in (*late.culprits, *slow.culprits)] == [5, 2]
    assert late.cost == pytest.approx((0.12 - 0.096) / (HEALTHY_S + 0.12), abs=0.02)
    assert slow.cost == pytest.approx(0.0, abs=0.01)
    once_mended = slow.evidence["cost_after_other_repairs"]
    assert once_mended == pytest.approx(0.096 / (HEALTHY_S + 0.096), abs=0.02)
    # What was waited for both says nothing of the one.
    assert late.cost_range is slow.cost_range is None


def test_delays_below_five_percent_of_the_step_have_no_culprit():
    found = diagnosed(LateJob(host_s={LATE: 0.008}).window())
    assert findings_of(found) == ()
    assert found.unexplained_share == pytest.approx(0.008 / (HEALTHY_S + 0.008), abs=0.01)


def test_waiting_in_few_steps_is_unexplained():
    found = diagnosed(LateJob(host_s={LATE: LATE_S}, when=(3, 5), noise=0.0).window())
    assert not found.findings
    lost_s = 2 / 8 * LATE_S
    assert found.unexplained_share == pytest.approx(lost_s / (HEALTHY_S + lost_s), rel=0.01)
    # One of eight ranks has gaps that long.
    covered = 1 - lost_s / 8 / (HEALTHY_S + lost_s)
    assert found.coverage == pytest.approx(covered, rel=1e-3)


def test_coverage_includes_data_waits():
    starved = LateJob(data_s=alike(0.1), noise=0.0).window()
    assert diagnosed(starved).coverage == pytest.approx(1.0)
    assert annotated_s(case_of(starved), "data-wait").mean() == pytest.approx(0.1)


@pytest.mark.parametrize("held", [True, False])
def test_cost_of_a_slow_ddp_rank_is_the_same_in_both_modes(held):
    window = ddp([1.0, 1.6, 1.0, 1.0], held=held, steps=8, noise=0.005)
    found = only_finding(diagnosed(window))
    assert (found.cause, [each.rank for each in found.culprits]) == ("slow-worker", [1])
    busy_s, rest_s = FORWARD_S + BACKWARD_S, TRANSFER_S + OPTIMIZER_S
    expected = 0.6 * busy_s / (1.6 * busy_s + rest_s)
    assert found.cost == pytest.approx(expected, abs=0.03)
    assert found.cost_range is None
    case = case_of(window)
    waits = wait_cost(case, late_workers(case))
    assert waits is not None
    assert waits.low == pytest.approx(expected, abs=0.03)
    assert waits.high == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize("held", [True, False])
def test_a_rank_that_is_slow_in_the_backward_only_is_named_in_both_modes(held):
    # Held up, the peers' backwards are as long as the slow rank's, and nothing else tells which.
    window = ddp([1.0, 1.6, 1.0, 1.0], held=held, steps=8, noise=0.005, slow_forward=False)
    found = only_finding(diagnosed(window))
    assert (found.cause, [each.rank for each in found.culprits]) == ("slow-worker", [1])
    lost_s = 0.6 * BACKWARD_S
    expected = lost_s / (FORWARD_S + BACKWARD_S + lost_s + TRANSFER_S + OPTIMIZER_S)
    low, high = found.cost_range or (found.cost, found.cost)
    assert low is not None
    assert high is not None
    assert low - 0.03 <= expected <= high + 0.03


def test_wait_cost_of_a_late_host_is_the_others_waiting():
    case, found = the_late_worker(LateJob(host_s={LATE: LATE_S}, noise=0.0).window())
    waits = wait_cost(case, [found])
    assert waits is not None
    assert (waits.low, waits.high) == pytest.approx((SHARE, SHARE))
    assert wait_cost(case, []) is None


@pytest.mark.parametrize(
    ("replayed", "waits", "cost", "cost_range"),
    [
        (0.24, WaitCost(0.24, 0.24), 0.24, None),
        (0.24, WaitCost(0.259, 0.259), 0.24, None),  # within two points
        (0.24, WaitCost(0.20, 0.40), 0.24, (0.20, 0.40)),
        (0.24, WaitCost(0.30, 0.40), 0.24, (0.24, 0.40)),
        (0.24, WaitCost(0.10, 0.20), 0.24, (0.10, 0.24)),
        (0.077, WaitCost(0.27, 0.27), 0.077, (0.077, 0.27)),
        (None, WaitCost(0.255, 0.27), 0.27, None),
        (None, WaitCost(0.20, 0.30), 0.25, (0.20, 0.30)),
        (0.24, None, 0.24, None),
    ],
)
def test_cost_is_one_figure_where_replay_and_waits_agree(replayed, waits, cost, cost_range):
    share, found_range = diagnosing._cost(replayed, waits)
    assert share == pytest.approx(cost)
    assert found_range == cost_range


def test_waits_for_some_workers_say_nothing_of_others():
    case, _ = the_late_worker(LateJob(host_s={LATE: LATE_S}).window())
    assert diagnosing._waits(case, about([[LATE, 0]]), is_replayed=True) is not None
    assert diagnosing._waits(case, about([[LATE, 0], [5, 0]]), is_replayed=True) is None


@pytest.mark.parametrize(("gc_s", "cost_range"), [(0.0005, None), (LATE_S, (0.001, 0.24))])
def test_the_others_wait_for_recorded_pauses_no_longer_than_these_take(
    monkeypatch, gc_s, cost_range
):
    monkeypatch.setattr(diagnosing, "wait_cost", lambda case, late: WaitCost(0.24, 0.24))
    case, _ = the_late_worker(LateJob(gc_s={LATE: gc_s}, host_s={LATE: LATE_S - gc_s}).window())
    pauses = replace(about([[LATE, 0]]), cause="gc-pause", basis="recorded")
    waits = diagnosing._waits(case, pauses, is_replayed=True)
    assert diagnosing._cost(0.001, waits) == (0.001, cost_range)


def test_a_rank_as_slow_as_the_slowest_of_healthy_ones_is_not_named_for_waits_alone(monkeypatch):
    case, _ = the_late_worker(LateJob(host_s={LATE: LATE_S}).window())
    nothing_replayed = SuspicionCosts(case.report.recorded_s, (None,), np.zeros(case.steps.size))
    for cost, is_named in ((0.021, False), (0.04, True)):
        monkeypatch.setattr(
            diagnosing, "wait_cost", lambda case, late, cost=cost: WaitCost(cost, cost)
        )
        answer = diagnosing._judged(case, [about([[LATE, 0]])], nothing_replayed, 0)
        assert isinstance(answer, Finding) is is_named


def about(workers: list[list[int]]) -> Suspicion:
    evidence = {"workers": workers}
    return Suspicion("late-host", 1.0, 1.0, (), "", evidence=evidence)


def named(job: LateJob) -> set[tuple[str, int | None]]:
    found = findings_of(diagnosed(job.window()))
    return {(each.cause, culprit.dp_rank) for each in found for culprit in each.culprits}


def test_a_data_wait_of_one_rank_hides_no_late_host():
    job = LateJob(data_s={1: 0.05}, host_s={3: 0.06})
    assert named(job) == {("data-loading", 1), ("late-host", 3)}


def test_late_hosts_of_different_reasons_are_named_together():
    ranks = {dp_rank for _, dp_rank in named(LateJob(gc_s={5: 0.06}, host_s={3: 0.05}))}
    assert ranks == {3, 5}


class LateForward(SlowWorker):
    """Computations start 20 ms late, the first of a step or all, and forwards take longer."""

    @override
    def change(self, drawn, world, lasts, rng_of):
        first = slice(1) if self.slowdown < 1.3 else slice(None)
        drawn.forward_delay_s[self.stage, :, first, :, self.dp_rank] += 0.02
        drawn.forward_s[self.stage, ..., self.dp_rank] *= self.slowdown


@pytest.mark.parametrize(("slowdown", "cause"), [(1.2, "data-loading"), (1.4, "late-host")])
def test_a_forward_that_a_late_host_makes_longer_is_no_slow_worker(slowdown, cause):
    job = made(LateForward(1, 0, slowdown), pp=1, microbatches=4)
    found = only_finding(diagnosed(window_of(job)))
    assert (found.cause, found.evidence["workers"]) == (cause, [[1, 0]])
    assert found.evidence["forward_slowdown"] == pytest.approx(slowdown, rel=0.03)
    assert found.cost == pytest.approx(costs_of(job, range(NUM_STEPS))[0], abs=0.02)


def test_forwards_that_cost_more_than_late_starts_stay_a_slow_worker():
    job = made(LateForward(1, 0, 1.2), SlowForward(1, 0, 2.5), pp=1, microbatches=4)
    found = findings_of(diagnosed(window_of(job)))
    assert {finding.cause for finding in found} == {"slow-worker", "data-loading"}


def test_the_last_of_ranks_that_all_begin_late_is_no_late_host():
    # All begin 0.4 s late, one or another some 100 ms later; rank 0 more often than the others.
    later = {(step, (0, 0, 1, 0, 2, 0, 0, 0)[step]) for step in range(8)}
    rows: list[Row] = []
    for step in range(8):
        for rank in range(4):
            start_s = 0.1 * ((step, rank) in later)
            own = in_row(("forward-compute", 0.2), ("backward-compute", 0.4), start_s=start_s)
            meets = Row("grads-reduce-scatter", start_s + 0.6, 0.11 - start_s)
            rows += [row.on(step=step, dp_rank=rank, mb_id=0) for row in own]
            rows.append(meets.on(step=step, dp_rank=rank))
    recorded = window(rows, dp_size=4)
    for idle_s, is_late in ((0.0, True), (0.4, False)):
        origin_ns = tuple(round((0.71 + idle_s) * step * 1e9) for step in range(8))
        case = case_of(replace(recorded, origin_ns=origin_ns))
        assert isinstance(LateHost().detect(case), Suspicion) is is_late


LONG_FORWARDS = LateJob(forward_factor={LATE: 2.0}, host_s={LATE: 0.02})
LONGER_S = MICROBATCHES * late_jobs.FORWARD_S


def test_forwards_that_wait_for_recorded_launches_are_a_late_host_with_the_whole_cost():
    window = with_launches(LONG_FORWARDS.window(), late=(LATE,))
    found = only_finding(diagnosed(window))
    assert (found.cause, found.evidence["workers"], found.basis) == (
        "late-host",
        [[LATE, 0]],
        "recorded",
    )
    assert "its longer computations wait for launches, which were recorded" in found.sentence
    lost_s = LONGER_S + 0.02
    assert found.cost == pytest.approx(lost_s / (HEALTHY_S + lost_s), abs=0.02)
    parts_s = found.evidence["arrivals"]["parts_s"]
    assert parts_s["compute"] == 0.0
    assert parts_s["host"] == pytest.approx(lost_s, rel=0.05)


def test_recorded_launches_in_time_prove_a_slow_gpu():
    found = findings_of(diagnosed(with_launches(LONG_FORWARDS.window())))
    slow = next(finding for finding in found if finding.cause == "slow-worker")
    assert slow.evidence["host_sets_pace"] is False
    assert "its GPU is slow, as its host launches in time" in slow.sentence


def test_without_launches_long_forwards_have_two_explanations():
    found = findings_of(diagnosed(LONG_FORWARDS.window()))
    slow = next(finding for finding in found if finding.cause == "slow-worker")
    assert slow.evidence["host_sets_pace"] is None
    assert "its GPU is slow or its host late" in slow.sentence


class Misbound(SlowWorker):
    """All computations of a worker are launched 5 ms late and take longer."""

    @override
    def change(self, drawn, world, lasts, rng_of):
        for delay_s in (drawn.forward_delay_s, drawn.backward_delay_s):
            delay_s[self.stage, ..., self.dp_rank] += 0.005
        for took_s in (drawn.forward_s, drawn.backward_s):
            took_s[self.stage, ..., self.dp_rank] *= self.slowdown


@pytest.mark.parametrize(
    ("dp_ranks", "slowdown", "cause"),
    [
        ([1], 1.1, "slow-worker"),
        ([0, 1, 2, 3], 1.1, "stage-imbalance"),
        ([0, 1, 2, 3], 1.0, "late-host"),
    ],
)
def test_late_launches_in_a_pipeline_cost_with_longer_computations(dp_ranks, slowdown, cause):
    job = made(*(Misbound(dp_rank, 2, slowdown) for dp_rank in dp_ranks))
    found = only_finding(diagnosed(window_of(job)))
    assert found.cause == cause
    assert found.evidence["launched_later_s"] == pytest.approx(0.005, rel=0.1)
    if len(dp_ranks) == 1:  # the cost of one of several faults is not that of all
        assert found.cost == pytest.approx(costs_of(job, range(NUM_STEPS))[0], abs=0.02)
