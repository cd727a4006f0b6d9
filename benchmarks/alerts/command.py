"""`alerts`: do alerts fire where they should, and only there?"""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Annotated, Any, Literal

import typer
from rich.progress import track

from app.cli.terminal import stderr_console
from benchmarks.alerts.faults import is_wanted, try_fault, verdict_of_faults
from benchmarks.alerts.latency import measured_latency, settings_with_default_wait
from benchmarks.alerts.scenarios import SCENARIOS, false_alerts
from benchmarks.alerts.stories import told_wrongly
from benchmarks.diagnosis.drawn_jobs import job_numbers
from benchmarks.measuring import logs_on_stderr, map_processes
from tests.harness.alerts.crashes import (
    NOTIFIED_WITHIN_S,
    Killer,
    crash_at_points,
    crash_at_random,
    crash_verdict,
)
from tests.harness.alerts.listener import FlakyReplies, Inbox, webhook_listener
from tests.harness.alerts.receivers import SHAKY, add_receivers, settings_for
from tests.harness.alerts.slow_jobs import SlowJobs
from tests.harness.crash_points import NOTIFICATION_POINTS
from tests.harness.stack import Stack, default_store


def alerts(
    part: Annotated[
        Literal["scenarios", "faults", "crashes", "latency", "stories"],
        typer.Option(
            help="No stragglers; faults of 10 % or more; kill -9; time to notify; begins and ends."
        ),
    ] = "scenarios",
    jobs: Annotated[int, typer.Option(min=1, help="Faults, or stories, to try.")] = 40,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the faults.")] = 1,
    family: Annotated[
        Literal["tune", "held-out", "all"], typer.Option(help="Which noises, costs and shapes.")
    ] = "all",
    processes: Annotated[int, typer.Option(min=1, help="Cores to use.")] = 2,
    kills: Annotated[int, typer.Option(min=4, help="Of the consumers, in part crashes.")] = 100,
    store: Annotated[
        Literal["sqlite", "postgresql"] | None,
        typer.Option(help="Part crashes: PostgreSQL if its server is installed, else SQLite."),
    ] = None,
) -> None:
    """Evaluate the default rules on simulated jobs; exit status 1 if too much went wrong.

    Example: python -m benchmarks alerts --part faults --jobs 80 --seed 1007
    """
    if part == "scenarios":
        verdict = _scenarios(processes)
    elif part == "faults":
        verdict = _faults(jobs, seed, family, processes)
    elif part == "stories":
        verdict = _stories(jobs, seed, processes)
    elif part == "crashes":
        verdict = _crashes(kills, seed, store)
    else:
        verdict = _latency(jobs, store)
    typer.echo(json.dumps({"part": part} | verdict))
    if verdict["wrong"]:
        raise typer.Exit(1)


def _scenarios(processes: int) -> dict[str, Any]:
    found = _map_jobs(false_alerts, SCENARIOS, processes)
    wrong = {
        scenario.name: each.sentences
        for scenario, each in zip(SCENARIOS, found, strict=True)
        if each.sentences
    }
    return {"scenarios": len(SCENARIOS), "false_alerts": len(wrong), "wrong": wrong}


def _faults(jobs: int, seed: int, family: str, processes: int) -> dict[str, Any]:
    numbers = [each for each in job_numbers(seed, family, 2 * jobs, 0) if is_wanted(each)][:jobs]
    found = _map_jobs(try_fault, numbers, processes)
    return {"seed": seed, "family": family} | verdict_of_faults(found)


def _stories(jobs: int, seed: int, processes: int) -> dict[str, Any]:
    found = _map_jobs(told_wrongly, range(seed, seed + jobs), processes)
    wrong = [f"{kind}: {sentence}" for kind, sentences in found for sentence in sentences]
    return {"seed": seed, "stories": dict(Counter(kind for kind, _ in found)), "wrong": wrong}


def _crashes(kills: int, seed: int, store: Any) -> dict[str, Any]:
    # Four of five at random times, the rest spread over the named points.
    times_each = max(1, kills // (5 * len(NOTIFICATION_POINTS)))
    at_random = kills - times_each * len(NOTIFICATION_POINTS)
    with _notifying_stack(store, settings_for) as (stack, inbox):
        killer, slow_jobs = Killer(stack), SlowJobs(stack, inbox, "job", NOTIFIED_WITHIN_S)
        crashes = chain(
            crash_at_random(killer, at_random, seed), crash_at_points(killer, times_each, seed)
        )
        verdict = crash_verdict(killer, slow_jobs, _with_progress(crashes))
        return {"store": stack.store_kind, "seed": seed} | verdict


def _latency(jobs: int, store: Any) -> dict[str, Any]:
    with _notifying_stack(store, settings_with_default_wait) as (stack, inbox):
        return {"store": stack.store_kind, "jobs": jobs} | measured_latency(stack, inbox, jobs)


@contextmanager
def _notifying_stack(
    store: Any, settings_for: Callable[[Inbox, Path], dict[str, str]]
) -> Iterator[tuple[Stack, Inbox]]:
    """A whole Paceline with some receivers; its logs are kept after an exception."""
    directory = Path(mkdtemp(prefix="paceline-alerts-"))
    kind = store or default_store()
    with webhook_listener(FlakyReplies([SHAKY.name])) as inbox:
        settings = settings_for(inbox, directory)
        with Stack(directory, store=kind, num_consumers=2, settings=settings) as stack:
            add_receivers(stack, inbox)
            yield stack, inbox
    rmtree(directory)


def _with_progress(crashes: Iterator[str]) -> Iterator[str]:
    for number, crash in enumerate(crashes, start=1):
        typer.echo(f"{number} crashes: {crash}", err=True)
        yield crash


def _map_jobs(call: Any, items: Any, processes: int) -> list[Any]:
    with logs_on_stderr(), map_processes(call, items, processes) as found:
        return list(
            track(found, "watching", total=len(items), console=stderr_console(), transient=True)
        )
