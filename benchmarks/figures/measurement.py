"""One measured row, and how benchmarks and peers are run for it."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.figures.tables import Cells
from benchmarks.measuring import BenchmarkFailed

ABSENT = "not installed here"
NONE = "none"  # a cell to which nothing belongs
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "benchmarks.md"


@dataclass(frozen=True, slots=True)
class Options:
    """The folder of traces and recordings, and the interpreter that has the peers."""

    shared: Path
    peer_python: str


@dataclass(frozen=True, slots=True)
class Measured:
    """The cells of a row, and the figures that they were made of."""

    cells: Cells
    figures: dict[str, Any]


def benchmark(*arguments: str) -> list[dict[str, Any]]:
    """The JSON objects that a benchmark of this repository prints, in a process of its own.

    Raises:
        BenchmarkFailed: it printed none, or did not run; a missed bar (exit status 1) is no error.
    """
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    found = list(_objects(done.stdout))
    if done.returncode not in (0, 1) or not found:
        raise BenchmarkFailed(f"{arguments[0]} ended with status {done.returncode}")
    return found


def peer(options: Options, package: str, script: Path, *arguments: str) -> dict[str, Any] | None:
    """What a script prints under the peers' interpreter; None where it lacks the package.

    Raises:
        BenchmarkFailed: the package is there, and the script fails.
    """
    if not has_package(options.peer_python, package):
        return None
    done = subprocess.run(
        [options.peer_python, str(script), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BenchmarkFailed(f"{script.name} ended with status {done.returncode}")
    printed: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return printed


def has_package(python: str, package: str) -> bool:
    """Whether an interpreter can import it."""
    done = subprocess.run([python, "-c", f"import {package}"], capture_output=True, check=False)
    return done.returncode == 0


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """JSON objects one after the other, on one line each or indented."""
    decoder, at = json.JSONDecoder(), 0
    while (at := text.find("{", at)) >= 0:
        found, at = decoder.raw_decode(text, at)
        yield found


def machine() -> str:
    """Processor model, cores and memory, as the system tells them."""
    model = _field("/proc/cpuinfo", "model name") or "unknown processor"
    memory = _field("/proc/meminfo", "MemTotal")
    gigabytes = f", {int(memory.split()[0]) * 1024 / 1e9:.0f} GB" if memory else ""
    return f"{model.replace('(R)', '')}, {os.cpu_count()} cores{gigabytes}"


def _field(path: str, name: str) -> str:
    """The first value of that name in a file of `name: value` lines; empty without one."""
    if not Path(path).exists():
        return ""
    lines = (line.partition(":") for line in Path(path).read_text().splitlines())
    return next((value.strip() for key, _, value in lines if key.strip() == name), "")


def commit() -> str:
    """The commit that is checked out, and whether files differ from it, but for the page itself."""
    revision = _git("rev-parse", "--short", "HEAD") or "unknown"
    changes = _git("status", "--porcelain", "--", ".", f":(exclude){PAGE.relative_to(ROOT)}")
    return f"{revision} + changes" if changes else revision


def _git(*arguments: str) -> str:
    """What git prints; empty without git, or outside a checkout."""
    git = shutil.which("git")
    if git is None:
        return ""
    done = subprocess.run([git, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def today() -> str:
    """The date, in UTC."""
    return datetime.now(UTC).date().isoformat()


def duration(seconds: float) -> str:
    """Three digits, in the unit that suits."""
    for unit, length_s in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= length_s:
            return f"{_three_digits(seconds / length_s)} {unit}"
    return f"{_three_digits(seconds / 1e-6)} us"


def count(number: float) -> str:
    """Three digits, in millions where there are as many."""
    return f"{_three_digits(number / 1e6)} M" if number >= 1e6 else f"{_three_digits(number):s}"


def _three_digits(value: float) -> str:
    return f"{float(f'{value:.3g}'):,.10g}"


def share_of(share: float | None, num_all: int) -> str:
    """A share of jobs as "39 of 40 (97.5 %)"."""
    if share is None or not num_all:
        return NONE
    return f"{round(share * num_all)} of {num_all} ({100 * share:.3g} %)"
