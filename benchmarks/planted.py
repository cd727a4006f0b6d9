"""`planted`: are faults found that are put into the code one at a time?

planted_faults.toml lists the faults. Each goes into a copy of a commit, and the tests of its
package run there with `-x`, as `make test` selects them. Tests that fail without a fault judge
none, nor does a test that also fails when it is run again without it. With `--append` a later run
of the same commit goes on where this one has ended.
"""

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, RLock
from typing import Annotated, Any, Literal

import typer

from app.errors import InvalidRequest
from benchmarks.measuring import end_group

ROOT = Path(__file__).parents[1]
FAULTS = Path(__file__).with_name("planted_faults.toml")
# "unjudged": the tests fail without the fault; "absent": the commit has no such text.
Outcome = Literal["passed", "found", "missed", "timed out", "unjudged", "absent"]
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
# Exit statuses of pytest: some test failed; interrupted, its own error, wrong arguments, no tests.
_FAILS, _NOT_RUN = 1, {2, 3, 4, 5}


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault: in `file`, below app/, `new` takes the place of `old`, which is there once.

    `tests` is a folder or a pattern of files, from the root of the repository.
    """

    file: str
    function: str
    what: str
    tests: str
    old: str
    new: str

    @property
    def name(self) -> str:
        """What identifies it."""
        return f"{self.file} {self.function}"


@dataclass(frozen=True, slots=True)
class Result:
    """The tests with a fault, or without one, where `fault` is empty; `first` is what failed."""

    revision: str
    fault: str
    tests: str
    outcome: Outcome = "unjudged"
    seconds: float = 0.0
    first: str = ""


def read_faults() -> list[Fault]:
    """All faults of the list."""
    return [Fault(**row) for row in tomllib.loads(FAULTS.read_text())["fault"]]


def planted(
    rev: Annotated[str, typer.Option(help="Commit whose code and tests are copied.")] = "HEAD",
    only: Annotated[str, typer.Option(help="Part of the faults' files or functions.")] = "",
    parallel: Annotated[int, typer.Option(min=1, help="Copies that are used at a time.")] = 1,
    append: Annotated[Path | None, typer.Option(help="File of results, known and new.")] = None,
    whole: Annotated[bool, typer.Option(help="Only missed ones, on whole packages.")] = False,
    limit_s: Annotated[float, typer.Option(min=1.0, help="Seconds for each fault.")] = 300.0,
) -> None:
    """Plant every fault by itself, and run the tests of its package.

    Example: python -m benchmarks planted --only engine/ --append planted.jsonl
    """
    revision = _git("rev-parse", "--verify", f"{rev}^{{commit}}").decode().strip()
    faults = [fault for fault in read_faults() if only in fault.name]
    log, runs = ResultLog(revision, append), RunningTests()
    for interrupt in (signal.SIGINT, signal.SIGTERM):  # no exception: it might leave a lock held
        signal.signal(interrupt, lambda *_: runs.stop())
    groups: dict[str, list[Fault]] = defaultdict(list)
    for fault in faults:
        package = Path(fault.file).parent.parts[:1]  # none beside the packages
        tests = "/".join(("tests", *package)) if whole and package else fault.tests
        is_new = (fault.name, tests) not in log.known
        if is_new and (not whole or log.outcome(fault) == "missed"):
            groups[tests].append(fault)
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(min(parallel, len(groups))):
            copies.put(make_copy(revision, Path(folder) / f"copy-{number}"))

        def judge(tests: str) -> None:
            copy = copies.get()
            try:
                unplanted = log.known.get(("", tests)) or log.add(
                    run_tests(runs, copy, Result(revision, "", tests), 4 * limit_s)  # to the end
                )
                for fault in groups[tests]:
                    if not runs.are_stopped:
                        log.add(judge_fault(runs, copy, fault, unplanted, limit_s))
            finally:
                copies.put(copy)

        with ThreadPoolExecutor(parallel) as pool:
            list(pool.map(judge, groups))
    if runs.are_stopped:
        raise typer.Exit(128 + signal.SIGINT)
    typer.echo(json.dumps(summary(revision, faults, log)))


def summary(revision: str, faults: Sequence[Fault], log: "ResultLog") -> dict[str, Any]:
    """Counts of outcomes by package and altogether, and the names of faults that were not found."""
    packages: dict[str, Counter[str]] = defaultdict(Counter)
    outcomes = {fault: log.outcome(fault) or "unjudged" for fault in faults}
    for fault, outcome in outcomes.items():
        packages[Path(fault.file).parts[0]][outcome] += 1
    left = [fault.name for fault in faults if outcomes[fault] != "found"]
    total = Counter(outcomes.values())
    return {"revision": revision, "packages": packages, "total": total, "not_found": left}


class ResultLog:
    """`known` results of one commit by fault and tests; earlier unjudged ones do not count."""

    def __init__(self, revision: str, path: Path | None) -> None:
        self._path, self._lock = path, Lock()
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        earlier = [Result(**json.loads(line)) for line in lines]
        useful = [e for e in earlier if e.revision == revision and e.outcome != "unjudged"]
        self.known = {(run.fault, run.tests): run for run in useful}

    def outcome(self, fault: Fault) -> Outcome | None:
        """What its tests, or all of its package, have found; None as long as nothing is known."""
        known = [run.outcome for run in self.known.values() if run.fault == fault.name]
        return "found" if "found" in known else next(iter(known), None)

    def add(self, result: Result) -> Result:
        """Keep a result and print it; thread-safe."""
        with self._lock:
            self.known[result.fault, result.tests] = result
            if self._path is not None:
                with self._path.open("a") as file:
                    file.write(json.dumps(asdict(result)) + "\n")
            what = result.fault or f"without a fault: {result.tests}"
            typer.echo(f"{result.outcome:9} {result.seconds:6.1f} s  {what}  {result.first}")
        return result


class RunningTests:
    """Tests that run, in several threads, until they are stopped; then no others begin."""

    def __init__(self) -> None:
        self.are_stopped = False
        self._pids: set[int] = set()
        self._lock = RLock()  # a signal may come while this thread holds it

    def run(self, copy: Path, tests: Sequence[str], limit_s: float) -> tuple[int | None, str]:
        """Pytest's exit status, None where the time was over, and what it printed."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
        env, status = _environment(copy), None
        with tempfile.TemporaryFile("w+") as output:
            with self._lock:
                if self.are_stopped:
                    return -signal.SIGKILL, ""
                process = subprocess.Popen(
                    command, cwd=copy, env=env, stdout=output, stderr=output, start_new_session=True
                )
                self._pids.add(process.pid)
            with suppress(subprocess.TimeoutExpired):
                status = process.wait(limit_s)
            with self._lock:
                self._pids.remove(process.pid)
            end_group(process.pid)
            process.wait()
            output.seek(0)
            return status, output.read()

    def stop(self) -> None:
        """End all of them, with what they have started."""
        with self._lock:
            self.are_stopped = True
            for pid in self._pids:
                end_group(pid)


def judge_fault(
    runs: RunningTests, copy: Path, fault: Fault, unplanted: Result, limit_s: float
) -> Result:
    """Whether the tests find the fault, after their run without it in the same commit."""
    path = copy / "app" / fault.file
    result = Result(unplanted.revision, fault.name, unplanted.tests)
    if not path.exists() or path.read_text().count(fault.old) != 1:
        return replace(result, outcome="absent")
    if unplanted.outcome != "passed":
        return result
    with fault_in_place(copy, fault):
        judged = run_tests(runs, copy, result, limit_s, unplanted.seconds)
    if judged.outcome == "found" and judged.first:
        status, _ = runs.run(copy, [judged.first], limit_s)
        if status == _FAILS:
            return replace(judged, outcome="unjudged")
    return judged


@contextmanager
def fault_in_place(copy: Path, fault: Fault) -> Iterator[None]:
    """Plant a fault for the length of the block; then the file is as before, with its time."""
    path = copy / "app" / fault.file
    source, status = path.read_bytes(), path.stat()
    # A kernel compiled with the fault may be inside those of other files, whose cache stays valid.
    kernels = "__pycache__/*.nb[ic]" if b"@kernel" in source else "no kernel"
    cached = {path: path.read_bytes() for path in (copy / "app").rglob(kernels)}
    path.write_bytes(source.replace(fault.old.encode(), fault.new.encode()))
    try:
        yield
    finally:
        path.write_bytes(source)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        for path in [*(copy / "app").rglob(kernels)]:
            path.unlink()
        for path, content in cached.items():
            path.write_bytes(content)


def run_tests(
    runs: RunningTests, copy: Path, of: Result, limit_s: float, unplanted_s: float = 0.0
) -> Result:
    """Run the tests until the first one fails; `unplanted_s` is what they take without a fault."""
    paths = sorted(str(path.relative_to(copy)) for path in copy.glob(of.tests))
    if not paths:
        return replace(of, first="no tests")
    began_s = time.monotonic()
    status, printed = runs.run(copy, paths, limit_s)
    seconds = round(time.monotonic() - began_s, 1)
    failed = _FAILED.search(printed)
    outcome = _outcome(status, of.fault, unplanted_s / limit_s)
    return replace(of, outcome=outcome, seconds=seconds, first=failed[1] if failed else "")


def _outcome(status: int | None, fault: str, unplanted_share: float) -> Outcome:
    """By pytest's exit status, None where the time was over."""
    if status == 0:
        return "missed" if fault else "passed"
    if not fault or status in _NOT_RUN or (status is not None and status < 0):  # killed
        return "unjudged"
    # Tests that hang only with the fault have found it.
    return "timed out" if status is None and unplanted_share >= 0.5 else "found"


def make_copy(revision: str, folder: Path) -> Path:
    """The commit's files in a new folder, with compiled kernels of what is as in this checkout."""
    with tarfile.open(fileobj=io.BytesIO(_git("archive", revision))) as archive:
        archive.extractall(folder, filter="data")
    with suppress(FileExistsError):  # what tests read beside the checkout
        (folder.parent / "shared").symlink_to(ROOT.parent / "shared")
    for path in (folder / "app").rglob("*.py"):
        own = ROOT / path.relative_to(folder)
        # By the time of its file a compiled kernel is known to be valid.
        if own.exists() and own.read_bytes() == path.read_bytes():
            shutil.copystat(own, path)
    for cache in (ROOT / "app").rglob("__pycache__"):
        to = folder / cache.relative_to(ROOT)
        if to.parent.exists():
            shutil.copytree(cache, to)
    # Else every fault would be missed.
    check = "import app, paceline_client as c, sys; sys.exit(f'{app}{c}'.count(sys.argv[1]) != 2)"
    command = [sys.executable, "-c", check, str(folder)]
    subprocess.run(command, cwd=folder, env=_environment(folder), check=True)
    return folder


def _environment(copy: Path) -> dict[str, str]:
    # As in CI: each run draws the same examples.
    return os.environ | {"CI": "1", "PYTHONPATH": f"{copy}{os.pathsep}{copy / 'client'}"}


def _git(*words: str) -> bytes:
    command = [shutil.which("git") or "git", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        raise InvalidRequest(done.stderr.decode(errors="replace").strip())
    return done.stdout
