"""Writes a simulated job to trace files with their truth, or pushes it to a server.

A server gets the operations as real workers would push them.
"""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from rich.progress import Progress

from app.cli import pushing
from app.cli.ingest_client import IngestClient, default_ranks
from app.cli.output import write_json
from app.cli.pushing import PushTimeline, WallClock, ordered_timeline
from app.cli.terminal import stderr_console
from app.errors import InvalidRequest
from app.synth.job import SimulatedJob, SimulatedRun, StepProgress
from app.synth.record import JOB_START_NS, RecordedSteps
from app.synth.truth import truth_of
from app.trace.readers.published import meta, trace_files
from app.trace.window import Trace


def write_traces(attempts: Sequence[SimulatedRun], out: Path, progress: StepProgress) -> list[str]:
    """Write a trace, its meta file and its truth of every run; returns a line per run.

    The first run goes to `out`, the n-th to a file whose name ends in -n.
    """
    lines = []
    for attempt in attempts:
        is_first = attempt.epoch == 1
        path = out if is_first else out.with_name(f"{out.stem}-{attempt.epoch}{out.suffix}")
        record = attempt.job.record(attempt.steps, progress=progress)
        trace, origin_ns = _trace_of(record)
        trace_files.write(trace, record.job, path, hosts=record.hosts, origin_ns=origin_ns)
        truth = {**truth_of(attempt.job, attempt.steps, progress), "epoch": attempt.epoch}
        write_json(truth, path.with_name(f"truth-{meta.trace_name(path)}.json"))
        lines.append(f"{path}: {record.num_ops:,} operations in {len(record.steps):,} steps")
    return lines


def _trace_of(record: RecordedSteps) -> tuple[Trace, dict[int, int]]:
    """The record as a trace, and what the times of each step count from."""
    steps = np.unique(record.step).tolist()
    trace, origin_ns = record.trace(steps)
    return trace, dict(zip(steps, origin_ns, strict=True))


# Each worker has a thread and a connection of its own, as in training.
MAX_WORKERS = 1_024

# Simulated and held in memory at a time.
_MAX_STEPS_AT_ONCE = 16
_MAX_OPS_AT_ONCE = 200_000


def push_runs(
    attempts: Sequence[SimulatedRun], server: IngestClient, speed: float, clock: WallClock
) -> None:
    """Push all runs, and wait until the server has accepted everything."""
    for attempt in attempts:
        if (num_workers := attempt.job.parallelism.num_workers) > MAX_WORKERS:
            raise InvalidRequest(
                f"{num_workers:,} workers would push at once, more than {MAX_WORKERS:,}: ask for "
                "fewer, or write a file with --out"
            )
    with (
        pushing.client_warnings() as warnings,
        Progress(console=stderr_console(), transient=True) as progress,
    ):
        bar = progress.add_task("training", total=sum(len(attempt.steps) for attempt in attempts))
        for attempt in attempts:
            for num_steps in _push_run(attempt, server, speed, clock, warnings):
                progress.advance(bar, num_steps)


def _push_run(
    attempt: SimulatedRun, server: IngestClient, speed: float, clock: WallClock, warnings: list[str]
) -> Iterator[int]:
    """Yields the number of steps of each part that is pushed and accepted."""
    simulated = attempt.job
    run_key = f"simulate-{time.time_ns()}"
    with server.recorders(
        simulated.job,
        default_ranks(simulated.job),
        run_key=run_key,
        epoch=server.register(simulated.job, run_key),
        hosts=simulated.world.hosts,
        max_ops=_MAX_OPS_AT_ONCE + simulated.structure.num_ops * _MAX_STEPS_AT_ONCE,
    ) as recorders:
        begin_ns, began_s = time.time_ns(), clock.now_s()
        for record in _records(simulated, attempt.steps):
            pushing.push(
                timeline_of(record),
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


def timeline_of(record: RecordedSteps) -> PushTimeline:
    """The record with times from the start of the job."""
    start_ns = record.start_ns - JOB_START_NS
    return ordered_timeline(
        _trace_of(record)[0],
        start_ns=start_ns,
        end_ns=start_ns + record.duration_ns,
        pp_size=record.job.parallelism.pp_size,
    )
