"""The axes of the worker heatmap: dp ranks or hosts along x, stages down y."""

from typing import Any

from app import words
from app.charts.figure import axis, title
from app.charts.theme import Theme
from app.charts.worker_grid import Sort, WorkerGrid
from app.words import Hosts

MAX_DP_WITH_NAMES = 8
# A host's name needs some 60 px under its column.
MAX_HOSTS_NAMED = 6
_MAX_HOST_CHARS = 14


def dp_axis(grid: WorkerGrid, sort: Sort, hosts: Hosts | None, theme: Theme) -> dict[str, Any]:
    """Dp ranks in the order of their columns, or their hosts."""
    num_columns = len(grid.columns)
    span = [-0.5, num_columns - 0.5]
    if sort == "host" and hosts:
        return _host_axis(grid, hosts, theme)
    if num_columns <= MAX_DP_WITH_NAMES:
        names = [f"dp {ranks[0]}" for ranks in grid.columns]
        return axis(theme, range=span, tickvals=list(range(num_columns)), ticktext=names)
    order = ", the slowest first" if sort == "slowdown" else ""
    ticks = list(range(0, num_columns, _tick_every(num_columns)))
    return axis(
        theme,
        range=span,
        tickvals=ticks,
        ticktext=[str(grid.columns[at][0]) for at in ticks],
        title=title(f"data-parallel rank{order}", theme),
    )


def _host_axis(grid: WorkerGrid, hosts: Hosts, theme: Theme) -> dict[str, Any]:
    num_columns = len(grid.columns)
    ticks = list(range(0, num_columns, max(1, -(-num_columns // MAX_HOSTS_NAMED))))
    names = [_host_of(grid.columns[at][0], grid, hosts) for at in ticks]
    return axis(
        theme,
        range=[-0.5, num_columns - 0.5],
        tickvals=ticks,
        ticktext=names,
        title=title("host, of the first stage, by name", theme),
    )


def _host_of(dp_rank: int, grid: WorkerGrid, hosts: Hosts) -> str:
    name = hosts.get((dp_rank, grid.rows[0][0]))
    return words.markup(name, most_chars=_MAX_HOST_CHARS) if name else "not known"


def stage_axis(grid: WorkerGrid, theme: Theme) -> dict[str, Any]:
    """Stages from 0 down."""
    num_rows = len(grid.rows)
    shown = range(0, num_rows, 1 if num_rows <= 16 else _tick_every(num_rows))
    return axis(
        theme,
        range=[num_rows - 0.5, -0.5],
        tickvals=list(shown),
        ticktext=[f"stage {grid.rows[at][0]} " for at in shown],
    )


def _tick_every(size: int) -> int:
    """A power of two that leaves at most nine labels."""
    every = 1
    while size / every > 9:
        every *= 2
    return every
