"""Batches on disk until the server has them: they outlive the process, if not the disk."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from pathlib import Path
from typing import BinaryIO

from .outbox import Outbox
from .spool_format import Damaged, Position, read_record, record_of, skipped
from .spool_state import AS_IT_IS, State
from .wire import Batch

try:
    import fcntl
except ImportError:  # not on Windows: two processes of one rank are not told apart there
    fcntl = None  # type: ignore[assignment]

MAX_SEGMENT_BYTES = 8 << 20

# Numbers that the server may have and that nobody knows any more are left out: it then speaks of
# lost batches, where it would take new ones for repeated and say nothing. It lets so many go.
MOST_LEFT_OUT = 1 << 20
FEW_LEFT_OUT = 1 << 12  # more than are sent before a disk has what was written

log = logging.getLogger("paceline_client")
_in_use: set[Path] = set()  # by this process, which its own locks do not keep out


class Spool(Outbox):
    """Every batch goes to disk first; what the server has taken is removed, a segment at a time.

    Nothing is synchronised to the disk: what a process leaves behind is safe, what a machine
    leaves that loses its power may not be, and then its CRC tells. Where the disk fails or is
    full, batches are kept in memory as if there was no spool.
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
        self._is_restart = is_restart  # of this run: somewhere else, if nothing of it is here
        self._worker = f"{_digest(job)}-{rank}"
        self._name = f"{self._worker}-{_digest(run_key)}"
        self._max_bytes = max_bytes
        self._segment_bytes = min(MAX_SEGMENT_BYTES, max(1 << 16, max_bytes // 8))
        self._num_ops: dict[int, int] = {}  # not off our hands, by segment
        self._bytes: dict[int, int] = {}  # by segment
        self._state = State([self._path("state0"), self._path("state1")])
        self._position = Position(1, 0, 0)
        self._write_to = 1
        self._head: Batch | None = None
        self._after_head = 0
        self._lock: BinaryIO | None = None
        self._is_open = False
        self._warned = False

    def open(self) -> None:
        """Find what an earlier process of this run has left, and remove what other runs have."""
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._take_lock()
            self._remove_other_runs()
            self._find()
            self._is_open = True
            self._save(self._position)
        except OSError as error:
            self.next_seq = MOST_LEFT_OUT if self._is_restart else 0
            self._warn(error)

    @property
    def has_room(self) -> bool:
        """Whether another batch may be put in."""
        return self._held is None and (
            not self._is_open or sum(self._bytes.values()) < self._max_bytes or not self._num_ops
        )

    def put(self, batch: Batch) -> None:
        """Write a batch to disk; into memory where that fails."""
        if not self._is_open:
            super().put(batch)
            return
        try:
            self._append(record_of(batch), batch.num_ops)
        except OSError as error:
            self._warn(error)
            super().put(batch)

    def head(self) -> Batch | None:
        """The batch to be sent next: those on disk are older than the one in memory."""
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
        self._save(Position(segment, self._after_head, self.next_seq))
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
            raise OSError(f"{path} is in use by another recorder of this process")
        self._lock = _opened(path)
        if fcntl is not None:  # of this process alone: children that it forks do not hold it
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _in_use.add(path)

    def _find(self) -> None:
        """Where the earlier process was; without that nobody knows which numbers are free."""
        segments = sorted(int(path.suffixes[-2][1:]) for path in self._segments())
        known, is_doubtful = self._state.read()
        if known is None:
            if segments or is_doubtful or self._is_restart:
                self.next_seq = MOST_LEFT_OUT
            self._give_up_all()
            segments = []
        else:
            self._position, self.next_seq = known, known.next_seq
            # What the first number is of is gone, and others came after it.
            is_late = is_doubtful or max(segments, default=0) > known.segment
            self.next_seq += FEW_LEFT_OUT * (is_late and known.segment not in segments)
        for segment in segments:
            if segment < self._position.segment:
                self._path(f"{segment}.seg").unlink()
            else:
                self._count(segment)
        # A segment's end may be torn: nothing is written behind it.
        self._write_to = max([self._position.segment - 1, *segments]) + 1
        if self._position.segment not in segments:
            self._position = Position(self._write_to, 0, self.next_seq)
        self._go_to_first()

    def _count(self, segment: int) -> None:
        path, num_ops = self._path(f"{segment}.seg"), 0
        self._bytes[segment] = path.stat().st_size
        with path.open("rb") as file, contextlib.suppress(Damaged):
            if segment == self._position.segment:
                file.seek(self._position.offset)
            while (found := skipped(file)) is not None:
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
            with contextlib.suppress(OSError):  # half a record would hide those behind it
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
        except (OSError, Damaged):
            self._head = None
            self.damaged_ops += self._num_ops[segment]
        if self._head is None:
            self._leave(segment)

    def _leave(self, segment: int) -> None:
        """All of a segment is off our hands."""
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
            self._position = Position(first, 0, self.next_seq)

    def _save(self, position: Position) -> None:
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
                "paceline: %d operations of an earlier run are removed from %s: nobody wants them",
                num_ops,
                self._directory,
            )
        for path in paths:
            with contextlib.suppress(OSError):
                path.unlink()

    def _give_up_all(self) -> None:
        """Nobody knows which of the batches there were sent."""
        num_ops = sum(map(_num_ops_in, self._segments()))
        if num_ops:
            self.damaged_ops += num_ops
            log.warning(
                "paceline: what an earlier process left in %s is damaged: %d operations are lost",
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
            log.warning("paceline: nothing is kept in %s: %s", self._directory, error)


def _opened(path: Path) -> BinaryIO:
    """A file of ours to be appended to, which nobody else may read."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | AS_IT_IS, 0o600), "ab")


def _num_ops_in(path: Path) -> int:
    """Operations in what is left of a segment; none in any other file."""
    num_ops = 0
    if path.suffix == ".seg":
        with contextlib.suppress(OSError, Damaged), path.open("rb") as file:
            while (found := skipped(file)) is not None:
                num_ops += found
    return num_ops


def _digest(text: str) -> str:
    """A file's name must hold no slash, and tell nobody what it is made of."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
