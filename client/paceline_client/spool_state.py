"""The place reached in a spool, in two files that are written in turn: one of them stays whole."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from .spool_format import Damaged, Position, position_bytes, position_of

# A directory that others may write to could hold a link to any file of ours; and lines are none.
AS_IT_IS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


class Known(NamedTuple):
    """The newest position that is left, None without any; `is_doubtful` if one may be missing."""

    position: Position | None
    is_doubtful: bool


class State:
    """Where the sender is; nothing of it is synchronised to the disk."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._turn = 0

    def read(self) -> Known:
        """What an earlier process has written."""
        found, num_there = [], 0
        for path in self._paths:
            try:
                content = path.read_bytes()
            except FileNotFoundError:
                continue
            num_there += 1
            try:
                found.append(position_of(content))
            except Damaged:
                continue
        newest = max(found, key=lambda position: position.turn, default=None)
        self._turn = newest.turn if newest is not None else 0
        wanted = min(self._turn, len(self._paths))
        return Known(newest, len(found) < max(wanted, num_there))

    def write(self, position: Position) -> None:
        """Write over the older one of the two."""
        self._turn += 1
        path = self._paths[self._turn % len(self._paths)]
        file = os.open(path, os.O_WRONLY | os.O_CREAT | AS_IT_IS, 0o600)
        try:
            os.write(file, position_bytes(position._replace(turn=self._turn)))
        finally:
            os.close(file)
