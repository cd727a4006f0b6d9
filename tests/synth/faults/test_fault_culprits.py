"""Who is to blame for a fault, and what is no fault of a job."""

import pytest

from app.diagnosis.finding import Culprit
from app.errors import InvalidRequest
from app.synth.faults.fault import FaultSteps
from app.synth.faults.interruptions import (
    AllocatorStalls,
    DataLoading,
    GcPauses,
    PlannedGc,
    SilentWorker,
)
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
from tests.synth.faulty_jobs import made


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
    assert [each.as_json() for each in fault.culprits(made(fault).world)] == culprits


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
