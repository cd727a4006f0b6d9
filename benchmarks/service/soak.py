"""`soak`: does the memory of API and consumer stay flat while jobs push and pages are read?"""

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from app.synth.faults.slow_compute import SlowWorker
from benchmarks.measuring import BenchmarkFailed
from benchmarks.service.pushing import BatchConnection, WorkerBatches, batches_of_workers
from benchmarks.service.stack import StackUnderTest, register_job, running_stack

QUEUE_BYTES = 1 << 30
DP, PP, MICROBATCHES = 2, 2, 4
SAMPLE_S = 10.0
_SLOWDOWN = 1.6
MIB = 1 << 20
# What the fleet's page asks, what a job's page asks of each of its jobs, and what Prometheus asks.
FLEET_PATHS = (
    "/api/v1/fleet",
    "/api/v1/hosts?limit=10",
    "/api/v1/alerts",
    "/api/v1/deliveries",
    "/metrics",
)
JOB_PATHS = (
    "",
    "/headline",
    "/ribbon",
    "/windows/latest?arrays=false",
    "/charts/steps?window=latest",
    "/windows/latest/charts/workers",
    "/windows/latest/charts/stages",
    "/windows/latest/charts/optypes",
)


@dataclass(slots=True)
class Soak:
    """What was done so far; samples are seconds since the begin, bytes of API and of consumer."""

    began_s: float = field(default_factory=time.perf_counter)
    steps: int = 0
    late_s: float = 0.0
    answers: Counter[int] = field(default_factory=Counter)
    samples: list[tuple[float, int, int]] = field(default_factory=list)

    @property
    def since_s(self) -> float:
        """Seconds since the begin."""
        return time.perf_counter() - self.began_s


def soak(
    minutes: Annotated[float, typer.Option(min=0.1, help="How long, all in all.")] = 120.0,
    jobs: Annotated[int, typer.Option(min=1, help="Jobs that push, of four workers each.")] = 40,
    steps_per_s: Annotated[
        float, typer.Option(min=0.01, help="Steps a second of all jobs together.")
    ] = 20.0,
    reads_per_s: Annotated[float, typer.Option(min=0.01, help="Requests of pages a second.")] = 4.0,
    settle_minutes: Annotated[
        float, typer.Option(min=0, help="Until caches are full: not counted as growth.")
    ] = 10.0,
) -> None:
    """Push many jobs at a steady rate, read their pages, and watch resident memory.

    Every second job has a slow worker. `growth` is the change of a line through all samples after
    `settle_minutes`, from its begin to its end, as a share of its begin.

    Example: python -m benchmarks soak --minutes 20 --jobs 40
    """
    with running_stack(
        workers=DP * PP, stages=PP, queue_bytes=QUEUE_BYTES, consumes=True
    ) as target:
        names = [f"soak-{number}" for number in range(jobs)]
        for name in names:
            register_job(target.port, target.token, name, DP * PP, PP)
        found = asyncio.run(_soaked(target, names, minutes * 60, steps_per_s, reads_per_s))
    settled = [each for each in found.samples if each[0] >= settle_minutes * 60]
    typer.echo(
        json.dumps(
            {
                "minutes": minutes,
                "jobs": jobs,
                "steps_per_s": found.steps / found.samples[-1][0],
                "most_late_s": found.late_s,
                "answers": dict(found.answers),
                "settled_samples": len(settled),
                "api": memory_figures([(at_s, api) for at_s, api, _ in settled]),
                "consumer": memory_figures([(at_s, each) for at_s, _, each in settled]),
            }
        )
    )


def memory_figures(samples: Sequence[tuple[float, int]]) -> dict[str, float] | None:
    """Of seconds and bytes: a line through them. None where there are fewer than two samples."""
    if len(samples) < 2:
        return None
    at_s, used = (np.array(each, np.float64) for each in zip(*samples, strict=True))
    slope, _ = np.polyfit(at_s - at_s[0], used, 1)
    first, last = (
        float(used.mean() + slope * (each - at_s.mean())) for each in (at_s[0], at_s[-1])
    )
    return {
        "first_mib": first / MIB,
        "last_mib": last / MIB,
        "least_mib": float(used.min()) / MIB,
        "most_mib": float(used.max()) / MIB,
        "mib_per_hour": float(slope) * 3600 / MIB,
        "growth": last / first - 1,
    }


async def _soaked(
    target: StackUnderTest, names: list[str], seconds: float, steps_per_s: float, reads_per_s: float
) -> Soak:
    healthy = batches_of_workers(DP, PP, MICROBATCHES, 1)
    slow = batches_of_workers(DP, PP, MICROBATCHES, 1, (SlowWorker(1, 1, _SLOWDOWN),))
    state = Soak()
    every_s = len(names) / steps_per_s
    async with asyncio.TaskGroup() as tasks:
        for number, name in enumerate(names):
            workers = slow if number % 2 else healthy
            first_s = every_s * number / len(names)
            tasks.create_task(_push(target, state, name, workers, (first_s, every_s, seconds)))
        tasks.create_task(_read(target, state, names, reads_per_s, seconds))
        tasks.create_task(_follow(target, state, seconds))
        tasks.create_task(_watch(target, state, seconds))
    return state


async def _push(
    target: StackUnderTest,
    state: Soak,
    name: str,
    workers: list[WorkerBatches],
    times_s: tuple[float, float, float],
) -> None:
    """One job's steps, each when it is due: the first one, one every so often, until the end."""
    first_s, every_s, end_s = times_s
    connection = await BatchConnection.open(target, name)
    step, due_s = 0, first_s
    while due_s < end_s:
        await asyncio.sleep(max(0.0, due_s - state.since_s))
        for worker in workers:
            await connection.push(worker.body(step))
        step, due_s = step + 1, due_s + every_s
        state.steps += 1
        state.late_s = max(state.late_s, state.since_s - due_s)
    connection.close()


async def _read(
    target: StackUnderTest, state: Soak, names: list[str], rate: float, seconds: float
) -> None:
    """What the pages of all jobs ask, in turn, and between them what the fleet's page asks."""
    connection = await BatchConnection.open(target)
    paths = [
        path
        for name in names
        for path in (*FLEET_PATHS, *(f"/api/v1/jobs/{name}{each}" for each in JOB_PATHS))
    ]
    for number, path in enumerate(cycle(paths)):
        if number / rate >= seconds:
            break
        await asyncio.sleep(max(0.0, number / rate - state.since_s))
        state.answers[(await connection.ask_for(path)).status] += 1
    connection.close()


async def _follow(target: StackUnderTest, state: Soak, seconds: float) -> None:
    """A page that listens to events, and reloads every minute."""
    request = (
        f"GET /api/v1/events HTTP/1.1\r\nhost: 127.0.0.1\r\n"
        f"authorization: Bearer {target.token}\r\n\r\n"
    ).encode()
    while (left_s := seconds - state.since_s) > 0:
        reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
        writer.write(request)
        await _drain(reader, min(60.0, left_s))
        writer.close()
        await writer.wait_closed()


async def _drain(reader: asyncio.StreamReader, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            if b" 200 " not in await reader.readline():
                raise BenchmarkFailed("the stream of events is refused")
            while await reader.read(1 << 16):
                pass
    except TimeoutError:
        pass


async def _watch(target: StackUnderTest, state: Soak, seconds: float) -> None:
    while state.since_s < seconds:
        await asyncio.sleep(SAMPLE_S)
        sample = state.since_s, resident_bytes(target.api_pid), resident_bytes(target.consumer_pid)
        state.samples.append(sample)
        if len(state.samples) % 6 == 0:
            print(
                f"{sample[0] / 60:6.1f} min  API {sample[1] / MIB:7.1f} MiB  "
                f"consumer {sample[2] / MIB:7.1f} MiB  {state.steps} steps",
                file=sys.stderr,
                flush=True,
            )


def resident_bytes(pid: int | None) -> int:
    """Resident memory of a process.

    Raises:
        BenchmarkFailed: the system does not tell, or the process has ended.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        fields = dict(line.split(":", 1) for line in status.splitlines())
        return int(fields["VmRSS"].split()[0]) * 1024
    except (OSError, KeyError) as error:
        raise BenchmarkFailed(f"the memory of process {pid} is not known: {error}") from error
