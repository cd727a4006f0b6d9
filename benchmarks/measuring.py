"""What benchmarks share: timings, memory, simulated jobs in memory, a pool of processes."""

import multiprocessing
import os
import resource
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import structlog

from app.cli.simulating.job import refuse_too_large
from app.cli.supervisor import end_with_parent
from app.errors import InvalidRequest, PacelineError
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from app.trace.runs import SHAPE_COLUMNS, OpShape, RunTrace, WorkerRuns
from app.trace.window import TABLE_DTYPES, Window

T = TypeVar("T")

COPIED_BYTES = 100_000_000
DEFAULT_SIZES = {"dp": 8, "pp": 4, "microbatches": 8, "steps": 2}
A = TypeVar("A")
R = TypeVar("R")


class BenchmarkFailed(PacelineError):
    """What was to be measured did not work: an answer was refused, or did not come in time."""


class Timings:
    """Seconds by name, of calls made again and again."""

    def __init__(self) -> None:
        self._seconds: dict[str, list[float]] = {}

    def time(self, name: str, call: Callable[[], T]) -> T:
        """What the call returns; its seconds are kept."""
        started_s = time.perf_counter()
        value = call()
        self._seconds.setdefault(name, []).append(time.perf_counter() - started_s)
        return value

    def medians(self) -> dict[str, float]:
        """The median of each name, in the order of first use."""
        return {name: statistics.median(seconds) for name, seconds in self._seconds.items()}


@contextmanager
def process_group(
    command: Sequence[str], limit_s: float, **options: Any
) -> Iterator[subprocess.Popen[Any]]:
    """A process that ends, with all that it has started, after `limit_s` or with the block.

    Also where the block ends by an interrupt: `options` are those of Popen.
    """
    process = subprocess.Popen(command, start_new_session=True, **options)
    timer = threading.Timer(limit_s, end_group, (process.pid,))
    timer.daemon = True
    timer.start()
    try:
        yield process
    finally:
        timer.cancel()
        end_group(process.pid)
        process.wait()


def end_group(pid: int) -> None:
    """Kill the process that leads a group, and all that it has started in it."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def array_to_copy() -> Any:
    """An array of 100 MB: how long one copy takes says what the memory can do at this moment."""
    return np.ones(COPIED_BYTES // 8)


def peak_rss_bytes_of(call: Callable[[], Any]) -> int:
    """The most memory that this process holds while it makes a call, in all.

    Where the system cannot forget an earlier peak, the most that the process ever held.
    """
    status, forget = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    try:
        forget.write_text("5")  # reset the peak (proc(5))
    except OSError:
        call()
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    call()
    fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return int(fields["VmHWM"].split()[0]) * 1024


def job_sizes(text: str) -> dict[str, int]:
    """dp, pp, microbatches and steps from "dp=1024,pp=16"; what is left out is usual.

    Raises:
        InvalidRequest: something else is written there.
    """
    wanted = dict(DEFAULT_SIZES)
    for part in text.split(","):
        key, _, value = part.partition("=")
        if key not in wanted or not value.isdigit() or len(value) > 9 or int(value) < 1:
            raise InvalidRequest(f"{part!r} is not one of {', '.join(wanted)}=NUMBER")
        wanted[key] = int(value)
    return wanted


def simulated_window(dp: int, pp: int, microbatches: int, steps: int) -> Window:
    """A healthy job's steps as one closed window, held as a consumer holds those that it closes."""
    simulated = SimulatedJob(Parallelism(dp, pp), microbatches)
    refuse_too_large(simulated, steps)
    numbers = range(steps)
    trace = _as_runs(simulated, numbers)
    return Window(simulated.job, 1, 0, tuple(numbers), trace, state="complete")


def _as_runs(simulated: SimulatedJob, steps: Sequence[int]) -> RunTrace:
    """What `SimulatedJob.make` makes, with what all steps and replicas have alike held once."""
    sizes, of_replica = simulated.parallelism, simulated.structure.columns
    times_s = np.empty((2, len(steps), sizes.dp_size, simulated.structure.num_ops))
    first = 0
    for block in simulated.blocks(steps):
        end = first + len(block.drawn.steps)
        times_s[0, first:end] = block.start_s.transpose(1, 2, 0)
        times_s[1, first:end] = (block.end_s - block.start_s).transpose(1, 2, 0)
        first = end
    bounds = np.searchsorted(of_replica["stage"], np.arange(sizes.pp_size + 1)).tolist()
    shapes = [
        OpShape(
            **{name: of_replica[name][rows].astype(TABLE_DTYPES[name]) for name in SHAPE_COLUMNS},
            has_twins=False,
        )
        for rows in (slice(*ends) for ends in pairwise(bounds))
    ]
    step, dp_rank, stage = np.indices((len(steps), sizes.dp_size, sizes.pp_size)).reshape(3, -1)
    runs = WorkerRuns.of(
        {
            "step": np.asarray(steps)[step],
            "rank": stage * sizes.dp_size + dp_rank,
            "dp_rank": dp_rank,
            "stage": stage,
        },
        [shapes[at] for at in stage.tolist()],
    )
    return RunTrace(runs, times_s[0].ravel(), times_s[1].ravel(), {})


@contextmanager
def map_processes(
    call: Callable[[A], R], items: Sequence[A], processes: int
) -> Iterator[Iterator[R]]:
    """What the call returns of each, in their order; `call` is a function of a module."""
    if processes < 2:
        yield map(call, items)
        return
    # A forked child would have numba's and numpy's locks, but not the threads that hold them.
    with multiprocessing.get_context("spawn").Pool(processes, _start_worker) as pool:
        yield pool.imap(call, items)


@contextmanager
def logs_on_stderr() -> Iterator[None]:
    """Standard output is the result alone."""
    before = structlog.get_config()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    try:
        yield
    finally:
        structlog.configure(**before)


def _start_worker() -> None:
    end_with_parent()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
