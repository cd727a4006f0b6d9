"""`paceline serve` with half a core, and what can be done to it: freezes, kills, jumping clocks."""

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.measuring import BenchmarkFailed
from tests.harness.processes import children, free_port, wait_until

SILENT_AFTER_S = 30.0
_JUMP_S = 7200.0
# libfaketime 0.9.10 refuses an absolute sleep on a clock that it leaves alone.
_SLEEP = """
import select, time
time.sleep = lambda seconds: select.select([], [], [], seconds)
"""
_FAKE_CLOCK = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
_SLICE_S = 0.1


def tree_of(pid: int) -> list[int]:
    """The process and all of its descendants that are there now."""
    try:
        return [pid, *(below for child, _ in children(pid) for below in tree_of(child))]
    except OSError:
        return []


class HalfACore:
    """A share of one core for a tree of processes; `frozen` get nothing.

    By a control group where one can be made; else the tree is stopped for the rest of each tenth
    of a second, which leaves each of its processes that share of a core.
    """

    def __init__(self, pid: int, share: float = 0.5) -> None:
        self._pid = pid
        self._share = share
        self._over = threading.Event()
        self.frozen: set[int] = set()
        self._group = _control_group(pid, share)
        self._thread = threading.Thread(target=self._run, daemon=True)
        if self._group is None:
            self._thread.start()

    def freeze(self, pid: int, seconds: float) -> None:
        """Stop one process for so long."""
        self.frozen.add(pid)
        _signal([pid], signal.SIGSTOP)
        time.sleep(seconds)
        self.frozen.discard(pid)
        _signal([pid], signal.SIGCONT)

    def close(self) -> None:
        """Let everything run."""
        self._over.set()
        if self._group is None:
            self._thread.join()
            return
        while pids := (self._group / "cgroup.procs").read_text().split():
            for pid in pids:
                with suppress(OSError):  # it has ended
                    (self._group.parent / "cgroup.procs").write_text(pid)
        self._group.rmdir()

    def _run(self) -> None:
        while not self._over.wait(_SLICE_S * self._share):
            pids = tree_of(self._pid)
            _signal(pids, signal.SIGSTOP)
            self._over.wait(_SLICE_S * (1 - self._share))
            _signal([pid for pid in pids if pid not in self.frozen], signal.SIGCONT)
        _signal(tree_of(self._pid), signal.SIGCONT)


def _control_group(pid: int, share: float) -> Path | None:
    """A control group with this process, in either version of the kernel's; None: not allowed."""
    period_us = int(_SLICE_S * 1e6)
    quota_us = int(share * period_us)
    is_old = Path("/sys/fs/cgroup/cpu").is_dir()
    group = Path("/sys/fs/cgroup") / ("cpu" if is_old else "") / f"paceline-{pid}"
    try:
        group.mkdir()
        if is_old:
            (group / "cpu.cfs_period_us").write_text(str(period_us))
            (group / "cpu.cfs_quota_us").write_text(str(quota_us))
        else:
            (group / "cpu.max").write_text(f"{quota_us} {period_us}")
        (group / "cgroup.procs").write_text(str(pid))
    except OSError:
        with suppress(OSError):
            group.rmdir()
        return None
    return group


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


@dataclass
class Served:
    """A `paceline serve` with half a core, its address, and the token of all."""

    process: subprocess.Popen[bytes]
    url: str
    token: str
    kernels: Path
    clock: Path
    half: HalfACore

    def client(self) -> httpx.Client:
        """A client with the token."""
        headers = {"authorization": f"Bearer {self.token}"}
        return httpx.Client(base_url=f"{self.url}/api/v1", headers=headers, timeout=30.0)

    def part(self, words: str) -> int:
        """The process of this part: "consumer", or the queue's program."""
        for pid in tree_of(self.process.pid):
            if re.search(words, Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")):
                return pid
        raise BenchmarkFailed(f"no process {words}")


@contextmanager
def served(directory: Path, *, has_fake_clock: bool = False) -> Iterator[Served]:
    """Everything by the documented command, with kernels of its own."""
    port, token = free_port(), "pl_" + secrets.token_hex(20)
    kernels, clock = directory / "kernels", directory / "clock"
    settings = {
        "TOKEN": token,
        "SILENT_AFTER_S": f"{SILENT_AFTER_S:g}",
        "REDIS_MAXMEMORY_MB": "64",
    }
    environment = {name: text for name, text in os.environ.items() if "PACELINE_" not in name}
    environment |= {f"PACELINE_{name}": text for name, text in settings.items()}
    environment["NUMBA_CACHE_DIR"] = str(kernels)
    if has_fake_clock:
        if _FAKE_CLOCK is None:
            raise BenchmarkFailed("clock jumps need Debian's libfaketime: .ci/system-packages")
        clock.write_text("+0")
        (directory / "sitecustomize.py").write_text(_SLEEP)
        environment |= {
            "LD_PRELOAD": str(_FAKE_CLOCK),
            "FAKETIME_TIMESTAMP_FILE": str(clock),
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_CACHE_DURATION": "1",
            "PYTHONPATH": str(directory),
        }
    with (directory / "serve.log").open("wb") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "app.cli", "serve", "--port", str(port)),
                *("--data-dir", str(directory / "data")),
            ],
            env=environment,
            stdout=log,
            stderr=log,
        )
    with ExitStack() as stack:
        stack.callback(process.wait)
        stack.callback(process.terminate)
        half = HalfACore(process.pid)
        stack.callback(half.close)
        found = Served(process, f"http://127.0.0.1:{port}", token, kernels, clock, half)
        wait_until(lambda: _answers(found), "the API answers", 180.0)
        yield found


def _answers(found: Served) -> bool:
    try:
        return httpx.get(f"{found.url}/healthz", timeout=5.0).status_code == 200
    except httpx.HTTPError:
        return False


def _freeze(found: Served, seconds: float) -> None:
    found.half.freeze(found.part(r"app\.cli consumer"), seconds)


def _kill_queue(found: Served, seconds: float) -> None:
    os.kill(found.part(r"(valkey|redis)-server"), signal.SIGKILL)
    time.sleep(seconds)


def _kill_consumer(found: Served, seconds: float) -> None:
    os.kill(found.part(r"app\.cli consumer"), signal.SIGKILL)
    time.sleep(seconds)


def _cold_kernels(found: Served, seconds: float) -> None:
    shutil.rmtree(found.kernels, ignore_errors=True)
    _kill_consumer(found, seconds)


def _nothing(_found: Served, seconds: float) -> None:
    time.sleep(seconds)


def _clock_jumps(found: Served, seconds: float) -> None:
    for offset_s in (_JUMP_S, -_JUMP_S, 0.0):
        found.clock.write_text(f"{offset_s:+.0f}")
        time.sleep(seconds / 3)


# The queue is small and the load twice what is taken: pushes are refused in every round.
FAULTS: Mapping[str, Callable[[Served, float], None]] = {
    "overload": _nothing,
    "frozen consumer": _freeze,
    "killed queue": _kill_queue,
    "killed consumer": _kill_consumer,
    "cold kernels": _cold_kernels,
    "clock jumps": _clock_jumps,
}
