"""Rows of operations on disk: in arrival order, or as sorted blocks that are merged.

A merge gives all rows of one step and rank, one group after the other. A full disk is one line
that names the folder.
"""

import os
import tempfile
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.errors import InvalidRequest, InvalidTrace
from app.trace.window import Ints


class ScratchFile:
    """A file without a name, gone with this process however it ends.

    Raises (each method that writes):
        InvalidRequest: the disk is full, or the folder cannot be written to.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        with _disk_errors(folder):
            # Unbuffered: what did not fit would be tried once more on closing.
            self._file = tempfile.TemporaryFile(buffering=0, dir=folder)  # noqa: SIM115

    def append(self, content: bytes) -> None:
        """Append bytes."""
        left = memoryview(content)
        with _disk_errors(self._folder):
            self._file.seek(0, os.SEEK_END)
            while left:
                left = left[self._file.write(left) :]

    def read(self, size: int, at: int) -> bytes:
        """Bytes from an offset on; fewer at the end of the file."""
        return os.pread(self._file.fileno(), size, at)

    def close(self) -> None:
        """Free the disk space."""
        self._file.close()


@contextmanager
def _disk_errors(folder: Path | None) -> Iterator[None]:
    """Turn disk errors of the block into one line that names the folder.

    Raises:
        InvalidRequest: the disk is full, or the folder cannot be written to.
    """
    try:
        yield
    except OSError as error:
        where = folder or Path(tempfile.gettempdir())
        raise InvalidRequest(
            f"{where}: cannot keep what is read there ({error.strerror}): make room, or set "
            "TMPDIR to a folder with more"
        ) from error


Rows = NDArray[np.void]

# Of the buffers of all blocks together.
ROWS_HELD = 1 << 16
_MIN_ROWS = 8
MAX_GROUP_ROWS = 1_000_000
RANK_BITS = 31


class SortedBlock:
    """Rows of a file from `first` on, sorted by key, and a buffer of the next of them."""

    def __init__(self, file: ScratchFile, dtype: np.dtype[Any], first: int, num_rows: int) -> None:
        self.rows: Rows = np.empty(0, dtype)
        self.keys: Ints = np.empty(0, np.int64)
        self._file = file
        self._next = first
        self._end = first + num_rows

    @property
    def has_more(self) -> bool:
        """Whether the file has rows after those in the buffer."""
        return self._next < self._end

    def read(self, num_rows: int, steps: Ints) -> None:
        """Read more rows, with their keys, into the buffer."""
        size = self.rows.dtype.itemsize
        until = min(self._next + num_rows, self._end)
        content = self._file.read((until - self._next) * size, self._next * size)
        more = np.frombuffer(content, self.rows.dtype)
        self._next = until
        keys = np.searchsorted(steps, more["step"]) << RANK_BITS | more["rank"]
        self.rows = np.concatenate([self.rows, more]) if self.rows.size else more
        self.keys = np.concatenate([self.keys, keys]) if self.keys.size else keys

    def take(self, below: int | None) -> tuple[Rows, Ints]:
        """Remove and return the buffer's rows below a key, or all rows."""
        at = self.keys.size if below is None else int(np.searchsorted(self.keys, below))
        taken = self.rows[:at], self.keys[:at]
        # Copies: a view, however short, would keep all of the buffer.
        self.rows, self.keys = self.rows[at:].copy(), self.keys[at:].copy()
        return taken


def merged_groups(
    blocks: Sequence[SortedBlock],
    first_keys: Sequence[int],
    steps: Ints,
    rows_held: int = ROWS_HELD,
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
            blocks[at].read(_MIN_ROWS, steps)
        active.sort()  # as they came, so that equal keys stay in order
        share = max(rows_held // len(active), _MIN_ROWS)
        for at in active:
            if blocks[at].has_more and blocks[at].keys.size < share // 2:
                blocks[at].read(share, steps)
        below = _complete_below([blocks[at] for at in active], waiting)
        if below is not None and below == lowest:
            _read_whole_group([blocks[at] for at in active], below, steps)
            continue
        taken = [blocks[at].take(below) for at in active]
        active = [at for at in active if blocks[at].keys.size or blocks[at].has_more]
        for at in active:
            if not blocks[at].keys.size:
                blocks[at].read(_MIN_ROWS, steps)
        yield from _groups_of(taken)


def _complete_below(active: list[SortedBlock], waiting: list[tuple[int, int]]) -> int | None:
    """The key below which no more rows can come; None where all are there."""
    bounds = [int(block.keys[-1]) for block in active if block.has_more]
    if waiting:
        bounds.append(waiting[-1][0])
    return min(bounds, default=None)


def _read_whole_group(active: list[SortedBlock], key: int, steps: Ints) -> None:
    """Read the rest of a group that is larger than a buffer."""
    held = sum(int((block.keys == key).sum()) for block in active)
    if held > MAX_GROUP_ROWS:
        raise InvalidTrace(
            f"more than {MAX_GROUP_ROWS:,} operations of one rank in step "
            f"{steps[key >> RANK_BITS]}: are steps told apart?"
        )
    for block in active:
        if block.has_more and block.keys[-1] == key:
            block.read(max(block.keys.size, _MIN_ROWS), steps)


def _groups_of(taken: Sequence[tuple[Rows, Ints]]) -> Iterator[Rows]:
    rows = np.concatenate([rows for rows, _ in taken])
    keys = np.concatenate([keys for _, keys in taken])
    if not rows.size:
        return
    order = np.argsort(keys, kind="stable")
    rows, keys = rows[order], keys[order]
    begins = np.flatnonzero(np.diff(keys, prepend=keys[0] - 1))
    for begin, end in zip(begins.tolist(), [*begins[1:].tolist(), rows.size], strict=True):
        yield rows[begin:end]


UNSORTED_ROWS_HELD = 1 << 16


class UnsortedRows:
    """Rows of integers, appended once, and read any number of times after that, in blocks.

    Raises (each method):
        InvalidRequest: the disk is full.
    """

    def __init__(
        self, columns: Sequence[str], folder: Path | None, rows_held: int = UNSORTED_ROWS_HELD
    ) -> None:
        self._dtype = np.dtype([(name, "i8") for name in columns])
        self._rows_held = rows_held
        self._added = array("q")
        self._file: ScratchFile | None = None
        self._folder = folder

    def add(self, *row: int) -> None:
        """Append one row."""
        self._added.extend(row)
        if len(self._added) >= self._rows_held * len(row):
            self._write()

    def blocks(self) -> Iterator[Rows]:
        """All rows, block by block."""
        size, at = self._rows_held * self._dtype.itemsize, 0
        while self._file is not None and (block := self._file.read(size, at)):
            yield np.frombuffer(block, self._dtype)
            at += size
        if self._added:
            yield np.frombuffer(self._added, self._dtype)

    def all(self) -> Rows:
        """All rows."""
        return np.concatenate([np.empty(0, self._dtype), *self.blocks()])

    def close(self) -> None:
        """Free the disk space."""
        if self._file is not None:
            self._file.close()

    def _write(self) -> None:
        if self._file is None:
            self._file = ScratchFile(self._folder)
        self._file.append(self._added.tobytes())
        self._added = array("q")
