"""`paceline critical-path`: the chain of operations that determined a step's length."""

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from app.cli.options import MetaFile, TraceFile, json_option
from app.cli.output import refuse_to_overwrite
from app.cli.terminal import plain_table, right_aligned, show, stderr_console
from app.cli.trace_input import errors_naming, read_trace

if TYPE_CHECKING:
    from app.engine.timeline.critical_path import CriticalPath, PathLink

_MAX_WORKERS = 8


def critical_path(
    trace: TraceFile,
    meta: MetaFile = None,
    step: Annotated[int | None, typer.Option(help="The step. Default: the slowest one.")] = None,
    run: Annotated[str, typer.Option(help="recorded, simulated or ideal times.")] = "recorded",
    json_out: Annotated[Path | None, json_option("the whole chain")] = None,
) -> None:
    """Show the chain of operations that determined how long a step took.

    Example: paceline critical-path trace-AR.parquet --step 5 --run ideal
    """
    from app.engine.timeline.critical_path import as_json

    refuse_to_overwrite("--json", json_out, trace, meta)
    with stderr_console().status("replaying"):
        path = _path(trace, meta, step, run)
    show(json_out, lambda: as_json(path), lambda: render_path(path))


def render_path(path: "CriticalPath") -> RenderableType:
    """The chain for a terminal: shares of the step, then operations by time."""
    return Group(
        Text(f"Step {path.step}, {path.kind}: {_time(path.length_s)}", style="bold"),
        Text("\nShare of the step", style="bold"),
        _shares(path),
        Text("\nCritical path, from start to end", style="bold"),
        _chain(path),
    )


def _path(trace: Path, meta: Path | None, step: int | None, run: str) -> "CriticalPath":
    from app.engine.replays import prepare
    from app.engine.timeline import critical_path as timeline_path
    from app.engine.timeline.selection import parse_run, slowest_step

    kind = parse_run(run)
    window = read_trace(trace, meta)
    with errors_naming(trace):
        replay = prepare(window)
        chosen = slowest_step(replay, kind) if step is None else step
        return timeline_path.critical_path(replay, chosen, kind)


def _shares(path: "CriticalPath") -> Table:
    shares = ((group, _percent(share)) for group, share in path.group_shares.items())
    table = plain_table(["what", *right_aligned("share")], shares, show_header=False)
    table.add_row("waiting", _percent(path.waiting_share), style="dim")
    table.add_section()
    by_worker = list(path.worker_shares.items())
    for (dp_rank, stage, rank), share in by_worker[:_MAX_WORKERS]:
        table.add_row(f"on dp {dp_rank} stage {stage} (rank {rank})", _percent(share))
    if others := by_worker[_MAX_WORKERS:]:
        share = sum(share for _, share in others)
        table.add_row(f"on {len(others):,} other workers", _percent(share), style="dim")
    return table


def _chain(path: "CriticalPath") -> Table:
    """One row per run of operations of one type on one worker, in the order of time.

    A row begins where the chain enters its first operation: a transfer may have been posted long
    before.
    """
    numbers = (Column(name, justify="right", no_wrap=True) for name in ("at, s", "waited", "took"))
    worker = Column("worker", no_wrap=True)
    table = plain_table([*numbers, "operations", worker], [], header_style="dim")
    at_s = 0.0
    for _, stretch in groupby(path.links, key=lambda link: (link.optype, link.worker)):
        links = list(stretch)
        table.add_row(*_row(links, at_s + links[0].gap_s))
        at_s += sum(link.gap_s + link.own_s for link in links)
    return table


def _row(links: list["PathLink"], at_s: float) -> tuple[str, ...]:
    first, last = links[0], links[-1]
    gap_s = sum(link.gap_s for link in links)
    numbers = f"{first.seq_id}" if len(links) == 1 else f"{first.seq_id} to {last.seq_id}"
    return (
        f"{at_s:,.3f}",
        _time(gap_s) if gap_s else "",
        _time(sum(link.own_s for link in links)),
        f"{first.optype} {numbers}",
        f"dp {first.dp_rank} stage {first.stage}",
    )


def _time(time_s: float) -> str:
    """Three digits in the largest unit that leaves a digit before the point."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if time_s * factor >= 1:
            return f"{time_s * factor:.3g} {unit}" if time_s < 1e3 else f"{time_s:,.0f} s"
    return f"{time_s * 1e6:.3g} \u00b5s"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
