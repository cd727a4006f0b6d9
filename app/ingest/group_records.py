"""Collectives inside groups whose steps are not in a closed window yet, in bounded memory."""

from collections.abc import Collection, Iterator
from typing import NamedTuple

import numpy as np

from app.ingest.batch import OpBatch
from app.ingest.group_table import GroupPart, GroupTable, of_parts, runs_at
from app.trace.collectives import RankPlace

MAX_ROWS = 4_000_000  # of one run in memory, some 60 bytes each
MAX_ROWS_OF_RANK = 10_000  # in one step
# Each revision of an open window analyses all of its rows: of more than these they are left for its
# close.
MAX_OPEN_ROWS = 500_000


class GroupCounts(NamedTuple):
    """What became of a batch's rows: in a window (perhaps a closed one), too late, or too many."""

    accepted: int = 0
    late: int = 0
    refused: int = 0


NO_GROUPS = GroupCounts()


class RowCounts:
    """Numbers of rows by step and rank, up to `MAX_ROWS_OF_RANK` of each and `MAX_ROWS` in all."""

    def __init__(self) -> None:
        self._of_rank: dict[tuple[int, int], int] = {}
        self._num_rows = 0

    def add(self, step: int, part: GroupPart) -> bool:
        """Whether there is room for the rows; then they are counted."""
        key, num_rows = (step, part.place.rank), part.rows.num_rows
        of_rank = self._of_rank.get(key, 0) + num_rows
        if of_rank > MAX_ROWS_OF_RANK or self._num_rows + num_rows > MAX_ROWS:
            return False
        self._of_rank[key] = of_rank
        self._num_rows += num_rows
        return True

    def remove_through(self, step: int) -> None:
        """Count nothing of this step and of all before it any more."""
        for key in [key for key in self._of_rank if key[0] <= step]:
            self._num_rows -= self._of_rank.pop(key)


class GroupRecords:
    """Rows by step. They complete no step, and no step waits for them."""

    def __init__(self) -> None:
        self._parts: dict[int, list[GroupPart]] = {}
        self._counts = RowCounts()
        self._table: GroupTable | None = None
        self._table_of: dict[int, int] = {}  # numbers of parts in `_table` by step
        self.were_seen = False  # whether any has come in this run

    def put(self, step: int, part: GroupPart) -> bool:
        """Whether there is room for what a rank says of a step."""
        if not self._counts.add(step, part):
            return False
        self._parts.setdefault(step, []).append(part)
        return True

    def table(self, steps: Collection[int]) -> GroupTable | None:
        """The rows of these steps; None where there are none."""
        of_steps = {step: self._parts[step] for step in steps if step in self._parts}
        if not of_steps:
            return None
        table_of = {step: len(parts) for step, parts in of_steps.items()}
        if self._table is None or table_of != self._table_of:
            self._table = of_parts([part for parts in of_steps.values() for part in parts])
            self._table_of = table_of
        return self._table

    def open_table(self, steps: Collection[int]) -> GroupTable | None:
        """The rows of an open window's steps; None where there are none, or very many."""
        parts = [part for step in steps for part in self._parts.get(step, ())]
        if sum(part.rows.num_rows for part in parts) > MAX_OPEN_ROWS:
            return None
        return self.table(steps)

    def remove_through(self, step: int) -> None:
        """Forget the rows of this step and of all before it."""
        if not self._parts:
            return
        self._counts.remove_through(step)
        self._table, self._table_of = None, {}
        for old in [number for number in self._parts if number <= step]:
            del self._parts[old]


def parts_of(batch: OpBatch) -> Iterator[tuple[int, GroupPart]]:
    """What a batch says of each step, ascending."""
    rows = batch.collectives
    if rows is None or not rows.num_rows:
        return
    place = RankPlace(batch.rank, batch.dp_rank, batch.stage, batch.host or None, rows.local_rank)
    if (rows.step[1:] < rows.step[:-1]).any():
        rows = rows.select(np.argsort(rows.step, kind="stable"))
    for step, chosen in runs_at(rows.step):
        yield step, GroupPart(place, rows.select(chosen))
