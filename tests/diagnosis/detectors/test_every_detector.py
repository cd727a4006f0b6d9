"""What every registered detector has to keep to, whatever it looks for."""

import json
from dataclasses import fields, replace
from functools import cache

import numpy as np
import pytest
from msgspec import structs

from app.diagnosis.case import Case
from app.diagnosis.detector import Suspicion
from app.diagnosis.diagnose import DETECTORS
from app.result.finding import Culprit
from app.synth.costs import OperationCosts
from app.synth.faults.fault import FaultSteps
from app.synth.faults.interruptions import (
    AllocatorStalls,
    CheckpointStalls,
    CpuContention,
    DataLoading,
    GcPauses,
    JobStop,
)
from app.synth.faults.sequence_imbalance import SequenceImbalance
from app.synth.faults.slow_compute import LongLastStage, SlowWorker, UniformSlowdown
from app.synth.faults.slow_network import SlowLink
from app.synth.noise import HeavyTailed
from app.synth.normal_variation import SpecialSteps
from app.trace.window import Window
from tests.diagnosis.jobs import case_of, diagnosed, findings_of, made, window_of
from tests.diagnosis.suspects import denied

CAUSES = {
    "slow-worker", "stage-imbalance", "sequence-imbalance", "gc-pause", "slow-link",
    "flapping-link", "data-loading", "allocator-stall", "uniform-slowdown", "silent-worker",
    "expert-imbalance", "cpu-contention", "checkpoint-stall", "job-stop",
}  # fmt: skip

FAULTY = {
    "slow-worker": made(SlowWorker(1, 2, 1.5)),
    "stage-imbalance": made(LongLastStage()),
    "sequence-imbalance": made(SequenceImbalance()),
    "gc-pause": made(GcPauses(rate=0.2)),
    "slow-link": made(SlowLink(1, 1, 40.0)),
    "data-loading": made(DataLoading("host-005", 0.3)),
    "allocator-stall": made(AllocatorStalls(((2, 1),), rate=0.3)),
    "uniform-slowdown": made(UniformSlowdown(1.4, when=FaultSteps(9))),
    "checkpoint-stall": made(CheckpointStalls(5, 2.0)),
    "job-stop": made(JobStop(((1, 2),), when=FaultSteps(7))),
    "cpu-contention": made(CpuContention("host-005")),
}
SIZES = [(1, 1), (1, 4), (4, 1), (2, 2)]


@cache
def healthy_case(dp: int, pp: int) -> Case:
    return case_of(window_of(made(dp=dp, pp=pp)))


@cache
def faulty_case(fault: str) -> Case:
    return case_of(window_of(FAULTY[fault]))


def permuted(window: Window, new_rank: np.ndarray) -> Window:
    """The same job with its dp ranks called otherwise; hosts stay with their workers."""
    trace = window.trace
    moved = replace(trace, dp_rank=new_rank[trace.dp_rank])
    hosts = {(int(new_rank[dp]), stage): host for (dp, stage), host in window.hosts.items()}
    return replace(window, trace=moved, hosts=hosts)


def scaled(window: Window, factor: float) -> Window:
    trace = window.trace
    times = {"start_s": trace.start_s * factor, "duration_s": trace.duration_s * factor}
    kept = {each.name: getattr(trace, each.name) for each in fields(trace)}
    return replace(window, trace=type(trace)(**{**kept, **times}), origin_ns=None)


def of(diagnosis):
    return {(found.cause, found.culprits): found for found in findings_of(diagnosis)}


def test_every_cause_has_one_detector():
    assert sorted(each.cause for each in DETECTORS) == sorted(CAUSES)


@pytest.mark.parametrize("detector", DETECTORS, ids=lambda each: each.cause)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_a_healthy_job_is_ruled_out_with_a_reason(detector, sizes):
    answer = denied(detector, healthy_case(*sizes))
    assert answer.cause == detector.cause
    assert len(answer.reason) > 10
    assert 0 <= answer.score < 0.5
    json.dumps(answer.as_json(), allow_nan=False)


@pytest.mark.parametrize("detector", DETECTORS, ids=lambda each: each.cause)
@pytest.mark.parametrize("fault", FAULTY)
def test_every_fault_gives_a_readable_answer(detector, fault):
    answer = detector.detect(faulty_case(fault))
    assert 0 <= answer.score <= 1
    if isinstance(answer, Suspicion):
        assert 0 <= answer.confidence <= 1
        json.dumps(dict(answer.evidence), allow_nan=False)


@pytest.mark.parametrize("fault", FAULTY)
def test_every_fault_is_named_by_its_cause_and_by_no_other(fault):
    seen = diagnosed(window_of(FAULTY[fault]))
    assert [found.cause for found in findings_of(seen)] == [fault]
    assert {each.cause for each in seen.ruled_out} == {*CAUSES, "late-host"} - {fault}
    assert seen.findings is not None
    for found in seen.findings:
        json.dumps(dict(found.evidence), allow_nan=False)


@pytest.mark.parametrize("fault", sorted(set(FAULTY) - {"uniform-slowdown"}))
def test_renamed_dp_ranks_rename_the_culprits(fault):
    window, new_rank = window_of(FAULTY[fault]), np.array([2, 0, 3, 1])
    seen, moved = diagnosed(window), diagnosed(permuted(window, new_rank))

    def renamed(culprit: Culprit) -> Culprit:
        if culprit.dp_rank is None:
            return culprit
        return structs.replace(culprit, dp_rank=int(new_rank[culprit.dp_rank]))

    assert {(cause, frozenset(map(renamed, culprits))) for cause, culprits in of(seen)} == {
        (cause, frozenset(culprits)) for cause, culprits in of(moved)
    }
    costs = [sorted(found.cost or 0.0 for found in findings_of(each)) for each in (seen, moved)]
    assert costs[0] == pytest.approx(costs[1], abs=1e-3)


@pytest.mark.parametrize("factor", [0.25, 3.0])
@pytest.mark.parametrize("fault", FAULTY)
def test_scaled_times_have_the_same_causes(fault, factor):
    window = window_of(FAULTY[fault])
    seen, other = (of(diagnosed(scaled(window, times))) for times in (1.0, factor))
    assert seen.keys() == other.keys()
    for name, found in seen.items():
        assert found.cost == pytest.approx(other[name].cost, rel=1e-6)
        assert found.score == pytest.approx(other[name].score, rel=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_noise_tails_and_odd_steps_are_no_cause(seed):
    healthy = made(
        costs=OperationCosts(noise=0.05, tail=HeavyTailed()),
        odd_steps=SpecialSteps(num_first=2, evaluate_every=5, checkpoint_every=7),
        seed=seed,
    )
    assert diagnosed(window_of(healthy)).findings == ()
