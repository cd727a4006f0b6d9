"""Runs trainings with Paceline and without, under faults, and compares exit status and losses.

Needs PyTorch, typer and the client only: `python -m benchmarks.unharmed` runs where the service
cannot be installed.
"""

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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.unharmed.cases import (
    Address,
    Case,
    Ending,
    gpu_cases,
    plain_cases,
    servers,
    torchrun_cases,
)
from benchmarks.unharmed.training import PLAN

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("training.py")
WATCHER = b"exit_watcher.py"
WITHIN_S = 300.0
WATCHERS_END_WITHIN_S = 65.0  # twice what they try to reach a server
MAX_EXPECTED = 4  # runs without Paceline, where one with it differs from the first
MAX_LINES = 40  # of the output of a training that differs


@dataclass(frozen=True, slots=True)
class Result:
    """A training's exit status, and what each rank of each attempt has written, by file.

    `took_s` is until its end, and that of all that could write to its output.
    """

    status: int
    losses: Mapping[str, str]
    took_s: float = field(default=0.0, compare=False)

    @property
    def most_losses_of_first(self) -> int:
        """Losses that a rank of the first attempt has written."""
        first = [text for name, text in self.losses.items() if name.startswith("losses-0-")]
        return max((len(text.splitlines()) for text in first), default=0)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A case, how it ended, how it ends without Paceline, and what it printed.

    Without Paceline an ending may vary; then there are several.
    """

    case: Case
    found: Result
    expected: Sequence[Result]
    output: str
    requests: Mapping[str, int]

    @property
    def is_equal(self) -> bool:
        """Whether Paceline changed nothing."""
        return self.found in self.expected

    @property
    def is_void(self) -> bool:
        """Whether the training ends otherwise than it should, even without Paceline."""
        ending = self.case.ending
        return any(
            each.status != ending.status or each.most_losses_of_first != ending.num_losses
            for each in self.expected
        )

    @property
    def added_s(self) -> float:
        """How much longer the training took."""
        return self.found.took_s - max(each.took_s for each in self.expected)


class Zygote:
    """A process that has imported PyTorch, and forks one training at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(SCRIPT), "--zygote"],
            # PyTorch starts a thread for each GPU, and cannot be forked then.
            env={**_environment(), "CUDA_VISIBLE_DEVICES": ""},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if self._process.stdout is not None:
            self._process.stdout.readline()  # it is ready

    def run(self, environment: Mapping[str, str]) -> int:
        """The exit status of one training."""
        asked, told = self._process.stdin, self._process.stdout
        if asked is None or told is None:
            raise RuntimeError("the zygote has no pipes")
        print(json.dumps(dict(environment)), file=asked, flush=True)
        return int(told.readline())

    def close(self) -> None:
        """End it."""
        with self._process as process:
            if process.stdin is not None:
                process.stdin.close()
            process.wait(WITHIN_S)


class Runner:
    """Runs trainings, several at a time; those without Paceline once for each ending."""

    def __init__(
        self,
        directory: Path,
        addresses: Mapping[str, Address],
        *,
        until_s: float,
        gpu_ranks: int,
    ) -> None:
        self._directory = directory
        self._addresses = addresses
        self._until_s = until_s
        self._gpu_ranks = gpu_ranks
        self._local = threading.local()
        self._zygotes: list[Zygote] = []
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._expected: dict[Ending, Future[Result]] = {}

    def compare(self, case: Case) -> Comparison | None:
        """One training beside its server, and the same without Paceline; None for lack of time."""
        if time.monotonic() > self._until_s:
            return None
        expected = [self._expected_of(case.ending)]
        address, job = self._addresses[case.server], f"job-{next(self._numbers)}"
        found, output = self._run(case.ending, address, job, closes=case.closes)
        while found not in expected and len(expected) < MAX_EXPECTED:
            expected.append(self._run(case.ending)[0])
        return Comparison(case, found, expected, output, address.requests[job])

    def _expected_of(self, ending: Ending) -> Result:
        with self._lock:
            is_mine = ending not in self._expected
            expected = self._expected.setdefault(ending, Future())
        if is_mine:
            try:
                expected.set_result(self._run(ending)[0])
            except BaseException as error:
                expected.set_exception(error)
        return expected.result()

    def close(self) -> None:
        """End the zygotes."""
        for each in self._zygotes:
            each.close()

    def _run(
        self, ending: Ending, address: Address | None = None, job: str = "", *, closes: bool = False
    ) -> tuple[Result, str]:
        out = self._directory / f"run-{next(self._numbers)}"
        out.mkdir()
        plan = {
            "is_recorded": address is not None,
            "job": job,
            "url": address.url if address else "",
            "spool": address.spool if address else None,
            "token": "pl_unharmed_0123456789",
            "key": uuid.uuid4().hex,
            "fault": "sigterm" if ending.fault == "sigterm-handled" else ending.fault,
            "handles_sigterm": ending.fault == "sigterm-handled",
            "at": ending.place,
            "closes": closes,
            "is_gpu": ending.is_gpu,
            "out": str(out),
        }
        log = out / "log"
        environment = {PLAN: json.dumps(plan), "UNHARMED_LOG": str(log)}
        zygote = None if ending.is_torchrun else self._zygote()
        began_s = time.monotonic()
        if zygote is None:
            status = _torchrun(environment, log, self._gpu_ranks if ending.is_gpu else 3)
        else:
            status = zygote.run(environment)
        took_s = time.monotonic() - began_s
        losses = {each.name: text for each in out.glob("losses-*") if (text := each.read_text())}
        printed = log.read_text(errors="replace") if log.exists() else ""
        return Result(status, losses, took_s), printed

    def _zygote(self) -> Zygote:
        zygote: Zygote | None = getattr(self._local, "zygote", None)
        if zygote is None:
            zygote = self._local.zygote = Zygote()
            self._zygotes.append(zygote)
        return zygote


def _torchrun(environment: Mapping[str, str], log: Path, num_ranks: int) -> int:
    command = [sys.executable, "-P", "-m", "torch.distributed.run", "--standalone"]
    command += [
        "--nproc-per-node",
        str(num_ranks),
        "--max-restarts",
        "1",
        "--monitor-interval",
        "0.1",
    ]
    process = subprocess.Popen(
        [*command, str(SCRIPT)],
        env={**_environment(), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # so that its workers end with it
    )
    try:  # as a scheduler does, until nobody can write any more
        output, _ = process.communicate(timeout=WITHIN_S)
        log.write_bytes(output)
        return process.returncode
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
    num_parallel: int = 3,
    limit_s: float = float("inf"),
    gpu_ranks: int = 2,
    on_found: Callable[[Comparison], None] = lambda _: None,
) -> tuple[list[Comparison], list[str]]:
    """Run the cases; the comparisons, and the servers that cannot be had on this machine."""
    found = []
    with servers(directory) as addresses, ThreadPoolExecutor(num_parallel) as pool:
        until_s = time.monotonic() + limit_s
        runner = Runner(directory, addresses, until_s=until_s, gpu_ranks=gpu_ranks)
        usable = [each for each in cases if each.server in addresses]
        try:
            for each in pool.map(runner.compare, usable):
                if each is not None:
                    found.append(each)
                    on_found(each)
        finally:
            runner.close()
    return found, sorted({each.server for each in cases} - addresses.keys())


def chosen(num_runs: int, num_torchrun: int, seed: int, num_gpu: int = 0) -> list[Case]:
    """So many cases, drawn; those under torchrun are the last, but for those on a GPU."""
    draw = random.Random(seed)  # noqa: S311
    plain, under, gpu = plain_cases(), torchrun_cases(), gpu_cases()
    for each in (plain, under, gpu):
        draw.shuffle(each)
    num_torchrun = min(num_torchrun, len(under), num_runs)
    return [*plain[: num_runs - num_torchrun], *under[:num_torchrun], *gpu[:num_gpu]]


def watchers(directory: Path) -> int:
    """How many of the client's processes beside trainings of this benchmark are running."""
    found = 0
    for each in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if WATCHER in (each / "cmdline").read_bytes():
                found += os.fsencode(directory) in (each / "environ").read_bytes()
    return found


def unharmed(
    runs: Annotated[int, typer.Option(min=0, help="Trainings with Paceline on the CPU.")] = 200,
    torchrun: Annotated[int, typer.Option(min=0, help="Of these, under torchrun.")] = 120,
    gpu: Annotated[int, typer.Option(min=0, help="More of them, with NCCL on one GPU.")] = 0,
    gpu_ranks: Annotated[int, typer.Option(min=1, help="Ranks on that GPU.")] = 2,
    seed: Annotated[int, typer.Option(help="Which of the cases are drawn.")] = 1,
    skip: Annotated[int, typer.Option(min=0, help="Leave out the first so many.")] = 0,
    parallel: Annotated[int, typer.Option(min=1, help="Trainings at a time.")] = 3,
    limit_s: Annotated[float, typer.Option(help="Begin none after so many seconds.")] = 1e9,
) -> None:
    """Compare exit status and losses of trainings with Paceline and without, under faults."""
    began_s = time.monotonic()
    cases = chosen(runs, torchrun, seed, gpu)[skip:]
    with tempfile.TemporaryDirectory(prefix="unharmed-") as name:
        directory = Path(name)
        found, missing = compared(
            *(cases, directory),
            num_parallel=parallel,
            limit_s=limit_s,
            gpu_ranks=gpu_ranks,
            on_found=_print_comparison,
        )
    took_s = time.monotonic() - began_s
    if missing:
        print(f"left out, not to be had here: {', '.join(missing)}")
    for what, of_case in TABLES.items():
        _print_table(what, found, of_case)
    num_left = _watchers_left(directory)
    if num_left:
        print(f"{num_left} processes of Paceline were left after {WATCHERS_END_WITHIN_S:.0f} s")
    differing = [each for each in found if not each.is_equal]
    varying = {each.case.ending for each in found if len(set(map(_key, each.expected))) > 1}
    num_void = sum(each.is_void for each in found)
    slowest = max(found, key=lambda each: each.added_s)
    print(
        f"{len(differing)} of {len(found)} trainings differ in exit status or loss; {num_void} "
        "end otherwise than they should even without Paceline; "
        f"{len(cases) - len(found)} were not run; {len(varying)} endings vary without Paceline; "
        f"{took_s:.0f} s; Paceline added at most {slowest.added_s:.1f} s ({slowest.case.name})"
    )
    raise typer.Exit(1 if differing or num_void or num_left else 0)


TABLES: Mapping[str, Callable[[Case], str]] = {
    "launcher": lambda case: case.ending.launcher,
    "fault": lambda case: case.ending.fault or "none",
    "place": lambda case: case.ending.place or "none",
    "server": lambda case: case.server,
}


def _print_table(what: str, found: Sequence[Comparison], of_case: Callable[[Case], str]) -> None:
    by_name: dict[str, list[Comparison]] = {}
    for each in found:
        by_name.setdefault(of_case(each.case), []).append(each)
    for name, of_name in sorted(by_name.items()):
        under = sum(each.case.ending.is_torchrun for each in of_name)
        differ = sum(not each.is_equal for each in of_name)
        print(f"{what} {name}: {len(of_name)} runs, {under} under torchrun, {differ} differ")


def _watchers_left(directory: Path) -> int:
    until_s = time.monotonic() + WATCHERS_END_WITHIN_S
    while (found := watchers(directory)) and time.monotonic() < until_s:
        time.sleep(0.5)
    return found


def _print_comparison(each: Comparison) -> None:
    verdict = "equal" if each.is_equal else "DIFFERS"
    took = f"{each.found.took_s:.1f} s, {each.added_s:+.1f} s"
    came = ", ".join(f"{number} {kind}" for kind, number in sorted(each.requests.items()))
    words = f"{_words(each.found)}; {took}; requests: {came or 'none'}"
    print(f"{verdict}{', VOID' if each.is_void else ''}: {each.case.name}: {words}", flush=True)
    for other in each.expected[1:] if each.is_equal and not each.is_void else each.expected:
        print(f"  without Paceline: {_words(other)}")
    if not each.is_equal or each.is_void:
        print("  " + "\n  ".join(each.output.splitlines()[-MAX_LINES:]), flush=True)


def _words(result: Result) -> str:
    lines = ", ".join(
        f"{name.removeprefix('losses-')}: {len(text.splitlines())}"
        for name, text in sorted(result.losses.items())
    )
    return f"status {result.status}, losses by attempt and rank {lines or 'none'}"


def _key(result: Result) -> tuple[int, tuple[tuple[str, str], ...]]:
    return result.status, tuple(sorted(result.losses.items()))
