"""Imports damaged files in a separate process, and measures memory and time."""

import io
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from app.cli.importing.command import describe_import
from app.cli.output import printable
from app.engine.memory import release_large_blocks
from app.errors import PacelineError
from app.trace.readers.importing import ImportOptions, OperationImport
from app.trace.readers.published import trace_files
from app.trace.readers.registry import FORMATS, Format, format_named
from tests.harness.fuzz.damaged_files import DamagedFiles
from tests.harness.fuzz.decoding import (
    MAX_REPORTED,
    ROOM_BYTES,
    limit_memory,
    peak_bytes,
    reset_peak,
)
from tests.harness.samples import SAMPLES

ALL_FORMATS = "all"
_WARM_UP = 300
_REWRITE_EVERY = 50  # inputs between rewrites of all files: one is damaged at a time


def formats(name: str) -> list[str]:
    """Names of the selected formats.

    Raises:
        InvalidRequest: there is none of this name.
    """
    return [*FORMATS] if name == ALL_FORMATS else [format_named(name).name]


def import_in_process(name: str, mutations: int, seed: int) -> dict[str, Any]:
    """Figures of a format's damaged files, or by which signal the process died."""
    command = [sys.executable, "-m", __name__, name, str(mutations), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stdout.strip().rpartition("\n")[2]
        wrong = [f"the process died ({done.returncode}) {last} {done.stderr[-500:]}"]
        return {"format": name, "crashed": done.returncode, "wrong": wrong, "rss_growth_mb": 0.0}
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def import_all(name: str, mutations: int, seed: int) -> dict[str, Any]:
    """Figures of this many damaged inputs; `rss_growth_mb` is the growth since the start."""
    chosen = format_named(name)
    with tempfile.TemporaryDirectory(prefix="paceline-fuzz-", dir=_memory_folder()) as folder:
        return _Importing(chosen, Path(folder), seed).result(mutations)


class _Importing:
    def __init__(self, chosen: Format, folder: Path, seed: int) -> None:
        self._format = chosen
        self._folder = folder
        self._damaged = DamagedFiles(SAMPLES[chosen.name](), seed)
        self._wrong: list[str] = []
        self._outcomes: Counter[str] = Counter()
        self._slowest_ms = 0.0

    def result(self, mutations: int) -> dict[str, Any]:
        """The figures."""
        for number in range(_WARM_UP):
            self._import_one(-1 - number)
        before_bytes, began_s = reset_peak(), time.perf_counter()
        limit_memory(ROOM_BYTES)
        self._outcomes.clear()
        for number in range(mutations):
            self._import_one(number)
        return {
            "format": self._format.name,
            "mutations": mutations,
            **self._outcomes,
            "slowest_ms": self._slowest_ms,
            "seconds": time.perf_counter() - began_s,
            "wrong": self._wrong,
            "rss_growth_mb": (peak_bytes("self") - before_bytes) / 1e6,
        }

    def _import_one(self, number: int) -> None:
        name, content = self._damaged[number]
        if number % _REWRITE_EVERY == 0 or number < 0:
            for other, whole in self._damaged.files.items():
                (self._folder / other).write_bytes(whole)
        path = self._folder / name
        path.write_bytes(content)
        began_s = time.perf_counter()
        try:
            self._import()
            self._outcomes["taken"] += 1
        except PacelineError as error:
            self._outcomes["refused"] += 1
            self._check(number, str(error))
        except Exception as error:
            self._report(number, f"{name}: {error!r}")
        self._slowest_ms = max(self._slowest_ms, 1e3 * (time.perf_counter() - began_s))
        path.write_bytes(self._damaged.files[name])

    def _import(self) -> None:
        # The meta file is found beside the trace.
        files = [self._folder / each for each in self._damaged.files if not each.endswith(".yaml")]
        with closing(self._format.opened(files, ImportOptions())) as operations:
            use_ops(operations)

    def _check(self, number: int, message: str) -> None:
        """A refusal is one line that names a file."""
        if not any(each in message for each in self._damaged.files):
            self._report(number, f"names no file: {message}")
        if "\n" in message or len(message) > 1500:
            self._report(number, f"is no line: {message[:1500]!r}")

    def _report(self, number: int, reason: str) -> None:
        self._outcomes["wrong"] += 1
        if len(self._wrong) < MAX_REPORTED:
            self._wrong.append(printable(f"mutation {number}: {reason[:400]}"))


def use_ops(opened: OperationImport) -> None:
    """Write accepted operations like `paceline import --out` does."""
    described = opened.describe()
    job = described.job("nameless")
    describe_import(described, job)
    trace_files.import_meta_text(described, job)
    trace_files.write_import(opened, job, io.BytesIO())


def _memory_folder() -> str | None:
    shared = Path("/dev/shm")
    return str(shared) if shared.is_dir() else None


def main() -> None:
    """Import files in this process, which may crash, and print the figures."""
    name, mutations, seed = sys.argv[1:]
    release_large_blocks()
    sys.stdout.write(json.dumps(import_all(name, int(mutations), int(seed))) + "\n")


if __name__ == "__main__":
    main()
