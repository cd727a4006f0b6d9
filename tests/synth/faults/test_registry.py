"""What holds for every fault, and who is to blame for it."""

from dataclasses import replace

import numpy as np
import pytest

from app.errors import InvalidRequest
from app.result.finding import Culprit
from app.synth.faults.fault import FaultSteps, NoFault
from app.synth.faults.interruptions import (
    AllocatorStalls,
    CheckpointStalls,
    CpuContention,
    DataLoading,
    GcPauses,
    JobStop,
    PlannedGc,
    SilentWorker,
)
from app.synth.faults.registry import FAULTS
from app.synth.faults.sequence_imbalance import SequenceImbalance
from app.synth.faults.slow_compute import (
    LongLastStage,
    MixedGpus,
    SlowHost,
    SlowStage,
    SlowWorker,
    ThrottlingGpu,
    UniformSlowdown,
)
from app.synth.faults.slow_network import FlappingNic, SlowDpGroup, SlowLink, SlowNic
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from tests.synth.faulty_jobs import DP, PP, STEPS, changed, costs_of, drawn, made, step_axis

EVERYWHERE = {(dp_rank, stage) for dp_rank in range(DP) for stage in range(PP)}
OF_STAGE_1 = {(dp_rank, 1) for dp_rank in range(DP)}
# Ranks 2 and 3 of stage 0; two GPUs a host.
ON_HOST_1 = {(2, 0), (3, 0)}

# A fault of each kind, and the workers whose operations it may change.
KINDS = [
    (SlowWorker(2, 1, 1.6), {(2, 1)}),
    (ThrottlingGpu(2, 1, 1.6, ramp_steps=5), {(2, 1)}),
    (SlowHost("host-001", 1.5), ON_HOST_1),
    (MixedGpus(0.3, 1.5), None),
    (SlowStage(1, 1.5), OF_STAGE_1),
    (LongLastStage(), {(dp_rank, 2) for dp_rank in range(DP)}),
    (SequenceImbalance(), EVERYWHERE),
    (SequenceImbalance(8_192, 0.3, is_sent=True), EVERYWHERE),
    (GcPauses(0.2, is_sent=True), EVERYWHERE),
    (GcPauses(0.5, workers=((1, 2), (0, 0)), is_sent=True), {(1, 2), (0, 0)}),
    (PlannedGc(4), EVERYWHERE),
    (PlannedGc(4, in_forward=True, is_sent=True), EVERYWHERE),
    (SlowLink(2, 1, 50.0), {(2, 1), (2, 2)}),
    (SlowNic(2, 1, 50.0), {(2, 0), (2, 2)} | OF_STAGE_1),
    (SlowDpGroup(1, 20.0), OF_STAGE_1),
    (FlappingNic(2, 1, 80.0), {(2, 0), (2, 2)} | OF_STAGE_1),
    (DataLoading(is_sent=True), EVERYWHERE),
    (DataLoading("host-001"), ON_HOST_1),
    (AllocatorStalls(((2, 1), (0, 1))), {(2, 1), (0, 1)}),
    (CpuContention("host-001"), ON_HOST_1),
    (CheckpointStalls(4), EVERYWHERE),
    (CheckpointStalls(4, host="host-001"), ON_HOST_1),
    (JobStop(((2, 1),)), {(2, 1)}),
    (UniformSlowdown(1.3), EVERYWHERE),
    (SilentWorker(2, 1), {(2, 1)}),
]
IDS = [f"{fault.name}-{number}" for number, (fault, _) in enumerate(KINDS)]
every_kind = pytest.mark.parametrize(("fault", "workers"), KINDS, ids=IDS)
every_fault = pytest.mark.parametrize("fault", [fault for fault, _ in KINDS], ids=IDS)


def test_every_registered_fault_is_tried_here():
    assert {fault.name for fault, _ in KINDS} == set(FAULTS)


@every_fault
def test_a_fault_strikes_only_while_it_lasts(fault):
    lasting = replace(fault, when=FaultSteps(6, 8))
    for name, differs in changed(made(lasting), made()).items():
        by_step = np.moveaxis(differs, step_axis(name), 0).reshape(len(STEPS), -1)
        assert set(np.flatnonzero(by_step.any(axis=1))) <= set(range(6, 14)), name
    _, annotations = drawn(made(lasting))
    assert {annotation.step for annotation in annotations} <= set(range(6, 14))


@every_kind
def test_a_fault_strikes_only_in_its_place(fault, workers):
    job = made(fault)
    if workers is None:
        hosts = {culprit.host for culprit in fault.culprits(job.world)}
        workers = {worker for worker, host in job.world.hosts.items() if host in hosts}
    for name, differs in changed(job, made()).items():
        if name in ("tokens", "seq_len_sq"):
            continue
        is_of_dp_group = differs.shape[-1] == 1
        for stage, *_, dp_rank in np.argwhere(differs).tolist():
            hit = {(each, stage) for each in range(DP)} if is_of_dp_group else {(dp_rank, stage)}
            assert hit <= workers, name


@every_fault
def test_a_fault_costs_something_while_it_lasts_and_nothing_before(fault):
    job = made(replace(fault, when=FaultSteps(4)))
    (before,), (after,) = costs_of(job, range(4)), costs_of(job, range(4, 20))
    if not fault.is_slow:
        assert (before, after) == (None, None)
    else:
        assert before == 0.0
        assert after is not None
        assert after > 0.005


@every_fault
def test_the_same_step_is_struck_in_the_same_way_whoever_makes_it(fault):
    job = made(replace(fault, when=FaultSteps(2)))
    together, alone = drawn(job)[0], drawn(job, [7])[0]
    for name, values in together.items():
        np.testing.assert_array_equal(values.take([7], axis=step_axis(name)), alone[name])


@every_fault
def test_the_chance_of_a_fault_is_its_own_whatever_other_faults_there_are(fault):
    one = drawn(made(NoFault(), fault))[0]
    two = drawn(made(SlowStage(0, 1.0), fault))[0]
    for name, values in one.items():
        np.testing.assert_array_equal(values, two[name])


def test_faults_of_one_worker_multiply():
    both = drawn(made(SlowWorker(2, 1, 1.5), SlowStage(1, 2.0)))[0]["forward_s"]
    ratio = both / drawn(made())[0]["forward_s"]
    np.testing.assert_allclose(ratio[1, ..., 2], 3.0)
    np.testing.assert_allclose(ratio[1, ..., 3], 2.0)
    np.testing.assert_allclose(ratio[0], 1.0)


@pytest.mark.parametrize(
    ("fault", "culprits"),
    [
        (SlowWorker(2, 1, 1.6), [{"dp_rank": 2, "stage": 1, "host": "host-003"}]),
        (SlowHost("host-001", 1.6), [{"host": "host-001"}]),
        (SlowStage(1, 1.6), [{"stage": 1}]),
        (LongLastStage(), [{"stage": 2}]),
        (SequenceImbalance(), []),
        (GcPauses(), []),
        (GcPauses(workers=((0, 0),)), [{"dp_rank": 0, "stage": 0, "host": "host-000"}]),
        (
            SlowLink(2, 0, 9.0),
            [
                {"dp_rank": 2, "stage": 0, "host": "host-001"},
                {"dp_rank": 2, "stage": 1, "host": "host-003"},
            ],
        ),
        (SlowNic(2, 1, 9.0), [{"dp_rank": 2, "stage": 1, "host": "host-003"}]),
        (SlowDpGroup(1, 9.0), [{"stage": 1}]),
        (DataLoading("host-001"), [{"host": "host-001"}]),
        (DataLoading(), []),
        (UniformSlowdown(1.2), []),
    ],
)
def test_who_is_to_blame(fault, culprits):
    assert [culprit.as_json() for culprit in fault.culprits(made(fault).world)] == culprits


def test_the_only_worker_of_a_host_is_named_as_a_worker():
    job = SimulatedJob(Parallelism(2, 2, tp_size=8), 2, faults=(SlowHost("host-002", 1.5),))
    assert job.faults[0].culprits(job.world) == (Culprit(0, 1, "host-002"),)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SlowWorker(0, 0, 0.0), "above 0"),
        (lambda: SlowWorker(0, 0, float("nan")), "above 0"),
        (lambda: SlowStage(0, float("inf")), "at most"),
        (lambda: LongLastStage(forward=-1.0), "above 0"),
        (lambda: ThrottlingGpu(0, 0, 1.5, ramp_steps=0), "ramp-steps is 0"),
        (lambda: MixedGpus(0.0, 1.5), "share is 0.0"),
        (lambda: GcPauses(rate=1.5), "rate is 1.5"),
        (lambda: GcPauses(pause_s=0.0), "seconds"),
        (lambda: PlannedGc(0), "every-steps is 0"),
        (lambda: PlannedGc(is_sent=True), "give in-forward"),
        (lambda: DataLoading(delay_s=float("nan")), "seconds"),
        (lambda: AllocatorStalls(()), "without a worker"),
        (lambda: SequenceImbalance(max_length=0), "max-length is 0"),
        (lambda: FaultSteps(-1), "from step -1"),
        (lambda: FaultSteps(0, 0), "0 steps"),
    ],
)
def test_a_severity_that_makes_no_sense_is_refused(make, message):
    with pytest.raises(InvalidRequest, match=message):
        make()


@pytest.mark.parametrize(
    ("fault", "parallelism", "message"),
    [
        (SlowWorker(4, 0, 1.5), Parallelism(4, 3), "dp rank 4: this job has 0 to 3"),
        (SlowWorker(0, -1, 1.5), Parallelism(4, 3), "stage -1: this job has 0 to 2"),
        (SlowStage(3, 1.5), Parallelism(4, 3), "stage 3"),
        (SlowHost("host-9", 1.5), Parallelism(4, 3), "host-9: this job runs on host-000, "),
        (DataLoading("host-9"), Parallelism(4, 3), "host-9"),
        (SlowLink(0, 2, 9.0), Parallelism(4, 3), "stage 2 to the next"),
        (SlowLink(0, 0, 9.0), Parallelism(4, 1), "stage 0 to the next one: this job has 1 stage$"),
        (SlowDpGroup(0, 9.0), Parallelism(1, 3), "exchanges nothing"),
        (SlowNic(0, 0, 9.0), Parallelism(1, 1), "no link"),
        (FlappingNic(0, 0, 9.0), Parallelism(1, 1), "no link"),
        (GcPauses(workers=((0, 7),)), Parallelism(4, 3), "stage 7"),
        (AllocatorStalls(((9, 0),)), Parallelism(4, 3), "dp rank 9"),
        (MixedGpus(1.0, 1.5), Parallelism(4, 3), "all of the job's 6 hosts"),
        (SilentWorker(0, 3), Parallelism(4, 3), "stage 3"),
    ],
)
def test_a_place_that_the_job_does_not_have_is_refused(fault, parallelism, message):
    with pytest.raises(InvalidRequest, match=message):
        made(fault, parallelism=parallelism).make([0])
