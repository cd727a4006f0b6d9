"""How full the disk is, and what must no longer be written to it.

Three marks: from the first on operators are warned, from the second on the operations of closed
windows are not stored, from the third on no batch is taken. So a disk that fills keeps room for
what was acknowledged before. Where the disk itself says that it is full, nothing is stored at all.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import structlog

from app import formatting
from app.errors import DiskFull

log = structlog.get_logger()

DiskLevel = Literal["ok", "warn", "raw", "stop"]
LEVELS: tuple[DiskLevel, ...] = ("ok", "warn", "raw", "stop")

# SQLite, the queue and a rollback need some blocks even to fail in order.
FULL_BELOW_BYTES = 64 << 10
LEAVE_BELOW = 0.02  # share below its mark at which a level is left: no level flaps
MEASURE_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """Bytes of one disk, without those that only root may use.

    `reusable_bytes` are those of `free_bytes` that lie inside a database's files: what deleted rows
    have left, and new ones will take. None where a file that holds less is smaller.
    """

    used_bytes: int
    free_bytes: int
    reusable_bytes: int | None = None

    @property
    def used_share(self) -> float:
        """0 to 1."""
        total = self.used_bytes + self.free_bytes
        return self.used_bytes / total if total else 1.0


def disk_usage(directory: Path) -> DiskUsage:
    """Of the disk that a directory is on. May raise OSError."""
    disk = os.statvfs(directory)
    used_blocks = disk.f_blocks - disk.f_bfree
    return DiskUsage(used_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize)


def free_bytes(directory: Path) -> int | None:
    """Free bytes of the disk that a directory is on; None where there is no such directory."""
    try:
        return disk_usage(directory).free_bytes
    except OSError:
        return None


def sqlite_directory(url: str) -> Path | None:
    """The directory of the file in an SQLite URL; None for other databases."""
    scheme, _, rest = url.partition(":///")
    path = rest.partition("?")[0]
    if scheme.partition("+")[0] != "sqlite" or path in ("", ":memory:"):
        return None
    return Path(path).absolute().parent


def full_sentence(left_bytes: int) -> str:
    """The error message of a disk without room."""
    return f"the server's disk is full, with {formatting.bytes_text(left_bytes)} free"


@dataclass(frozen=True, slots=True)
class DiskMarks:
    """Used shares from which on levels begin.

    With `ample_bytes` free or more, operations and results are stored at any share: 5 % of a large
    disk may be space for weeks.
    """

    warn: float = 0.80
    raw: float = 0.90
    stop: float = 0.95
    ample_bytes: int = 10 << 30

    def level(self, usage: DiskUsage, before: DiskLevel) -> DiskLevel:
        """The level of this usage, after that level."""
        reached: DiskLevel = "ok"
        marks: dict[DiskLevel, float] = {"warn": self.warn, "raw": self.raw, "stop": self.stop}
        for level, mark in marks.items():
            is_left = LEVELS.index(before) < LEVELS.index(level)
            if usage.used_share < (mark if is_left else mark - LEAVE_BELOW):
                break
            if level == "warn" or usage.free_bytes < self.ample_bytes:
                reached = level
        return reached


class DiskWatch:
    """The fullest of the disks that this process's data is on, measured at most twice a second.

    Without directories (the data is on other machines) it knows nothing, and stops nothing. A
    measurement takes microseconds, and blocks only where SQLite would block, too.
    """

    def __init__(
        self,
        directories: Sequence[Path] = (),
        marks: DiskMarks = DiskMarks(),
        *,
        monotonic: Callable[[], float] = time.monotonic,
        measure: Callable[[Path], DiskUsage] = disk_usage,
    ) -> None:
        self._directories = tuple(directories)
        self._unmeasured: set[Path] = set()  # logged already
        self._marks = marks
        self._monotonic = monotonic
        self._measure = measure
        self._measure_at_s = float("-inf")
        self._usage: DiskUsage | None = None
        self.database_disk_bytes: int | None = None  # of a PostgreSQL; from the settings
        self._database: DiskUsage | None = None
        self._level: DiskLevel = "ok"

    def note_database(self, size_bytes: int, reusable_bytes: int = 0) -> None:
        """Save how many bytes the database on another machine takes of `database_disk_bytes`.

        Of its size, `reusable_bytes` are free for new rows.
        """
        if self.database_disk_bytes is not None:
            left_bytes = max(0, self.database_disk_bytes - size_bytes)
            self._database = DiskUsage(
                size_bytes - reusable_bytes, left_bytes + reusable_bytes, reusable_bytes
            )

    def usage(self) -> DiskUsage | None:
        """Of the fullest disk; None if none is known."""
        if self._monotonic() >= self._measure_at_s:
            self._measure_at_s = self._monotonic() + MEASURE_EVERY_S
            self._usage = self._fullest()
            self._note_level()
        return self._usage

    @property
    def level(self) -> DiskLevel:
        """The present level; `ok` if no disk is known."""
        self.usage()
        return self._level

    @property
    def stores_operations(self) -> bool:
        """Whether the operations of closed windows are to be stored."""
        return self.level in ("ok", "warn")

    def refuse_batches(self) -> None:
        """Call before a batch is taken; raises DiskFull if the last mark is reached."""
        usage = self.usage()
        if usage is not None and self._level == "stop":
            raise DiskFull(full_sentence(usage.free_bytes))

    def refuse_writes(self) -> None:
        """Raise DiskFull if there is no room for a write, even of what was acknowledged."""
        usage = self.usage()
        if usage is not None and usage.free_bytes < FULL_BELOW_BYTES:
            raise DiskFull(full_sentence(usage.free_bytes))

    def sentence(self) -> str | None:
        """The present level in words, for operators; None at level ok."""
        usage, level = self.usage(), self._level
        if usage is None or level == "ok":
            return None
        share, left = formatting.percent(usage.used_share), formatting.bytes_text(usage.free_bytes)
        return f"the disk is {share} full, with {left} free{_CONSEQUENCES[level]}"

    def _fullest(self) -> DiskUsage | None:
        usages = [] if self._database is None else [self._database]
        for directory in self._directories:
            try:
                usages.append(self._measure(directory))
                self._unmeasured.discard(directory)
            except OSError as error:
                if directory not in self._unmeasured:
                    self._unmeasured.add(directory)
                    log.warning("disk not measured", directory=str(directory), reason=str(error))
        return max(usages, key=lambda usage: usage.used_share, default=None)

    def _note_level(self) -> None:
        before = self._level
        self._level = "ok" if self._usage is None else self._marks.level(self._usage, before)
        if self._level == before:
            return
        sentence = self.sentence() or "the disk has room again"
        write = log.info if self._level == "ok" else log.warning
        write(sentence, directories=list(map(str, self._directories)), level=self._level)


_CONSEQUENCES = {
    "warn": "",
    "raw": ": the operations of new windows are not stored",
    "stop": ": batches are refused until there is space",
}
