"""Rows of one file on disk, in the order in which they were found."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from app.trace.readers.merging import Rows
from app.trace.readers.on_disk import Scratch

_BLOCK_ROWS = 1 << 16


class RawRows:
    """Rows in, and out again as often as is wanted, some at a time.

    Raises (each method):
        InvalidRequest: the disk is full.
    """

    def __init__(self, dtype: np.dtype[Any], folder: Path | None) -> None:
        self._dtype = dtype
        self._folder = folder
        self._added: list[tuple[int, ...]] = []
        self._file: Scratch | None = None

    def add(self, *row: int) -> None:
        """One more."""
        self._added.append(row)
        if len(self._added) >= _BLOCK_ROWS:
            self._write()

    def blocks(self) -> Iterator[Rows]:
        """All of them."""
        size, at = _BLOCK_ROWS * self._dtype.itemsize, 0
        while self._file is not None and (block := self._file.read(size, at)):
            yield np.frombuffer(block, self._dtype)
            at += size
        if self._added:
            yield np.array(self._added, self._dtype)

    def close(self) -> None:
        """Give the disk's space back."""
        if self._file is not None:
            self._file.close()

    def _write(self) -> None:
        rows, self._added = np.array(self._added, self._dtype), []
        if self._file is None:
            self._file = Scratch(self._folder)
        self._file.append(rows.tobytes())
