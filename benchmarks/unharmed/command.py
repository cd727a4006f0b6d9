"""Runs trainings with Paceline and without, under faults, and compares exit status and losses."""

import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.unharmed.cases import (
    Address,
    Case,
    Ending,
    plain_cases,
    servers,
    torchrun_cases,
)
from benchmarks.unharmed.training import PLAN

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("training.py")
WITHIN_S = 900.0


@dataclass(frozen=True, slots=True)
class Result:
    """A training's exit status, and what each rank of each attempt has written, by file."""

    status: int
    losses: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A case, how it ended, how it ends without Paceline, and what it printed."""

    case: Case
    found: Result
    expected: Result
    output: str
    took_s: float

    @property
    def is_equal(self) -> bool:
        """Whether Paceline changed nothing."""
        return self.found == self.expected


class Zygote:
    """A process that has imported PyTorch, and forks one training at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(SCRIPT), "--zygote"],
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, environment: Mapping[str, str]) -> int:
        """The exit status of one training."""
        asked, told = self._process.stdin, self._process.stdout
        if asked is None or told is None:
            raise RuntimeError("the zygote has no pipes")
        print(json.dumps(dict(environment)), file=asked, flush=True)
        return int(told.readline())

    def close(self) -> None:
        """End it."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(WITHIN_S)


class Runner:
    """Runs trainings, several at a time; those without Paceline once for each ending."""

    def __init__(self, directory: Path, addresses: Mapping[str, Address]) -> None:
        self._directory = directory
        self._addresses = addresses
        self._local = threading.local()
        self._zygotes: list[Zygote] = []
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._begun: set[Ending] = set()
        self._expected: dict[Ending, Future[Result]] = {}

    def compare(self, case: Case) -> Comparison:
        """One training beside its server, and the same ending without Paceline."""
        expected = self._expected_of(case.ending)
        began_s = time.monotonic()
        address = self._addresses[case.server]
        found, output = self._run(case.ending, address, closes=case.closes)
        return Comparison(case, found, expected, output, time.monotonic() - began_s)

    def _expected_of(self, ending: Ending) -> Result:
        with self._lock:
            expected = self._expected.setdefault(ending, Future())
            is_mine = ending not in self._begun
            self._begun.add(ending)
        if is_mine:
            try:
                expected.set_result(self._run(ending, None, closes=False)[0])
            except BaseException as error:
                expected.set_exception(error)
        return expected.result()

    def close(self) -> None:
        """End the zygotes."""
        for each in self._zygotes:
            each.close()

    def _run(self, ending: Ending, address: Address | None, *, closes: bool) -> tuple[Result, str]:
        out = self._directory / f"run-{next(self._numbers)}"
        out.mkdir()
        plan = {
            "is_recorded": address is not None,
            "url": address.url if address else "",
            "spool": address.spool if address else None,
            "token": "pl_unharmed_0123456789",
            "key": uuid.uuid4().hex,
            "fault": "sigterm" if ending.fault == "sigterm-handled" else ending.fault,
            "handles_sigterm": ending.fault == "sigterm-handled",
            "at": ending.place,
            "closes": closes,
            "out": str(out),
        }
        log = out / "log"
        environment = {PLAN: json.dumps(plan), "UNHARMED_LOG": str(log)}
        status = _torchrun(environment, log) if ending.is_torchrun else self._fork(environment)
        losses = {each.name: each.read_text() for each in sorted(out.glob("losses-*"))}
        return Result(status, losses), log.read_text(errors="replace") if log.exists() else ""

    def _fork(self, environment: Mapping[str, str]) -> int:
        zygote = getattr(self._local, "zygote", None)
        if zygote is None:
            zygote = self._local.zygote = Zygote()
            self._zygotes.append(zygote)
        return zygote.run(environment)


def _torchrun(environment: Mapping[str, str], log: Path) -> int:
    command = [sys.executable, "-P", "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "--max-restarts", "1", "--monitor-interval", "0.1"]
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*command, str(SCRIPT)],
            env={**_environment(), **environment},
            stdout=file,
            stderr=file,
            start_new_session=True,  # so that its workers end with it
        )
        try:
            return process.wait(WITHIN_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _environment() -> dict[str, str]:
    paths = [str(ROOT / "client"), os.environ.get("PYTHONPATH", "")]
    given = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
    return {**os.environ, **given, "TORCH_CPP_LOG_LEVEL": "ERROR"}


def compared(
    cases: Sequence[Case],
    directory: Path,
    *,
    num_workers: int = 3,
    on_found: Callable[[Comparison], None] = lambda _: None,
) -> tuple[list[Comparison], list[str]]:
    """Run the cases; the comparisons, and the servers that cannot be had on this machine."""
    with servers(directory) as addresses:
        runner = Runner(directory, addresses)
        try:
            usable = [each for each in cases if each.server in addresses]
            with ThreadPoolExecutor(num_workers) as pool:
                found = []
                for each in pool.map(runner.compare, usable):
                    found.append(each)
                    on_found(each)
        finally:
            runner.close()
    return found, sorted({each.server for each in cases} - addresses.keys())


def chosen(num_runs: int, num_torchrun: int, seed: int) -> list[Case]:
    """So many cases, drawn; those under torchrun are the last."""
    draw = random.Random(seed)  # noqa: S311
    plain, under = plain_cases(), torchrun_cases()
    num_torchrun = min(num_torchrun, len(under), num_runs)
    draw.shuffle(plain)
    draw.shuffle(under)
    return [*plain[: num_runs - num_torchrun], *under[:num_torchrun]]


def unharmed(
    runs: Annotated[int, typer.Option(min=1, help="Trainings with Paceline.")] = 200,
    torchrun: Annotated[int, typer.Option(min=0, help="Of these, under torchrun.")] = 20,
    seed: Annotated[int, typer.Option(help="Which of the cases are drawn.")] = 1,
    workers: Annotated[int, typer.Option(min=1, help="Trainings at a time.")] = 3,
) -> None:
    """Compare exit status and losses of trainings with Paceline and without, under faults."""
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="unharmed-") as directory:
        cases = chosen(runs, torchrun, seed)
        found, missing = compared(
            cases, Path(directory), num_workers=workers, on_found=_print_comparison
        )
    differing = [each for each in found if not each.is_equal]
    if missing:
        print(f"left out, not to be had here: {', '.join(missing)}")
    under = sum(each.case.ending.is_torchrun for each in found)
    longest = max(found, key=lambda each: each.took_s)
    print(
        f"{len(differing)} of {len(found)} trainings ({under} under torchrun) differ in exit "
        f"status or loss; {time.monotonic() - began_s:.0f} s; the longest took "
        f"{longest.took_s:.1f} s ({longest.case.name})"
    )
    raise typer.Exit(1 if differing else 0)


def _print_comparison(each: Comparison) -> None:
    verdict = "equal" if each.is_equal else "DIFFERS"
    print(f"{verdict}: {each.case.name}: {_words(each.found)}, {each.took_s:.1f} s", flush=True)
    if not each.is_equal:
        print(f"  without Paceline: {_words(each.expected)}")
        print("  " + "\n  ".join(each.output.splitlines()[-12:]), flush=True)


def _words(result: Result) -> str:
    lines = sum(len(text.splitlines()) for text in result.losses.values())
    return f"status {result.status} with {lines} losses in {len(result.losses)} files"
