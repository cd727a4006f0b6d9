"""Slow workers of jobs whose dp ranks run different numbers of micro-batches."""

import pytest

from app.diagnosis.uneven_steps import NOTE
from app.monitor import observe
from app.result.window_result import WindowResult
from app.synth.faults.slow_compute import SlowWorker
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from tests.trace.losses import lossy_window, uneven_trace

STEPS = list(range(10))


def result_of(*faults: SlowWorker, fewer: dict[int, int]) -> WindowResult:
    made = SimulatedJob(Parallelism(4, 2), 8, faults=faults)
    return observe(lossy_window(made, uneven_trace(made, STEPS, fewer, 8))).result


def test_slow_worker_is_named_by_the_microbatches_that_all_have():
    slow = SlowWorker(dp_rank=3, stage=1, slowdown=1.6)
    result = result_of(slow, fewer={1: 6, 2: 6})
    [finding] = result.findings or ()
    assert finding.cause == "slow-worker"
    assert [(culprit.dp_rank, culprit.stage) for culprit in finding.culprits] == [(3, 1)]
    assert (finding.basis, finding.parts and finding.parts.note) == ("concluded", NOTE)
    assert finding.confidence <= 0.9
    # As in the job in which all run eight: those with fewer are not waited for.
    [whole] = result_of(slow, fewer={}).findings or ()
    assert finding.cost == pytest.approx(whole.cost, abs=0.04)
    assert "slow-worker" not in [denied.cause for denied in result.ruled_out or ()]


def test_slow_worker_that_nobody_waits_for_costs_nothing():
    # With 5 of 8 micro-batches it is done before the others.
    result = result_of(SlowWorker(dp_rank=1, stage=0, slowdown=1.4), fewer={1: 5})
    assert result.findings is None
    [slow] = [denied for denied in result.ruled_out or () if denied.cause == "slow-worker"]
    assert slow.reason == "it costs only 0 % of the job's GPU time"


def test_nobody_is_slow_where_only_the_numbers_differ():
    result = result_of(fewer={0: 4, 1: 6})
    assert result.findings is None
    [observation] = result.observations or ()
    assert observation.kind == "uneven-microbatches"
