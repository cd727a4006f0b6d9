"""Rounds in which a disk is filled under load and freed again, and what was seen meanwhile."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tests.harness.backends import find_programs
from tests.harness.http_client import answer_to
from tests.harness.load import Load, PushHabits
from tests.harness.processes import NotInTime, wait_until
from tests.harness.served import ServedStack
from tests.harness.small_disk import SmallDisk, small_disk
from tests.harness.stack import TOKEN, Stack
from tests.harness.trial import SMALL_JOB, Trial

DiskBackend = Literal["embedded", "postgresql"]
ROOM_BYTES = 12 << 20
BACK_WITHIN_S = 10.0
REFUSED_WITHIN_S = 20.0
HABITS = PushHabits(parts=2, resent=0.1, held_back=0.1, steps_per_s=4.0)
# Paths that are answered from memory or the database: all have to work without a write.
PAGES = ("/healthz", "/", "/hosts", "/api/v1/jobs", "/api/v1/alerts", "/api/v1/fleet", "/metrics")
LEFT_BYTES = (0, 0, 4096, 30_000, 100_000)


@dataclass
class DiskRounds:
    """What the rounds showed; `violations` is empty if all was well."""

    back_s: list[float] = field(default_factory=list)
    analysed_s: list[float] = field(default_factory=list)
    refusals: dict[str, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """For a report."""
        return {
            "rounds": len(self.back_s),
            "back_s": {"median": _median(self.back_s), "max": max(self.back_s, default=None)},
            "analysed_s": {
                "median": _median(self.analysed_s),
                "max": max(self.analysed_s, default=None),
            },
            "refusals": self.refusals,
        }


@contextmanager
def on_small_disk(
    backend: DiskBackend, directory: Path
) -> Iterator[tuple[ServedStack | Stack, SmallDisk]]:
    """A stack with all of its data on a disk that has 12 MB for it.

    Embedded: a disk of 12 MB. PostgreSQL and the queue: 12 MB more than an empty database takes.
    """
    if backend == "embedded":
        with small_disk(directory / "disk", ROOM_BYTES) as disk:
            data = disk.path / "data"
            data.mkdir()
            with ServedStack(data, directory) as served:
                yield served, disk
        return
    if find_programs() is None:
        raise NotInTime("no PostgreSQL server is installed here")
    # Where the user postgres may go, too.
    parent = Path(tempfile.mkdtemp(prefix="pl-disk-"))
    parent.chmod(0o755)
    with (
        small_disk(parent / "disk", 256 << 20) as disk,
        Stack(directory, store="postgresql", data_on=disk.path) as stack,
    ):
        disk.resize(ROOM_BYTES)
        yield stack, disk
    shutil.rmtree(parent, ignore_errors=True)


def run_rounds(
    stack: ServedStack | Stack, disk: SmallDisk, trial: Trial, count: int, seed: int
) -> DiskRounds:
    """Fill and free the disk so many times, at random moments, more or less full."""
    rng, seen = np.random.default_rng(seed), DiskRounds()
    (load,) = trial.loads
    for number in range(count):
        pages_stay = isinstance(stack, ServedStack)
        try:
            _one_round(stack, disk, load, rng, seen, pages_stay=pages_stay)
        except NotInTime as error:
            disk.free()
            seen.violations.append(f"round {number}: {error}")
        trial.faults += 1
    seen.refusals = dict(load.refusals)
    return seen


def _one_round(
    stack: ServedStack | Stack,
    disk: SmallDisk,
    load: Load,
    rng: np.random.Generator,
    seen: DiskRounds,
    *,
    pages_stay: bool,
) -> None:
    retries = load.retries
    disk.fill(int(rng.choice(LEFT_BYTES)))
    _wait(stack, lambda: load.retries > retries + 3, "batches are refused", REFUSED_WITHIN_S)
    hold_s = float(rng.uniform(0.5, 3.0))
    with_pages = pages_stay

    def look() -> bool:
        nonlocal with_pages
        disk.fill()  # whatever was freed meanwhile
        if with_pages:
            seen.violations += _page_violations(stack.api_ports[0])
            with_pages = False
        return False

    with suppress(NotInTime):
        _wait(stack, look, "", hold_s)
    steps, closed = load.num_steps, load.closed_steps()
    disk.free()
    seen.back_s.append(
        round(_wait(stack, lambda: load.num_steps > steps, "a step is taken", BACK_WITHIN_S), 2)
    )
    more_s = _wait(stack, lambda: load.closed_steps() > closed, "a window closes", BACK_WITHIN_S)
    seen.analysed_s.append(round(seen.back_s[-1] + more_s, 2))
    if seen.analysed_s[-1] > BACK_WITHIN_S:
        seen.violations.append(f"analysed only {seen.analysed_s[-1]} s after there was space")


def _wait(
    stack: ServedStack | Stack, condition: Callable[[], bool], what: str, within_s: float
) -> float:
    def holds() -> bool:
        stack.revive()
        return condition()

    return wait_until(holds, what, within_s)


def _page_violations(port: int) -> list[str]:
    found = [f"{path}: {answer}" for path in PAGES if (answer := _bad(port, path))]
    ready = answer_to(port, TOKEN, "/readyz")
    if ready is None or ready.status != 503 or b"disk" not in ready.body:
        found.append(f"/readyz does not name the disk: {ready}")
    return found


def _bad(port: int, path: str) -> str | None:
    answer = answer_to(port, TOKEN, path)
    if answer is None:
        return "no answer"
    return None if answer.status == 200 else f"{answer.status} {answer.body[:200]!r}"


def _median(values: list[float]) -> float | None:
    return float(np.median(values)) if values else None


def disk_trial(stack: ServedStack | Stack, name: str, seed: int) -> Trial:
    """A job that pushes to this stack, slowly enough for 12 MB."""
    return Trial(stack, name, [(SMALL_JOB, HABITS)], seed=seed)
