"""Three made jobs that train on and on, each worker pushing over HTTP as a real one would."""

import threading
import time
from dataclasses import dataclass, replace

import numpy as np
import paceline_client

from app.synth.costs import Costs
from app.synth.faults import Fault, LongLastStage, SlowWorker
from app.synth.run import MadeJob
from app.trace.job import Parallelism
from app.trace.ops import OpTypes
from app.trace.window import Trace

_NS = 1_000_000_000
_GPUS_A_HOST = 8


@dataclass(frozen=True, slots=True)
class LiveJob:
    """A made job under the id that it is pushed as, and what there is to see in it."""

    job_id: str
    made: MadeJob
    to_see: str


def demo_jobs() -> list[LiveJob]:
    """A healthy job, one with a slow worker, and one whose last stage is too long."""

    def job(job_id: str, to_see: str, seed: int, *faults: Fault) -> LiveJob:
        made = MadeJob(
            Parallelism(8, 4, tp_size=8),
            8,
            name=job_id,
            costs=replace(Costs(), forward_s=0.035, backward_s=0.07, noise=0.015),
            faults=faults,
            seed=seed,
        )
        return LiveJob(job_id, made, to_see)

    return [
        job("demo-healthy", "runs as it should, at about 1.01x", 1),
        job("demo-slow-worker", "dp 3, stage 1 computes 1.6x as long", 2, SlowWorker(3, 1, 1.6)),
        job("demo-long-last-stage", "stage 3 also computes the loss", 3, LongLastStage()),
    ]


def push(job: LiveJob, url: str, token: str, stop: threading.Event) -> None:
    """Train until told to stop, at the pace of the job's own steps; then end the job."""
    sizes = job.made.parallelism
    run_key = f"demo-{time.time_ns()}"
    recorders = {
        (dp_rank, stage): paceline_client.start(
            url=url,
            token=token,
            job=job.job_id,
            run_key=run_key,
            framework="made",
            rank=sizes.usual_rank(dp_rank, stage),
            dp_rank=dp_rank,
            stage=stage,
            dp_size=sizes.dp_size,
            pp_size=sizes.pp_size,
            tp_size=sizes.tp_size,
            host=f"host-{sizes.usual_rank(dp_rank, stage) // _GPUS_A_HOST:03d}",
        )
        for dp_rank in range(sizes.dp_size)
        for stage in range(sizes.pp_size)
    }
    _train(job.made, recorders, stop)
    for recorder in recorders.values():
        recorder.flush(1.0)
    paceline_client.end_job(url, token, job.job_id)


def _train(
    made: MadeJob,
    recorders: dict[tuple[int, int], paceline_client.Recorder],
    stop: threading.Event,
) -> None:
    step = 0
    began_ns = time.time_ns()
    while not stop.is_set():
        trace = made.make_step(step)
        ends_ns = began_ns + int((trace.start_s + trace.duration_s).max() * _NS)
        if stop.wait(max(0.0, (ends_ns - time.time_ns()) / _NS)):
            return
        for (dp_rank, stage), recorder in recorders.items():
            rows = np.flatnonzero((trace.dp_rank == dp_rank) & (trace.stage == stage))
            _record(recorder, trace.select(rows), began_ns, made.job.op_types)
            recorder.step_done(step)
        step, began_ns = step + 1, ends_ns


def _record(
    recorder: paceline_client.Recorder, ops: Trace, began_ns: int, op_types: OpTypes
) -> None:
    start_ns = began_ns + np.rint(ops.start_s * _NS).astype(np.int64)
    duration_ns = np.rint(ops.duration_s * _NS).astype(np.int64)
    columns = (ops.optype, ops.step, start_ns, duration_ns, ops.seq_id, ops.mc, ops.mb_id)
    for code, *numbers in zip(*(column.tolist() for column in columns), strict=True):
        recorder.record(op_types.name(code), *numbers)
