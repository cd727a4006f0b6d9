"""`paceline timeline`: some steps of a recorded job as a file that Perfetto opens."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.files import STANDARD_OUTPUT
from app.cli.options import MetaFile, TraceFile
from app.errors import InvalidRequest

if TYPE_CHECKING:
    from app.engine.replays import WindowReplay
    from app.engine.timeline.choice import Choice

# What Perfetto opens in some seconds.
MOST_UNASKED = 1_000_000
SHOW_PROGRESS_FROM = 200_000
_NAMED_RANKS = 8


def timeline(
    trace: TraceFile,
    out: Annotated[Path, typer.Option(help="Where to write.", metavar="FILE.json.gz")],
    meta: MetaFile = None,
    steps: Annotated[
        str | None, typer.Option(help="Steps, as in 3,5-9; left out: the slowest one.")
    ] = None,
    workers: Annotated[
        str | None,
        typer.Option(
            help="Workers as dp rank / stage, as in 0/1,3/* (* is all); left out: all workers, or "
            "in a large job the replicas on the critical path."
        ),
    ] = None,
    ranks: Annotated[
        str | None, typer.Option(help="The same workers by their global ranks, as in 0,8-11.")
    ] = None,
    runs: Annotated[
        str | None,
        typer.Option(help="Some of recorded,simulated,ideal; left out: all three."),
    ] = None,
) -> None:
    """Write what each worker did, and would have done, for https://ui.perfetto.dev.

    Example: paceline timeline trace-AR.parquet --steps 5-6 --workers 0/*,3/* --out AR.json.gz
    """
    from app.cli.console import notes
    from app.cli.inputs import refuse_to_overwrite
    from app.cli.recorded import errors_about, read
    from app.engine.replays import prepare
    from app.engine.timeline.choice import choose, num_slices, of_some_replicas

    refuse_to_overwrite("--out", out, trace, meta)
    if out == STANDARD_OUTPUT:
        raise InvalidRequest("--out -: a timeline is no text for a terminal: name a file")
    with notes().status("replaying"):
        window = read(trace, meta)
        with errors_about(trace):
            replay = prepare(window)
            choice = choose(replay, steps=steps, workers=workers, ranks=ranks, runs=runs)
        wanted = num_slices(replay, choice)
        if wanted > MOST_UNASKED and workers is None and ranks is None:
            choice = of_some_replicas(replay, choice, MOST_UNASKED)
            _say_who_is_shown(choice, wanted)
    _write(replay, choice, out)
    typer.echo(f"{out}: {_described(replay, choice)}; open it in https://ui.perfetto.dev", err=True)


def _write(replay: "WindowReplay", choice: "Choice", out: Path) -> None:
    from rich.progress import Progress

    from app.cli.console import notes
    from app.cli.files import written_whole
    from app.engine.timeline.choice import num_slices
    from app.engine.timeline.writer import written

    total = num_slices(replay, choice)
    is_quiet = total < SHOW_PROGRESS_FROM
    with (
        written_whole(out) as file,
        Progress(console=notes(), transient=True, disable=is_quiet) as progress,
    ):
        bar = progress.add_task("writing", total=total)
        for piece in written(replay, choice, lambda slices: progress.advance(bar, slices)):
            file.write(piece)


def _say_who_is_shown(choice: "Choice", wanted: int) -> None:
    import numpy as np

    dp_ranks = np.flatnonzero(choice.workers.any(axis=1)).tolist()
    named = ", ".join(map(str, dp_ranks[:_NAMED_RANKS]))
    more = f" and {len(dp_ranks) - _NAMED_RANKS} more" if len(dp_ranks) > _NAMED_RANKS else ""
    typer.echo(
        f"All workers would be {wanted:,} operations: showing dp rank {named}{more}, those on the "
        "critical path first; choose others with --workers or --ranks.",
        err=True,
    )


def _described(replay: "WindowReplay", choice: "Choice") -> str:
    from app.engine.timeline.choice import num_slices

    counts = (
        (len(choice.steps), "step"),
        (int(choice.workers.sum()), "worker"),
        (num_slices(replay, choice), "operation"),
    )
    return ", ".join(f"{count:,} {noun}{'' if count == 1 else 's'}" for count, noun in counts)
