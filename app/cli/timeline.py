"""`paceline timeline`: steps of a recorded job as a file for Perfetto."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from rich.progress import Progress

from app.cli.options import MetaFile, TraceFile
from app.cli.output import STANDARD_OUTPUT, refuse_to_overwrite, say_written, written_whole
from app.cli.terminal import stderr_console
from app.cli.trace_input import errors_naming, read_trace
from app.errors import InvalidRequest
from app.formatting import plural

if TYPE_CHECKING:
    from app.engine.replays import WindowReplay
    from app.engine.timeline.selection import TimelineSelection

ChosenSteps = Annotated[
    str | None, typer.Option(help="Steps, as in 3,5-9. Default: the slowest one.")
]
Runs = Annotated[
    str | None, typer.Option(help="Some of recorded,simulated,ideal. Default: all three.")
]

# Perfetto opens this many in some seconds.
MAX_DEFAULT_SLICES = 1_000_000
SHOW_PROGRESS_FROM = 200_000
_NAMED_RANKS = 8


def timeline(
    trace: TraceFile,
    out: Annotated[Path, typer.Option(help="File to write.", metavar="FILE.json.gz")],
    meta: MetaFile = None,
    steps: ChosenSteps = None,
    workers: Annotated[
        str | None,
        typer.Option(
            help="Workers as DP_RANK/STAGE, as in 0/1,3/* (* is all). Default: all, or in a large "
            "job the replicas on the critical path."
        ),
    ] = None,
    ranks: Annotated[
        str | None, typer.Option(help="Workers by their global ranks instead, as in 0,8-11.")
    ] = None,
    runs: Runs = None,
) -> None:
    """Write the recorded, simulated and ideal timelines for https://ui.perfetto.dev.

    Example: paceline timeline trace-AR.parquet --steps 5-6 --workers 0/*,3/* --out AR.json.gz
    """
    from app.engine.replays import prepare
    from app.engine.timeline.selection import limit_replicas, num_slices, select

    refuse_to_overwrite("--out", out, trace, meta)
    if out == STANDARD_OUTPUT:
        raise InvalidRequest("--out -: a timeline is binary, so name a file")
    with stderr_console().status("replaying"):
        window = read_trace(trace, meta)
        with errors_naming(trace):
            replay = prepare(window)
            choice = select(replay, steps=steps, workers=workers, ranks=ranks, runs=runs)
        wanted = num_slices(replay, choice)
        if wanted > MAX_DEFAULT_SLICES and workers is None and ranks is None:
            choice = limit_replicas(replay, choice, MAX_DEFAULT_SLICES)
            _print_shown_ranks(choice, wanted)
    total = num_slices(replay, choice)
    _write(replay, choice, out, total)
    named, shown = plural(len(choice.steps), "step"), plural(int(choice.workers.sum()), "worker")
    described = f"{named}, {shown}, {plural(total, 'operation')}"
    say_written(out, described, "open it in https://ui.perfetto.dev")


def _write(replay: "WindowReplay", choice: "TimelineSelection", out: Path, total: int) -> None:
    from app.engine.timeline.writer import trace_event_pieces

    is_quiet = total < SHOW_PROGRESS_FROM
    with (
        written_whole(out) as file,
        Progress(console=stderr_console(), transient=True, disable=is_quiet) as progress,
    ):
        bar = progress.add_task("writing", total=total)
        for piece in trace_event_pieces(
            replay, choice, lambda slices: progress.advance(bar, slices)
        ):
            file.write(piece)


def _print_shown_ranks(choice: "TimelineSelection", wanted: int) -> None:
    dp_ranks = np.flatnonzero(choice.workers.any(axis=1)).tolist()
    named = ", ".join(map(str, dp_ranks[:_NAMED_RANKS]))
    more = f" and {len(dp_ranks) - _NAMED_RANKS} more" if len(dp_ranks) > _NAMED_RANKS else ""
    typer.echo(
        f"All workers would be {wanted:,} operations: showing dp rank {named}{more}, those on the "
        "critical path first; choose others with --workers or --ranks.",
        err=True,
    )
