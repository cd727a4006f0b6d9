"""Rows of operations on disk: in order of arrival, or as sorted blocks that are merged.

A merge yields groups: all rows of one step and rank. The message about a full disk is one line that
names the folder.
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
    """A file without a name, which the system deletes when this process ends.

    Raises (all methods that write):
        InvalidRequest: the disk is full, or the folder cannot be written to.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        with _disk_errors(folder):
            # Unbuffered: a buffer that did not fit on the disk would be written again on closing.
            self._file = tempfile.TemporaryFile(buffering=0, dir=folder)  # noqa: SIM115

    def append(self, content: bytes) -> None:
        """Append bytes."""
        remaining = memoryview(content)
        with _disk_errors(self._folder):
            self._file.seek(0, os.SEEK_END)
            while remaining:
                remaining = remaining[self._file.write(remaining) :]

    def read(self, size: int, at: int) -> bytes:
        """Bytes from an offset on; fewer at the end of the file."""
        return os.pread(self._file.fileno(), size, at)

    def close(self) -> None:
        """Free the disk space."""
        self._file.close()


@contextmanager
def _disk_errors(folder: Path | None) -> Iterator[None]:
    """Raise disk errors of the block as InvalidRequest, one line that names the folder."""
    try:
        yield
    except OSError as error:
        where = folder or Path(tempfile.gettempdir())
        raise InvalidRequest(
            f"{where}: cannot keep what is read there ({error.strerror}): make room, or set "
            "TMPDIR to a folder with more"
        ) from error


Rows = NDArray[np.void]

ROWS_HELD = 1 << 16  # in the buffers of all blocks together
_MIN_ROWS = 8
MAX_GROUP_ROWS = 1_000_000
RANK_BITS = 31


class SortedBlock:
    """Sorted rows of a file from row `first` on, with a buffer of the next ones."""

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
        """Remove and return the buffer's rows with lower keys than `below`, or all rows."""
        at = self.keys.size if below is None else int(np.searchsorted(self.keys, below))
        taken = self.rows[:at], self.keys[:at]
        # Copies: a view, however short, would keep all of the buffer.
        self.rows, self.keys = self.rows[at:].copy(), self.keys[at:].copy()
        return taken


def merged_groups(
    blocks: Sequence[SortedBlock], first_keys: Sequence[int], steps: Ints, rows_held: int
) -> Iterator[Rows]:
    """The groups of rows with the same step and rank, ascending; within a group, in file order.

    A key is (position in `steps`, rank); `first_keys` are those of the blocks' first rows.

    Raises:
        InvalidTrace: a group is larger than any step of a rank can be.
    """
    waiting = sorted(zip(first_keys, range(len(blocks)), strict=True), reverse=True)
    active: list[int] = []
    while active or waiting:
        lowest = min((int(blocks[at].keys[0]) for at in active), default=None)
        while waiting and (lowest is None or waiting[-1][0] <= lowest):
            lowest, at = waiting.pop()
            active.append(at)
            blocks[at].read(_MIN_ROWS, steps)
        active.sort()  # in file order, so that rows with equal keys stay in order
        share = max(rows_held // len(active), _MIN_ROWS)
        open_blocks = [blocks[at] for at in active]
        for block in open_blocks:
            if block.has_more and block.keys.size < share // 2:
                block.read(share, steps)
        # All rows with lower keys than these are in the buffers.
        bounds = [int(block.keys[-1]) for block in open_blocks if block.has_more]
        below = min([*bounds, waiting[-1][0]] if waiting else bounds, default=None)
        if below is not None and below == lowest:
            _read_whole_group(open_blocks, below, steps)
            continue
        taken = [block.take(below) for block in open_blocks]
        active = [at for at in active if blocks[at].keys.size or blocks[at].has_more]
        for at in active:
            if not blocks[at].keys.size:
                blocks[at].read(_MIN_ROWS, steps)
        yield from _groups_of(taken)


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


class UnsortedRows:
    """Rows of integers: appended first, then read in blocks, any number of times.

    Raises (all methods):
        InvalidRequest: the disk is full.
    """

    def __init__(self, columns: Sequence[str], folder: Path | None, rows_held: int) -> None:
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
