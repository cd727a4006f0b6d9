"""Rows that lie in sorted blocks on disk, merged: all of one step and rank, one after the other."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.errors import InvalidTrace
from app.trace.readers.on_disk import Scratch
from app.trace.window import Ints

Rows = NDArray[np.void]

# Together, of all blocks that are read at the same time.
ROWS_HELD = 1 << 16
_FEWEST_ROWS = 8
MAX_GROUP_ROWS = 1_000_000
RANK_BITS = 31


class Block:
    """Rows of a file from `first` on, sorted by key, and a buffer of the next of them."""

    def __init__(self, file: Scratch, dtype: np.dtype[Any], first: int, num_rows: int) -> None:
        self.rows: Rows = np.empty(0, dtype)
        self.keys: Ints = np.empty(0, np.int64)
        self._file = file
        self._next = first
        self._end = first + num_rows

    @property
    def has_more(self) -> bool:
        """Whether rows are left that are not in the buffer."""
        return self._next < self._end

    def read(self, num_rows: int, steps: Ints) -> None:
        """Put so many more rows into the buffer, with their keys."""
        size = self.rows.dtype.itemsize
        until = min(self._next + num_rows, self._end)
        content = self._file.read((until - self._next) * size, self._next * size)
        more = np.frombuffer(content, self.rows.dtype)
        self._next = until
        keys = np.searchsorted(steps, more["step"]) << RANK_BITS | more["rank"]
        self.rows = np.concatenate([self.rows, more]) if self.rows.size else more
        self.keys = np.concatenate([self.keys, keys]) if self.keys.size else keys

    def take(self, below: int | None) -> tuple[Rows, Ints]:
        """Rows of the buffer with lower keys, or all of them; they leave it."""
        at = self.keys.size if below is None else int(np.searchsorted(self.keys, below))
        taken = self.rows[:at], self.keys[:at]
        # Copies: a view, however short, would keep all of the buffer.
        self.rows, self.keys = self.rows[at:].copy(), self.keys[at:].copy()
        return taken


def merged(
    blocks: Sequence[Block], first_keys: Sequence[int], steps: Ints, rows_held: int = ROWS_HELD
) -> Iterator[Rows]:
    """All rows of each (step, rank), ascending; in a group, in the order in which they came.

    `first_keys` are the blocks' first rows', by which (step's index, rank) blocks are brought in.

    Raises:
        InvalidTrace: one group is larger than any step of a rank.
    """
    waiting = sorted(zip(first_keys, range(len(blocks)), strict=True), reverse=True)
    active: list[int] = []
    while active or waiting:
        lowest = min((int(blocks[at].keys[0]) for at in active), default=None)
        while waiting and (lowest is None or waiting[-1][0] <= lowest):
            lowest, at = waiting.pop()
            active.append(at)
            blocks[at].read(_FEWEST_ROWS, steps)
        active.sort()  # as they came, so that equal keys stay in order
        share = max(rows_held // len(active), _FEWEST_ROWS)
        for at in active:
            if blocks[at].has_more and blocks[at].keys.size < share // 2:
                blocks[at].read(share, steps)
        below = _complete_below([blocks[at] for at in active], waiting)
        if below is not None and below == lowest:
            _widen([blocks[at] for at in active], below, steps)
            continue
        taken = [blocks[at].take(below) for at in active]
        active = [at for at in active if blocks[at].keys.size or blocks[at].has_more]
        for at in active:
            if not blocks[at].keys.size:
                blocks[at].read(_FEWEST_ROWS, steps)
        yield from _split(taken)


def _complete_below(active: list[Block], waiting: list[tuple[int, int]]) -> int | None:
    """The key below which no more rows can come; None where all are there."""
    bounds = [int(block.keys[-1]) for block in active if block.has_more]
    if waiting:
        bounds.append(waiting[-1][0])
    return min(bounds, default=None)


def _widen(active: list[Block], key: int, steps: Ints) -> None:
    """One group fills a buffer: read on until it is whole."""
    held = sum(int((block.keys == key).sum()) for block in active)
    if held > MAX_GROUP_ROWS:
        raise InvalidTrace(
            f"more than {MAX_GROUP_ROWS:,} operations of one rank in step "
            f"{steps[key >> RANK_BITS]}: are steps told apart?"
        )
    for block in active:
        if block.has_more and block.keys[-1] == key:
            block.read(max(block.keys.size, _FEWEST_ROWS), steps)


def _split(taken: Sequence[tuple[Rows, Ints]]) -> Iterator[Rows]:
    rows = np.concatenate([rows for rows, _ in taken])
    keys = np.concatenate([keys for _, keys in taken])
    if not rows.size:
        return
    order = np.argsort(keys, kind="stable")
    rows, keys = rows[order], keys[order]
    begins = np.flatnonzero(np.diff(keys, prepend=keys[0] - 1))
    for begin, end in zip(begins.tolist(), [*begins[1:].tolist(), rows.size], strict=True):
        yield rows[begin:end]
