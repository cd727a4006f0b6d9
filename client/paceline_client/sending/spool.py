"""Batches on their way to the server, in order: one in memory, or all on disk (the spool).

Spooled batches survive the process until the server has them.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from pathlib import Path
from typing import BinaryIO

from ..recording.wire import Batch
from .spool_files import (
    OPEN_FLAGS,
    PositionFiles,
    SpoolDamaged,
    SpoolPosition,
    read_record,
    record_of,
    skip_record,
)


class Outbox:
    """Holds one batch in memory; the rest waits in the buffer, which is bounded."""

    def __init__(self) -> None:
        self.next_seq = 0  # number of the batch at the head
        self.damaged_ops = 0  # lost because of damaged files
        self._held: Batch | None = None

    def open(self) -> None:
        """Load what an earlier process of this run has left; on the sender's thread."""

    @property
    def has_room(self) -> bool:
        """Whether another batch may be put in."""
        return self._held is None

    def put(self, batch: Batch) -> None:
        """Add a batch."""
        self._held = batch

    def head(self) -> Batch | None:
        """The batch to be sent next."""
        return self._held

    def pop(self, *, used_seq: bool) -> None:
        """The head is off our hands; `used_seq` says whether the server may know its number."""
        self._held = None
        self.next_seq += used_seq

    def close(self, *, keep: bool) -> int:
        """End; the number of operations that are lost with it. To `keep` is to leave on disk."""
        lost = self._held.num_ops + self._held.num_group_rows if self._held is not None else 0
        self._held = None
        return lost


try:
    import fcntl
except ImportError:  # Windows: two processes with the same rank are not detected there
    fcntl = None  # type: ignore[assignment]

MAX_SEGMENT_BYTES = 8 << 20

# Batch numbers skipped when the last number in use is unknown: the server then reports lost batches
# instead of silently discarding new ones as repeated. It accepts gaps up to this size.
MAX_SEQUENCE_GAP = 1 << 20
MIN_SEQUENCE_GAP = 1 << 12  # more than are sent before written data reaches the disk

log = logging.getLogger("paceline_client")
_in_use: set[Path] = set()  # by this process, which its own file locks do not exclude


class Spool(Outbox):
    """Writes every batch to disk first; delivered ones are removed, a segment at a time.

    Nothing is synchronised to disk: data survives a crash of the process, but maybe not a power
    failure, which the CRC detects. If the disk fails or is full, one batch is kept in memory, as
    without a spool.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        job: str,
        run_key: str,
        rank: int,
        max_bytes: int,
        *,
        is_restart: bool = False,
    ) -> None:
        super().__init__()
        self._directory = Path(directory)
        self._is_restart = is_restart  # of this run, whose spool may be on another machine
        self._worker = f"{_digest(job)}-{rank}"
        self._name = f"{self._worker}-{_digest(run_key)}"
        self._max_bytes = max_bytes
        self._segment_bytes = min(MAX_SEGMENT_BYTES, max(1 << 16, max_bytes // 8))
        self._num_ops: dict[int, int] = {}  # undelivered operations by segment
        self._bytes: dict[int, int] = {}  # by segment
        self._state = PositionFiles([self._path("state0"), self._path("state1")])
        self._position = SpoolPosition(1, 0, 0)
        self._write_to = 1
        self._head: Batch | None = None
        self._after_head = 0
        self._lock: BinaryIO | None = None
        self._is_open = False
        self._warned = False

    def open(self) -> None:
        """Load what an earlier process of this run has left; remove the files of other runs."""
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._take_lock()
            self._remove_other_runs()
            self._load()
            self._is_open = True
            self._save(self._position)
        except OSError as error:
            self.next_seq = MAX_SEQUENCE_GAP if self._is_restart else 0
            self._warn(error)

    @property
    def has_room(self) -> bool:
        """Whether another batch may be put in."""
        return self._held is None and (
            not self._is_open or sum(self._bytes.values()) < self._max_bytes or not self._num_ops
        )

    def put(self, batch: Batch) -> None:
        """Write a batch to disk; keep it in memory if that fails."""
        if not self._is_open:
            super().put(batch)
            return
        try:
            self._append(record_of(batch), batch.num_ops)
        except OSError as error:
            self._warn(error)
            super().put(batch)

    def head(self) -> Batch | None:
        """The batch to send next; those on disk are older than the one in memory."""
        while self._is_open and self._head is None and self._num_ops:
            self._read()
        return self._head if self._head is not None else self._held

    def pop(self, *, used_seq: bool) -> None:
        """The head is off our hands; `used_seq` says whether the server may know its number."""
        if self._head is None:
            super().pop(used_seq=used_seq)
            self._save(self._position._replace(next_seq=self.next_seq))
            return
        segment = self._position.segment
        self._num_ops[segment] -= self._head.num_ops
        self._head = None
        self.next_seq += used_seq
        self._save(SpoolPosition(segment, self._after_head, self.next_seq))
        if self._after_head >= self._bytes[segment]:
            self._leave(segment)

    def close(self, *, keep: bool) -> int:
        """End; the number of operations that are lost with it. To `keep` is to leave on disk."""
        lost = super().close(keep=keep)
        if self._is_open and not keep:
            lost += sum(self._num_ops.values())
            self._remove(f"{self._name}.*")
        self._is_open = False
        if self._lock is not None:
            self._lock.close()
            _in_use.discard(self._path("lock"))
        return lost

    def _take_lock(self) -> None:
        path = self._path("lock")
        if path in _in_use:
            raise OSError(f"{path} is in use by another recorder in this process")
        self._lock = _opened(path)
        if fcntl is not None:  # forked children do not hold this lock
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _in_use.add(path)

    def _load(self) -> None:
        """Restore the earlier process's position; without it, skip numbers that may be in use."""
        segments = sorted(int(path.suffixes[-2][1:]) for path in self._segments())
        known, is_doubtful = self._state.read()
        if known is None:
            if segments or is_doubtful or self._is_restart:
                self.next_seq = MAX_SEQUENCE_GAP
            self._give_up_all()
            segments = []
        else:
            self._position, self.next_seq = known, known.next_seq
            # The segment of the known position is gone, and later ones were written.
            is_late = is_doubtful or max(segments, default=0) > known.segment
            self.next_seq += MIN_SEQUENCE_GAP * (is_late and known.segment not in segments)
        for segment in segments:
            if segment < self._position.segment:
                self._path(f"{segment}.seg").unlink()
            else:
                self._count(segment)
        # The end of a segment may be torn, so new batches go to a new one.
        self._write_to = max([self._position.segment - 1, *segments]) + 1
        if self._position.segment not in segments:
            self._position = SpoolPosition(self._write_to, 0, self.next_seq)
        self._go_to_first()

    def _count(self, segment: int) -> None:
        path, num_ops = self._path(f"{segment}.seg"), 0
        self._bytes[segment] = path.stat().st_size
        with path.open("rb") as file, contextlib.suppress(SpoolDamaged):
            if segment == self._position.segment:
                file.seek(self._position.offset)
            while (found := skip_record(file)) is not None:
                num_ops += found
        self._num_ops[segment] = num_ops

    def _append(self, record: bytes, num_ops: int) -> None:
        if self._bytes.get(self._write_to, 0) >= self._segment_bytes:
            self._write_to += 1
        segment = self._write_to
        path = self._path(f"{segment}.seg")
        size = self._bytes.get(segment, 0)
        try:
            with _opened(path) as file:
                file.write(record)
        except OSError:
            with contextlib.suppress(OSError):  # half a record would hide the ones after it
                os.truncate(path, size)
            raise
        self._bytes[segment] = size + len(record)
        self._num_ops[segment] = self._num_ops.get(segment, 0) + num_ops
        if len(self._num_ops) == 1 and self._position.segment != segment:
            self._go_to_first()

    def _read(self) -> None:
        segment, offset = self._position[:2]
        try:
            with self._path(f"{segment}.seg").open("rb") as file:
                file.seek(offset)
                self._head = read_record(file)
                self._after_head = file.tell()
        except (OSError, SpoolDamaged):
            self._head = None
            self.damaged_ops += self._num_ops[segment]
        if self._head is None:
            self._leave(segment)

    def _leave(self, segment: int) -> None:
        """Remove a segment that is delivered."""
        self._num_ops.pop(segment, None)
        self._bytes.pop(segment, None)
        self._write_to += segment == self._write_to
        self._go_to_first()
        self._save(self._position)
        with contextlib.suppress(OSError):
            self._path(f"{segment}.seg").unlink()

    def _go_to_first(self) -> None:
        first = min(self._num_ops, default=self._write_to)
        if first != self._position.segment:
            self._position = SpoolPosition(first, 0, self.next_seq)

    def _save(self, position: SpoolPosition) -> None:
        self._position = position
        if not self._is_open:
            return
        try:
            self._state.write(position)
        except OSError as error:
            self._warn(error)

    def _remove_other_runs(self) -> None:
        paths = [
            path
            for path in self._directory.glob(f"{self._worker}-*")
            if not path.name.startswith(f"{self._name}.")
        ]
        num_ops = sum(map(_num_ops_in, paths))
        if num_ops:
            log.warning(
                "paceline: removed %d operations of an earlier run from %s",
                num_ops,
                self._directory,
            )
        for path in paths:
            with contextlib.suppress(OSError):
                path.unlink()

    def _give_up_all(self) -> None:
        """Drop all batches: which of them were sent is unknown."""
        num_ops = sum(map(_num_ops_in, self._segments()))
        if num_ops:
            self.damaged_ops += num_ops
            log.warning(
                "paceline: the spool in %s is damaged: %d operations of an earlier run are lost",
                self._directory,
                num_ops,
            )
        self._remove(f"{self._name}.*.seg")

    def _remove(self, pattern: str) -> None:
        for path in self._directory.glob(pattern):
            with contextlib.suppress(OSError):
                path.unlink()

    def _segments(self) -> list[Path]:
        return [
            path
            for path in self._directory.glob(f"{self._name}.*.seg")
            if path.suffixes[-2][1:].isdecimal()
        ]

    def _path(self, what: str) -> Path:
        return self._directory / f"{self._name}.{what}"

    def _warn(self, error: object) -> None:
        if not self._warned:
            self._warned = True
            log.warning("paceline: batches are not spooled to %s: %s", self._directory, error)


def _opened(path: Path) -> BinaryIO:
    """Open a file for appending, readable by its owner only."""
    return os.fdopen(
        os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | OPEN_FLAGS, 0o600), "ab"
    )


def _num_ops_in(path: Path) -> int:
    """Operations in the readable part of a segment; 0 for any other file."""
    num_ops = 0
    if path.suffix == ".seg":
        with contextlib.suppress(OSError, SpoolDamaged), path.open("rb") as file:
            while (found := skip_record(file)) is not None:
                num_ops += found
    return num_ops


def _digest(text: str) -> str:
    """A short hash for file names: job and key may hold slashes or be confidential."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
