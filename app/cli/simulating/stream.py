"""Push what a made job's workers record to a server, as they would."""

import time
from collections.abc import Iterator, Sequence

from rich.progress import Progress

from app.cli import pushing
from app.cli.console import notes
from app.cli.replay_clock import Clock, Timeline, laid_out
from app.cli.server import Server, usual_ranks
from app.cli.simulating.files import trace_of
from app.errors import InvalidRequest
from app.synth.instants import BEGAN_NS
from app.synth.life import Attempt
from app.synth.record import Record
from app.synth.run import MadeJob

# Each worker has a thread and a connection of its own, as in training.
MOST_WORKERS = 1_024

# Made and held at a time.
_STEPS_AT_ONCE = 16
_OPS_AT_ONCE = 200_000


def stream(attempts: Sequence[Attempt], server: Server, speed: float, clock: Clock) -> None:
    """Returns once the server has everything of all attempts.

    Raises:
        InvalidRequest: the server refused it, or the job has too many workers.
        Unavailable: the server did not take everything in time.
    """
    for attempt in attempts:
        if (num_workers := attempt.made.parallelism.num_workers) > MOST_WORKERS:
            raise InvalidRequest(
                f"{num_workers:,} workers would push at once, more than {MOST_WORKERS:,}: ask for "
                "fewer, or write a file with --out"
            )
    with pushing.Complaints() as complaints, Progress(console=notes(), transient=True) as progress:
        bar = progress.add_task("training", total=sum(len(each.steps) for each in attempts))
        for attempt in attempts:
            for num_steps in _pushed(attempt, server, speed, clock, complaints.messages):
                progress.advance(bar, num_steps)


def _pushed(
    attempt: Attempt, server: Server, speed: float, clock: Clock, complaints: list[str]
) -> Iterator[int]:
    """Number of steps, each time that so many more are pushed and taken."""
    made = attempt.made
    run_key = f"simulate-{time.time_ns()}"
    recorders = server.recorders(
        made.job,
        usual_ranks(made.job),
        run_key=run_key,
        epoch=server.register(made.job, run_key),
        hosts=made.world.hosts,
        max_ops=_OPS_AT_ONCE + made.structure.num_ops * _STEPS_AT_ONCE,
    )
    begin_ns, began_s = time.time_ns(), clock.now_s()
    try:
        for record in _recorded(made, attempt.steps):
            pushing.push(
                _timeline(record),
                recorders,
                begin_ns=begin_ns,
                speed=speed,
                clock=clock,
                progress=lambda num_ops: None,
                op_types=made.job.op_types,
                began_s=began_s,
            )
            pushing.deliver(recorders, complaints)
            yield len(record.steps)
    finally:
        for recorder in recorders:
            recorder.close(timeout_s=0.0)


def _recorded(made: MadeJob, steps: Sequence[int]) -> Iterator[Record]:
    """Some steps at a time; those between that nobody records take their time too."""
    fit = _OPS_AT_ONCE // (made.structure.num_ops * made.parallelism.dp_size)
    size = max(1, min(_STEPS_AT_ONCE, fit))
    parts = [steps[first : first + size] for first in range(0, len(steps), size)]
    since_s = 0.0
    for part, after in zip(parts, [*parts[1:], ()], strict=True):
        record = made.record(part, since_s=since_s)
        yield record
        missing = after[0] - part[-1] - 1 if after else 0
        step_s = (record.ended_s - since_s) / (part[-1] - part[0] + 1)
        since_s = record.ended_s + missing * step_s


def _timeline(record: Record) -> Timeline:
    """The record on the clock of the job, which began at 0."""
    start_ns = record.start_ns - BEGAN_NS
    return laid_out(
        trace_of(record),
        start_ns=start_ns,
        end_ns=start_ns + record.duration_ns,
        pp_size=record.job.parallelism.pp_size,
    )
