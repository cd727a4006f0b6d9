"""The four simulated jobs of `paceline demo`.

Each worker pushes over HTTP as a real one would, until stopped.
"""

import threading
import time
from dataclasses import dataclass, replace

import paceline_client

from app.synth.cluster import Cluster
from app.synth.costs import OperationCosts
from app.synth.faults.fault import Fault
from app.synth.faults.sequence_imbalance import SequenceImbalance
from app.synth.faults.slow_compute import LongLastStage, SlowWorker
from app.synth.job import SimulatedJob
from app.synth.record import JOB_START_NS, RecordedSteps
from app.trace.job import Parallelism
from app.trace.ops import OpTypes

_NS = 1_000_000_000
_HOSTS_PER_JOB = 32


@dataclass(frozen=True, slots=True)
class DemoJob:
    """A simulated job, its id, and one sentence on what it shows."""

    job_id: str
    simulated: SimulatedJob
    to_see: str


def demo_jobs() -> list[DemoJob]:
    """A healthy job, and three slow ones: slow worker, long last stage, uneven documents."""

    def job(job_id: str, to_see: str, seed: int, *faults: Fault) -> DemoJob:
        simulated = SimulatedJob(
            Parallelism(8, 4, tp_size=8),
            8,
            name=job_id,
            costs=replace(OperationCosts(), forward_s=0.035, backward_s=0.07, noise=0.015),
            faults=faults,
            seed=seed,
            # Jobs that run at the same time use different hosts.
            cluster=Cluster(first_host=_HOSTS_PER_JOB * (seed - 1)),
        )
        return DemoJob(job_id, simulated, to_see)

    return [
        job("demo-healthy", "runs as it should, at about 1.01x", 1),
        job("demo-slow-worker", "dp 3, stage 1 computes 1.6x as long", 2, SlowWorker(3, 1, 1.6)),
        job("demo-long-last-stage", "stage 3 also computes the loss", 3, LongLastStage()),
        job(
            "demo-sequence-lengths",
            "documents differ in length: another dp rank is slow in every step",
            4,
            SequenceImbalance(is_sent=True),
        ),
    ]


def push_demo_job(job: DemoJob, url: str, token: str, stop: threading.Event) -> None:
    """Push steps in real time until stopped, then end the job."""
    sizes, hosts = job.simulated.parallelism, job.simulated.world.hosts
    run_key = f"demo-{time.time_ns()}"
    recorders = {
        (dp_rank, stage): paceline_client.start(
            url=url,
            token=token,
            job=job.job_id,
            run_key=run_key,
            framework="simulated",
            rank=sizes.usual_rank(dp_rank, stage),
            dp_rank=dp_rank,
            stage=stage,
            dp_size=sizes.dp_size,
            pp_size=sizes.pp_size,
            tp_size=sizes.tp_size,
            host=hosts[dp_rank, stage],
        )
        for dp_rank in range(sizes.dp_size)
        for stage in range(sizes.pp_size)
    }
    _train(job.simulated, recorders, stop)
    for recorder in recorders.values():
        recorder.flush(1.0)
    paceline_client.end_job(url, token, job.job_id)


def _train(
    simulated: SimulatedJob,
    recorders: dict[tuple[int, int], paceline_client.Recorder],
    stop: threading.Event,
) -> None:
    step, began_ns = 0, time.time_ns()
    while not stop.is_set():
        record = simulated.record([step])
        later_ns = began_ns - JOB_START_NS
        ends_ns = later_ns + int((record.start_ns + record.duration_ns).max())
        if stop.wait(max(0.0, (ends_ns - time.time_ns()) / _NS)):
            return
        for part in record.parts():
            recorder = recorders[part.dp_rank, part.stage]
            _record(recorder, record, part.rows, later_ns, simulated.job.op_types)
            recorder.step_done(step)
        step, began_ns = step + 1, ends_ns


def _record(
    recorder: paceline_client.Recorder,
    record: RecordedSteps,
    rows: slice,
    later_ns: int,
    op_types: OpTypes,
) -> None:
    """Record a worker's operations, shifted by `later_ns`."""
    start_ns = record.start_ns[rows] + later_ns
    columns = (
        record.optype[rows], record.step[rows], start_ns, record.duration_ns[rows],
        record.seq_id[rows], record.mc[rows], record.mb_id[rows],
    )  # fmt: skip
    attributes = {
        name: column[rows].tolist()
        for name in ("tokens", "seq_len_sq")
        if (column := getattr(record, name)) is not None
    }
    for row, (code, *numbers) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        more = {name: values[row] for name, values in attributes.items() if values[row] >= 0}
        recorder.record(op_types.name(code), *numbers, **more)
