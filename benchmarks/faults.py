"""`faults`: are all acknowledged batches stored after random kills and network faults?"""

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Annotated, Any, Literal

import numpy as np
import typer

from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from tests.harness.crash_points import API_POINTS, POINTS, crash_at
from tests.harness.load import PushHabits
from tests.harness.processes import wait_until
from tests.harness.random_faults import inject, random_faults
from tests.harness.stack import Stack, default_store
from tests.harness.trial import SMALL_JOB, Trial

TIMES_EACH = 20
_DIES_WITHIN_S = 60.0


def faults(
    minutes: Annotated[float, typer.Option(min=0.1, help="How long things go wrong.")] = 10.0,
    seed: Annotated[int, typer.Option(min=0, help="Draws which faults, when and where.")] = 1,
    store: Annotated[
        Literal["sqlite", "postgresql"] | None,
        typer.Option(help="PostgreSQL if its server is installed, else SQLite."),
    ] = None,
    crash_points: Annotated[
        bool, typer.Option("--crash-points", help="Die 20 times at each named point instead.")
    ] = False,
) -> None:
    """Push simulated jobs while processes die and lines break; exit status 1 if anything was lost.

    Example: python -m benchmarks faults --minutes 10 --seed 7
    """
    kind = store or default_store()
    number = 1 if crash_points else 2
    began_s = time.monotonic()
    directory = Path(mkdtemp(prefix="paceline-faults-"))
    with Stack(directory, store=kind, num_apis=number, num_consumers=number) as stack:
        run = _crash_points if crash_points else _at_random
        verdict = run(stack, minutes * 60, seed)
    took_s = round(time.monotonic() - began_s, 1)
    typer.echo(json.dumps({"store": kind, "seed": seed, "took_s": took_s} | verdict))
    if verdict["violations"]:
        _progress(f"the logs are in {directory}")
        raise typer.Exit(1)
    rmtree(directory)


def _at_random(stack: Stack, seconds: float, seed: int) -> dict[str, Any]:
    schedule, kills = [], 0
    with _trial(stack, seed) as trial:
        for drawn in _until(seconds, random_faults(seed)):
            time.sleep(drawn.pause_s)
            kills += inject(stack, drawn)
            trial.faults += 1
            schedule.append(drawn.as_json())
            _progress(f"{len(schedule)} faults, {kills} kills, {_steps(trial)} steps: {drawn.name}")
            trial.wait_for_steps()
        verdict = trial.finish()
    counts = Counter(str(fault[0]) for fault in schedule)
    return verdict | {"kills": kills, "fired": dict(counts), "schedule": schedule}


def _crash_points(stack: Stack, _seconds: float, seed: int) -> dict[str, Any]:
    rng, schedule = np.random.default_rng(seed), []
    with _trial(stack, seed) as trial:
        for point in POINTS * TIMES_EACH:
            name = stack.apis[0] if point in API_POINTS else stack.consumers[0]
            passes = int(rng.integers(1, 20))
            stack.restart(name, crash_at(point, passes))
            wait_until(
                lambda name=name: not stack.processes[name].is_running(),  # type: ignore[misc]
                f"{name} dies {point}",
                _DIES_WITHIN_S,
            )
            trial.faults += 1
            schedule.append([point, passes])
            stack.start(name)
            _progress(f"{len(schedule)} crashes, {_steps(trial)} steps: {point} {passes}")
        verdict = trial.finish()
    counts = Counter(str(fault[0]) for fault in schedule)
    return verdict | {"kills": len(schedule), "fired": dict(counts), "schedule": schedule}


def _trial(stack: Stack, seed: int) -> Trial:
    """A large job of many rows, a middle one, and a small one of many batches."""
    jobs = [
        (SimulatedJob(Parallelism(4, 4), 64), PushHabits(2, 0.05, 0.1, steps_per_s=0.5)),
        (SimulatedJob(Parallelism(4, 2), 64), PushHabits(1, 0.05, 0.1, steps_per_s=0.5)),
        (SMALL_JOB, PushHabits(3, 0.1, 0.1, steps_per_s=4.0)),
    ]
    return Trial(stack, "job", jobs, seed=seed)


def _until(seconds: float, drawn: Iterator[Any]) -> Iterator[Any]:
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        yield next(drawn)


def _steps(trial: Trial) -> int:
    return sum(load.num_steps for load in trial.loads)


def _progress(words: str) -> None:
    typer.echo(words, err=True)
