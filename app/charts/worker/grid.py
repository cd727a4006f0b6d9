"""The worker heatmap's cells and axes: dp ranks or hosts along x, stages down y.

Of jobs with more workers than cells, each cell shows the slowest of several.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from app import formatting
from app.charts.base.figure import AxisItems, ItemsByAxis, axis, title
from app.charts.base.plotly import PlotlyAxis
from app.charts.base.theme import Theme
from app.formatting import Hosts

Floats = NDArray[np.float64]
Sort = Literal["rank", "host", "slowdown"]

# More cells than pixels would be lost by chance; these show the slowest worker of each.
MAX_COLUMNS = 1024
MAX_ROWS = 64


@dataclass(frozen=True, slots=True)
class WorkerGrid:
    """Which dp ranks share a column, which stages a row, and the slowest worker of each cell.

    `values` [row, column], not finite where no worker of a cell is measured.
    """

    columns: tuple[tuple[int, ...], ...]
    rows: tuple[range, ...]
    values: Floats

    @classmethod
    def of(cls, slowdown: Floats, sort: Sort = "rank", hosts: Hosts | None = None) -> "WorkerGrid":
        """The grid of slowdowns [dp rank, stage]."""
        dp_size, pp_size = slowdown.shape
        order = _column_order(slowdown, sort, hosts)
        width, height = -(-dp_size // MAX_COLUMNS), -(-pp_size // MAX_ROWS)
        first_of_column, first_of_row = range(0, dp_size, width), range(0, pp_size, height)
        # Unmeasured cells come last.
        by_column = np.fmax.reduceat(slowdown[order], list(first_of_column), axis=0)
        values = np.fmax.reduceat(by_column, list(first_of_row), axis=1).T
        return cls(
            columns=tuple(tuple(order[at : at + width].tolist()) for at in first_of_column),
            rows=tuple(range(at, min(at + height, pp_size)) for at in first_of_row),
            values=np.ascontiguousarray(values),
        )

    @property
    def is_thinned(self) -> bool:
        """Whether cells hold several workers."""
        return len(self.columns[0]) > 1 or len(self.rows[0]) > 1

    @property
    def is_by_rank(self) -> bool:
        """Whether the column's number is its dp rank."""
        return all(ranks == (at,) for at, ranks in enumerate(self.columns))

    @property
    def places(self) -> ItemsByAxis:
        """Workers along the axes, for finding the one under the pointer."""
        return ItemsByAxis(
            x=AxisItems(what="dp", items=[_axis_item(ranks) for ranks in self.columns]),
            y=AxisItems(what="stage", items=[_axis_item(stages) for stages in self.rows]),
        )

    def cell(self, dp_rank: int, stage: int) -> tuple[int, int]:
        """Column and row of a worker."""
        column = next(at for at, ranks in enumerate(self.columns) if dp_rank in ranks)
        return column, stage // len(self.rows[0])


def _axis_item(numbers: tuple[int, ...] | range) -> int | list[int]:
    return numbers[0] if len(numbers) == 1 else list(numbers)


def _column_order(slowdown: Floats, sort: Sort, hosts: Hosts | None) -> NDArray[np.int64]:
    """[dp rank] dp ranks in the order of their columns."""
    dp_size, pp_size = slowdown.shape
    if sort == "slowdown":
        worst = np.fmax.reduce(slowdown, axis=1)
        return np.argsort(-np.nan_to_num(worst, nan=-np.inf), kind="stable")
    if sort == "host" and hosts:
        # "~" is after every name: ranks of unknown hosts come last.
        named = [[hosts.get((dp, stage), "~") for stage in range(pp_size)] for dp in range(dp_size)]
        return np.array(sorted(range(dp_size), key=lambda dp: (named[dp], dp)))
    return np.arange(dp_size)


MAX_DP_WITH_NAMES = 8
# A host's name needs some 60 px under its column.
MAX_HOSTS_NAMED = 6
_MAX_HOST_CHARS = 14


def dp_axis(grid: WorkerGrid, sort: Sort, hosts: Hosts | None, theme: Theme) -> PlotlyAxis:
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


def _host_axis(grid: WorkerGrid, hosts: Hosts, theme: Theme) -> PlotlyAxis:
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
    return formatting.chart_label(name, max_chars=_MAX_HOST_CHARS) if name else "not known"


def stage_axis(grid: WorkerGrid, theme: Theme) -> PlotlyAxis:
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
