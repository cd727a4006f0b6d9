from dataclasses import replace

import numpy as np
import pytest
from typing_extensions import override

from app.diagnosis.detectors.slow_worker import SlowWorker as SlowWorkerDetector
from app.diagnosis.evidence.slow_operations import slow_operations
from app.diagnosis.evidence.slowness import slowness
from app.result.finding import Culprit
from app.synth.faults.fault import FaultSteps, factor_while, scale_worker
from app.synth.faults.sequence_imbalance import SequenceImbalance
from app.synth.faults.slow_compute import (
    LongLastStage,
    MixedGpus,
    SlowHost,
    SlowWorker,
    ThrottlingGpu,
)
from app.trace.ops import OP_CODES
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
from tests.diagnosis.suspects import denied, suspected
from tests.synth.faulty_jobs import costs_of


def of(*faults, **about):
    return diagnosed(window_of(made(*faults, **about)))


@pytest.mark.parametrize("slowdown", [1.08, 1.3, 2.5])
def test_a_slow_worker_is_named_with_its_host_and_what_it_costs(slowdown):
    job = made(SlowWorker(2, 1, slowdown))
    found = only_finding(diagnosed(window_of(job)))
    assert found.cause == "slow-worker"
    assert found.culprits == (Culprit(2, 1, job.world.hosts[2, 1]),)
    (cost,) = costs_of(job, range(NUM_STEPS))
    assert found.cost == pytest.approx(cost, abs=0.005)
    assert found.evidence["slowdown_against_peers"] == pytest.approx(slowdown, abs=0.01)
    assert found.persistence == "chronic"
    assert found.onset_step is None


class SlowForward(SlowWorker):
    """Of which only the forward takes longer."""

    @override
    def change(self, drawn, world, lasts, rng_of):
        factor = factor_while(self.slowdown, lasts)
        drawn.forward_s[self.stage, ..., self.dp_rank] *= factor


class SlowBackward(SlowWorker):
    """Of which only the backward takes longer."""

    @override
    def change(self, drawn, world, lasts, rng_of):
        factor = factor_while(self.slowdown, lasts)
        drawn.backward_s[self.stage, ..., self.dp_rank] *= factor


class SlowOptimizer(SlowWorker):
    """Of which only the optimizer takes longer."""

    @override
    def change(self, drawn, world, lasts, rng_of):
        factor = factor_while(self.slowdown, lasts)
        drawn.once_s["optimizer"][self.stage, :, :, self.dp_rank] *= factor


class ComesAndGoes(SlowWorker):
    """Slow in every other step."""

    @override
    def change(self, drawn, world, lasts, rng_of):
        factor = np.where(drawn.steps % 2 == 0, self.slowdown, 1.0)
        scale_worker(drawn, self.dp_rank, self.stage, factor)


@pytest.mark.parametrize(
    ("fault", "optypes", "fact"),
    [
        (
            SlowForward(1, 0, 1.3),
            ["forward-compute"],
            "takes 1.3x as long as its peers in the forward, and is as fast",
        ),
        (
            SlowForward(1, 0, 2.4),
            ["forward-compute"],
            "takes 2.4x as long as its peers in the forward, and is as fast",
        ),
        (
            SlowBackward(2, 1, 2.6),
            ["backward-compute"],
            "takes 2.6x as long as its peers in the backward, and is as fast",
        ),
        (SlowOptimizer(3, 3, 20.0), ["optimizer"], "as long as its peers in the optimizer"),
    ],
    ids=["forward", "slow forward", "backward", "optimizer"],
)
def test_a_worker_slow_in_one_operation_is_named_with_it_and_its_cost(fault, optypes, fact):
    job = made(fault)
    found = only_finding(diagnosed(window_of(job)))
    assert found.cause == "slow-worker"
    assert found.culprits == fault.culprits(job.world)
    assert found.evidence["optypes"] == optypes
    assert fact in found.sentence
    assert found.cost == pytest.approx(costs_of(job, range(NUM_STEPS))[0], abs=0.005)
    assert found.evidence["slowdown_against_peers"] == pytest.approx(fault.slowdown, rel=0.03)


def test_a_rank_that_waits_inside_its_backward_is_not_blamed():
    # dp 0 waits there for dp 1, whose forward is slow; it is faster in the forward.
    job = made(SlowForward(1, 0, 1.5), SlowBackward(0, 0, 1.5), dp=2, pp=1)
    operations = slow_operations(case_of(window_of(job)))
    assert not any(each.is_slow.any() for each in operations)


def test_a_worker_that_is_slow_now_and_then_is_repaired_when_it_is():
    job = made(ComesAndGoes(1, 2, 2.2))
    found = only_finding(diagnosed(window_of(job)))
    assert found.culprits == job.faults[0].culprits(job.world)
    assert found.cost == pytest.approx(costs_of(job, range(NUM_STEPS))[0], abs=0.01)


class SlowOnSome(SlowWorker):
    """Slow on the first half of its micro-batches."""

    @override
    def change(self, drawn, world, lasts, rng_of):
        half = slice(drawn.forward_s.shape[2] // 2)
        for duration_s in (drawn.forward_s, drawn.backward_s):
            duration_s[self.stage, :, half, :, self.dp_rank] *= self.slowdown


def test_reason_against_a_worker_says_what_it_lacks():
    found = denied(SlowWorkerDetector(), case_of(window_of(made(SlowOnSome(1, 0, 2.0)))))
    assert "the slowest, dp 1, stage 0, takes 1.5x as long" in found.reason
    assert found.reason.endswith(
        "and its shortest computations 1.01x: it is slow in some of them only"
    )


def test_parts_without_a_layer_do_not_hide_a_slow_worker():
    # As FSDP2 records them: some parts of a forward, between two gathers, take next to nothing.
    window = window_of(made(SlowWorker(1, 0, 1.6), pp=1))
    trace = window.trace
    is_part = np.isin(trace.mb_id, [0, 7])
    parts = replace(trace, duration_s=np.where(is_part, 2e-5, trace.duration_s))
    found = suspected(SlowWorkerDetector(), case_of(replace(window, trace=parts)))
    assert found.evidence["workers"] == [[1, 0]]


def test_slowest_of_healthy_workers_is_not_named_beside_a_slow_one():
    spread = [SlowWorker(dp, stage, 1 + 0.02 * ((5 * dp + 3 * stage) % 5))
              for dp in range(4) for stage in range(4) if (dp, stage) != (1, 2)]  # fmt: skip
    found = only_finding(of(SlowWorker(1, 2, 1.8), *spread))
    assert found.evidence["workers"] == [[1, 2]]


@pytest.mark.parametrize(
    "job",
    [
        made(SlowWorker(1, 0, 1.3), dp=2, pp=1),
        made(MixedGpus(0.5, 1.3, choice=3), dp=8, pp=1, tp=8),
        made(MixedGpus(0.65, 1.3, choice=3), dp=8, pp=4, tp=4),
        made(MixedGpus(0.65, 1.3, choice=5), dp=4, pp=4, tp=4),
        made(SlowHost("host-003", 1.3), dp=16, pp=3, tp=1),
        made(SlowHost("host-001", 1.5), dp=2, tp=2),
    ],
    ids=[
        "one of two replicas", "half of the GPUs", "most GPUs",
        "most GPUs, others", "a host of half a stage", "a host of whole stages",
    ],
)  # fmt: skip
def test_slow_hardware_is_no_stage_though_half_or_more_is_slow(job):
    found = only_finding(diagnosed(window_of(job)))
    assert found.cause == "slow-worker"
    assert set(found.culprits) == set(job.faults[0].culprits(job.world))
    assert found.cost == pytest.approx(costs_of(job, range(NUM_STEPS))[0], abs=0.01)
    slowdown = job.faults[0].slowdown
    assert found.evidence["slowdown_against_peers"] == pytest.approx(slowdown, abs=0.02)


def test_two_ranks_of_one_stage_slow_in_turn_are_workers_and_no_stage():
    job = made(
        SlowWorker(0, 1, 1.5, when=FaultSteps(0, 8)),
        SlowWorker(1, 1, 1.5, when=FaultSteps(8)),
        dp=2,
    )
    found = only_finding(diagnosed(window_of(job)))
    assert found.cause == "slow-worker"
    assert {(each.dp_rank, each.stage) for each in found.culprits} == {(0, 1), (1, 1)}
    assert found.evidence["slowdown_against_peers"] == pytest.approx(1.5, abs=0.02)


def test_a_worker_that_becomes_slow_has_onset_and_cost_of_its_steps():
    job = made(SlowWorker(1, 3, 1.6, when=FaultSteps(10)))
    found = only_finding(diagnosed(window_of(job)))
    assert found.onset_step == 10
    assert found.evidence["steps"] == list(range(10, 16))
    assert found.cost == pytest.approx(costs_of(job, range(NUM_STEPS))[0], abs=0.005)
    assert ", since step 10; it costs" in found.sentence


def test_a_throttling_gpu_is_a_progressive_slow_worker():
    job = made(ThrottlingGpu(0, 2, 2.0, ramp_steps=10, when=FaultSteps(2)))
    found = only_finding(diagnosed(window_of(job)))
    assert (found.cause, found.persistence) == ("slow-worker", "progressive")
    assert found.cost == pytest.approx(costs_of(job, range(NUM_STEPS))[0], abs=0.01)


def test_the_clock_of_a_throttling_gpu_is_evidence():
    job = made(ThrottlingGpu(0, 2, 2.0, ramp_steps=1, when=FaultSteps(8)), records_gpus=True)
    evidence = only_finding(diagnosed(window_of(job))).evidence
    assert evidence["sm_clock_mhz"] < 0.7 * evidence["sm_clock_mhz_of_peers"]
    assert evidence["temperature_c"] > evidence["temperature_c_of_peers"] + 10


def test_the_power_and_the_last_error_of_a_gpu_are_evidence():
    window = window_of(made(SlowWorker(1, 3, 1.6)))
    trace = window.trace
    tells = trace.optype == OP_CODES["optimizer"]
    is_slow = tells & (trace.dp_rank == 1) & (trace.stage == 3)
    power_w = np.where(is_slow, 310, np.where(tells, 650, -1))
    xid = np.where(is_slow & (trace.step == 3), 63, np.where(is_slow & (trace.step == 5), 79, -1))
    told = replace(window, trace=replace(trace, power_w=power_w, xid=xid))
    evidence = only_finding(diagnosed(told)).evidence
    assert (evidence["power_w"], evidence["power_w_of_peers"]) == (310, 650)
    assert evidence["xid"] == 79
    assert "xid" not in only_finding(diagnosed(window)).evidence


def test_a_host_with_several_slow_workers_is_one_culprit():
    job = made(SlowHost("host-001", 1.4), dp=8, pp=2, tp=2)
    found = only_finding(diagnosed(window_of(job)))
    assert found.culprits == (Culprit(host="host-001"),)
    assert found.evidence["num_workers"] == 4
    assert found.sentence.startswith(
        "host-001 (ranks 8 to 15, all 4 of its workers) is 1.4x slower than its peers"
    )


def test_a_slow_worker_of_a_long_stage_and_the_stage_are_both_named():
    job = made(SlowWorker(0, 3, 1.5), LongLastStage())
    seen = diagnosed(window_of(job))
    assert {found.cause for found in findings_of(seen)} == {"slow-worker", "stage-imbalance"}
    costs = dict(
        zip(("slow-worker", "stage-imbalance"), costs_of(job, range(NUM_STEPS)), strict=True)
    )
    for found in findings_of(seen):
        assert found.cost == pytest.approx(costs[found.cause], abs=0.02)


@pytest.mark.parametrize(("pp", "slowdown"), [(1, 1.2), (1, 1.5), (4, 1.15), (4, 1.5)])
def test_a_slow_worker_is_found_among_uneven_sequences(pp, slowdown):
    job = made(SlowWorker(2, 0, slowdown), SequenceImbalance(), dp=8, pp=pp)
    found = slowness(case_of(window_of(job)))
    assert found is not None
    assert np.flatnonzero(found.significance >= 1).tolist() == [2 * pp]
    assert found.stretches.mean[2 * pp] == pytest.approx(slowdown, abs=0.03)


def test_a_single_slow_step_is_not_enough():
    seen = of(SlowWorker(1, 1, 3.0, when=FaultSteps(4, 1)))
    assert seen.findings == ()
    assert "no worker is slower" in reason_against(seen, "slow-worker")


def test_with_one_replica_a_worker_is_compared_with_its_own_history():
    found = only_finding(of(SlowWorker(0, 2, 1.5, when=FaultSteps(10)), dp=1))
    assert [(each.dp_rank, each.stage) for each in found.culprits] == [(0, 2)]
    assert found.onset_step == 10
    assert "slower than before" in found.sentence


def test_with_one_replica_an_always_slow_worker_may_be_a_long_stage():
    seen = of(SlowWorker(0, 0, 1.5), dp=1)
    found = only_finding(seen)
    assert (found.cause, found.culprits) == ("stage-imbalance", (Culprit(stage=0),))
    assert "with one dp rank" in reason_against(seen, "slow-worker")


def test_the_only_worker_has_nothing_to_be_compared_with():
    seen = of(SlowWorker(0, 0, 1.5), dp=1, pp=1)
    assert seen.findings == ()
    assert "with one dp rank" in reason_against(seen, "slow-worker")


def test_with_one_replica_a_backward_that_becomes_slow_is_said_to_be_one():
    found = only_finding(of(SlowBackward(0, 2, 2.0, when=FaultSteps(9)), dp=1))
    assert (found.cause, found.onset_step) == ("slow-worker", 9)
    assert "takes 1.00x as long in the forward and 2.0x in the backward as before" in found.sentence


def test_sentence_gives_a_range_for_unequal_ratios():
    found = only_finding(of(SlowWorker(1, 2, 1.8), SlowWorker(3, 0, 1.4)))
    assert "are 1.4x to 1.8x slower than their peers" in found.sentence
    assert found.evidence["workers"] == [[1, 2], [3, 0]]
    assert found.evidence["slowdowns_against_peers"] == pytest.approx([1.8, 1.4], abs=0.02)


@pytest.mark.parametrize(
    ("other", "is_named"),
    [
        (SlowWorker(2, 1, 1.3, when=FaultSteps(4, 3)), False),
        (SlowWorker(2, 1, 1.8, when=FaultSteps(4, 6)), True),
        (SlowWorker(2, 1, 1.08), True),
    ],
    ids=["brief and little", "brief", "little"],
)
def test_brief_slowness_beside_a_slow_worker_is_not_named(other, is_named):
    found = only_finding(of(SlowWorker(1, 2, 1.9), other))
    assert ([2, 1] in found.evidence["workers"]) == is_named


def test_a_forward_alone_may_be_long_because_of_the_host():
    found = only_finding(diagnosed(window_of(made(SlowForward(1, 0, 1.5)))))
    assert "its GPU is slow or its host late, which look alike without launch times" in (
        found.sentence
    )
    assert found.confidence <= 0.9
    backward = only_finding(diagnosed(window_of(made(SlowBackward(1, 0, 1.5)))))
    assert "launch times" not in backward.sentence
