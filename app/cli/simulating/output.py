"""Writes a simulated job to trace files with their truth, or pushes it to a server.

A server gets the operations as real workers would push them.
"""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import Progress

from app.cli import pushing
from app.cli.ingest_client import IngestClient, default_ranks
from app.cli.output import write_json
from app.cli.pushing import PacingClock, PushTimeline, ordered_timeline
from app.cli.terminal import stderr_console
from app.errors import InvalidRequest
from app.synth.job import SimulatedJob, StepProgress
from app.synth.record import JOB_START_NS, RecordedSteps
from app.synth.restarts import SimulatedRun
from app.synth.truth import truth_of
from app.trace.readers.published import meta, trace_files
from app.trace.window import NS_PER_S, Ints, Trace


def write_traces(attempts: Sequence[SimulatedRun], out: Path, progress: StepProgress) -> list[str]:
    """Write a trace, its meta file and its truth for each run; returns a line about each.

    The first run goes to `out`, the n-th to a file whose name ends in -n.
    """
    lines = []
    for attempt in attempts:
        path = _path(out, attempt.epoch)
        record = attempt.job.record(attempt.steps, progress=progress)
        steps, _, first_ns = _began(record)
        origin_ns = dict(zip(steps.tolist(), first_ns.tolist(), strict=True))
        trace = trace_of(record)
        trace_files.write(trace, record.job, path, hosts=record.hosts, origin_ns=origin_ns)
        write_json(_truth_of_run(attempt, progress), truth_path(path))
        lines.append(f"{path}: {record.num_ops:,} operations in {len(record.steps):,} steps")
    return lines


def truth_path(trace_path: Path) -> Path:
    """truth-NAME.json beside trace-NAME.parquet."""
    return trace_path.with_name(f"truth-{meta.trace_name(trace_path)}.json")


def trace_of(record: RecordedSteps) -> Trace:
    """The record as a trace, with times from the first start of each step."""
    _, position, origin_ns = _began(record)
    columns = record.columns().items()
    return Trace(
        **{name: column for name, column in columns if not name.endswith("_ns")},
        start_s=(record.start_ns - origin_ns[position]) / NS_PER_S,
        duration_s=record.duration_ns / NS_PER_S,
    )


def _began(record: RecordedSteps) -> tuple[Ints, Ints, Ints]:
    """The steps, the step index of each row [rows], and each step's first start."""
    steps, position = np.unique(record.step, return_inverse=True)
    origin_ns = np.full(steps.size, np.iinfo(np.int64).max)
    np.minimum.at(origin_ns, position, record.start_ns)
    return steps, position, origin_ns


def _truth_of_run(attempt: SimulatedRun, progress: StepProgress) -> dict[str, Any]:
    return {**truth_of(attempt.job, attempt.steps, progress), "epoch": attempt.epoch}


def _path(out: Path, epoch: int) -> Path:
    return out if epoch == 1 else out.with_name(f"{out.stem}-{epoch}{out.suffix}")


# Each worker has a thread and a connection of its own, as in training.
MAX_WORKERS = 1_024

# Simulated and held in memory at a time.
_MAX_STEPS_AT_ONCE = 16
_MAX_OPS_AT_ONCE = 200_000


def push_runs(
    attempts: Sequence[SimulatedRun], server: IngestClient, speed: float, clock: PacingClock
) -> None:
    """Push all runs, and wait until the server has accepted everything."""
    for attempt in attempts:
        if (num_workers := attempt.job.parallelism.num_workers) > MAX_WORKERS:
            raise InvalidRequest(
                f"{num_workers:,} workers would push at once, more than {MAX_WORKERS:,}: ask for "
                "fewer, or write a file with --out"
            )
    with (
        pushing.ClientLog() as client_log,
        Progress(console=stderr_console(), transient=True) as progress,
    ):
        bar = progress.add_task("training", total=sum(len(each.steps) for each in attempts))
        for attempt in attempts:
            for num_steps in _push_run(attempt, server, speed, clock, client_log.messages):
                progress.advance(bar, num_steps)


def _push_run(
    attempt: SimulatedRun,
    server: IngestClient,
    speed: float,
    clock: PacingClock,
    warnings: list[str],
) -> Iterator[int]:
    """Yields the number of steps of each part that is pushed and accepted."""
    simulated = attempt.job
    run_key = f"simulate-{time.time_ns()}"
    recorders = server.recorders(
        simulated.job,
        default_ranks(simulated.job),
        run_key=run_key,
        epoch=server.register(simulated.job, run_key),
        hosts=simulated.world.hosts,
        max_ops=_MAX_OPS_AT_ONCE + simulated.structure.num_ops * _MAX_STEPS_AT_ONCE,
    )
    begin_ns, began_s = time.time_ns(), clock.now_s()
    try:
        for record in _records(simulated, attempt.steps):
            pushing.push(
                _timeline(record),
                recorders,
                begin_ns=begin_ns,
                speed=speed,
                clock=clock,
                progress=lambda num_ops: None,
                op_types=simulated.job.op_types,
                began_s=began_s,
            )
            pushing.deliver(recorders, warnings)
            yield len(record.steps)
    finally:
        for recorder in recorders:
            recorder.close(timeout_s=0.0)


def _records(simulated: SimulatedJob, steps: Sequence[int]) -> Iterator[RecordedSteps]:
    """Records of some steps at a time; unrecorded steps between them take time too."""
    fit = _MAX_OPS_AT_ONCE // (simulated.structure.num_ops * simulated.parallelism.dp_size)
    size = max(1, min(_MAX_STEPS_AT_ONCE, fit))
    parts = [steps[first : first + size] for first in range(0, len(steps), size)]
    since_s = 0.0
    for part, after in zip(parts, [*parts[1:], ()], strict=True):
        record = simulated.record(part, since_s=since_s)
        yield record
        missing = after[0] - part[-1] - 1 if after else 0
        step_s = (record.ended_s - since_s) / (part[-1] - part[0] + 1)
        since_s = record.ended_s + missing * step_s


def _timeline(record: RecordedSteps) -> PushTimeline:
    """The record with times from the start of the job."""
    start_ns = record.start_ns - JOB_START_NS
    return ordered_timeline(
        trace_of(record),
        start_ns=start_ns,
        end_ns=start_ns + record.duration_ns,
        pp_size=record.job.parallelism.pp_size,
    )
