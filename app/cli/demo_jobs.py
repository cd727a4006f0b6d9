"""The six simulated jobs of `paceline demo`, and of "Load the demo" on a server's first page.

Each worker pushes over HTTP as a real one would, until stopped. Two of the jobs share their hosts,
one of which computes slowly for both.
"""

import math
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import paceline_client

from app.cli.pushing import WallClock, push
from app.cli.simulating.output import timeline_of
from app.synth.cluster import Cluster
from app.synth.costs import OperationCosts
from app.synth.faults.fault import Fault, FaultSteps
from app.synth.faults.sequence_imbalance import SequenceImbalance
from app.synth.faults.slow_compute import LongLastStage, SlowWorker
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism

_NS = 1_000_000_000
_HOSTS_PER_JOB = 32
# Two windows of healthy steps come before each fault.
ONSET_STEP = 20
RECOVERY_STEP = 52
STALL_STEP = 24
_FOUR_STAGES = Parallelism(8, 4, tp_size=8)


@dataclass(frozen=True, slots=True)
class DemoJob:
    """A simulated job, its id, and one sentence on what it shows.

    From `stall_step` on no worker finishes anything; None if the job goes on.
    """

    job_id: str
    simulated: SimulatedJob
    to_see: str
    stall_step: int | None = None


def demo_jobs() -> list[DemoJob]:
    """A healthy job and five faulty ones, three of them with an onset in the middle of the run."""
    onset = FaultSteps(ONSET_STEP)
    until_recovery = FaultSteps(ONSET_STEP, RECOVERY_STEP - ONSET_STEP)
    # Workers of four GPUs, so that two jobs fit on a host of eight.
    half_hosts = Cluster(gpus_per_host=4, first_host=_HOSTS_PER_JOB)
    return [
        _job("demo-healthy", "runs as it should, at about 1.01x", 1),
        _job(
            "demo-slow-worker",
            f"dp 3, stage 1 on host-043 computes 1.6x as long from step {ONSET_STEP} on",
            2,
            SlowWorker(3, 1, 1.6, when=onset),
            parallelism=Parallelism(8, 4, tp_size=4),
            cluster=half_hosts,
        ),
        _job(
            "demo-recovers",
            f"the same host slows it down from step {ONSET_STEP} to {RECOVERY_STEP}",
            5,
            SlowWorker(3, 2, 1.6, when=until_recovery),
            parallelism=Parallelism(4, 4, tp_size=4),
            cluster=half_hosts,
        ),
        _job(
            "demo-stalls",
            f"hangs in step {STALL_STEP}: no worker sends anything any more",
            6,
            parallelism=Parallelism(4, 2, tp_size=8),
            stall_step=STALL_STEP,
        ),
        _job("demo-long-last-stage", "stage 3 also computes the loss", 3, LongLastStage()),
        _job(
            "demo-sequence-lengths",
            "documents differ in length: another dp rank is slow in every step",
            4,
            SequenceImbalance(is_sent=True),
        ),
    ]


def _job(
    job_id: str,
    to_see: str,
    seed: int,
    *faults: Fault,
    parallelism: Parallelism = _FOUR_STAGES,
    cluster: Cluster | None = None,
    stall_step: int | None = None,
) -> DemoJob:
    simulated = SimulatedJob(
        parallelism,
        8,
        name=job_id,
        costs=replace(OperationCosts(), forward_s=0.035, backward_s=0.07, noise=0.015),
        faults=faults,
        seed=seed,
        # Jobs that run at the same time use different hosts.
        cluster=cluster or Cluster(first_host=_HOSTS_PER_JOB * (seed - 1)),
    )
    return DemoJob(job_id, simulated, to_see, stall_step)


def push_demo_job(job: DemoJob, url: str, token: str, stop: threading.Event) -> None:
    """Push steps in real time until stopped, then end the job; a stalled job waits for that."""
    sizes, hosts = job.simulated.parallelism, job.simulated.world.hosts
    run_key = f"demo-{time.time_ns()}"
    recorders = [
        paceline_client.start(
            url=url,
            token=token,
            job=job.job_id,
            run_key=run_key,
            framework="simulated",
            rank=sizes.usual_rank(dp_rank, stage),
            dp_rank=dp_rank,
            stage=stage,
            **asdict(sizes),
            host=hosts[dp_rank, stage],
        )
        for dp_rank in range(sizes.dp_size)
        for stage in range(sizes.pp_size)
    ]
    _train(job, recorders, stop)
    for recorder in recorders:
        recorder.flush(1.0)
    paceline_client.end_job(url, token, job.job_id)


def _train(
    job: DemoJob, recorders: Sequence[paceline_client.Recorder], stop: threading.Event
) -> None:
    step, began_ns = 0, time.time_ns()
    while not stop.is_set():
        if step == job.stall_step:
            stop.wait()
            return
        timeline = timeline_of(job.simulated.record([step]))
        ends_ns = began_ns + int(timeline.end_ns[-1])
        if stop.wait(max(0.0, (ends_ns - time.time_ns()) / _NS)):
            return
        push(
            timeline,
            recorders,
            begin_ns=began_ns,
            speed=math.inf,  # all at once, at the step's end
            clock=WallClock(),
            progress=lambda _num_ops: None,
            op_types=job.simulated.job.op_types,
        )
        step, began_ns = step + 1, ends_ns
