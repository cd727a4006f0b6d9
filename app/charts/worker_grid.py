"""Workers laid out as cells: dp ranks along x in some order, stages down y, several to a cell."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from app.charts.figure import Along, Places
from app.words import Hosts

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
        order = _order(slowdown, sort, hosts)
        width, height = -(-dp_size // MAX_COLUMNS), -(-pp_size // MAX_ROWS)
        first_of_column, first_of_row = range(0, dp_size, width), range(0, pp_size, height)
        # Not measured loses against any figure.
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
    def places(self) -> Places:
        """What a page needs to find the worker under the pointer."""
        return Places(
            x=Along(what="dp", items=[_item(ranks) for ranks in self.columns]),
            y=Along(what="stage", items=[_item(stages) for stages in self.rows]),
        )

    def cell(self, dp_rank: int, stage: int) -> tuple[int, int]:
        """Column and row of a worker."""
        column = next(at for at, ranks in enumerate(self.columns) if dp_rank in ranks)
        return column, stage // len(self.rows[0])


def _item(numbers: tuple[int, ...] | range) -> int | list[int]:
    return numbers[0] if len(numbers) == 1 else list(numbers)


def _order(slowdown: Floats, sort: Sort, hosts: Hosts | None) -> NDArray[np.int64]:
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
