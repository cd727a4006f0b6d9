"""`paceline bench alerts`: do alerts ring where they should, and only there?"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from pathlib import Path

    from app.cli.bench.alerts.heard import Heard
    from app.cli.bench.faults.stack import Stack


def alerts(
    part: Annotated[
        Literal["scenarios", "faults", "crashes", "latency"],
        typer.Option(help="No stragglers; faults of 10 % or more; kill -9; how soon it is told."),
    ] = "scenarios",
    jobs: Annotated[int, typer.Option(min=1, help="Faults to try.")] = 40,
    seed: Annotated[int, typer.Option(min=0, help="Of the faults, as in bench diagnosis.")] = 1,
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
    """Hold the usual rules against made jobs; exit status 1 if too much went wrong.

    Example: paceline bench alerts --part faults --jobs 80 --seed 1007
    """
    if part == "scenarios":
        verdict = _scenarios(processes)
    elif part == "faults":
        verdict = _faults(jobs, seed, family, processes)
    elif part == "crashes":
        verdict = _crashes(kills, seed, store)
    else:
        verdict = _latency(jobs, store)
    typer.echo(json.dumps({"part": part} | verdict))
    if verdict["wrong"]:
        raise typer.Exit(1)


def _scenarios(processes: int) -> dict[str, Any]:
    from app.cli.bench.alerts.scenarios import SCENARIOS, false_alerts

    found = _each(false_alerts, SCENARIOS, processes)
    wrong = {
        scenario.name: each.sentences
        for scenario, each in zip(SCENARIOS, found, strict=True)
        if each.sentences
    }
    return {"scenarios": len(SCENARIOS), "false_alerts": len(wrong), "wrong": wrong}


def _faults(jobs: int, seed: int, family: str, processes: int) -> dict[str, Any]:
    from app.cli.bench.alerts.fault_verdict import verdict_on
    from app.cli.bench.alerts.faults import is_wanted, tried
    from app.cli.bench.diagnosis.numbers import numbered

    wanted = [each for each in numbered(seed, family, 2 * jobs, 0) if is_wanted(each)][:jobs]
    found = _each(tried, wanted, processes)
    return {"seed": seed, "family": family} | verdict_on(found)


def _crashes(kills: int, seed: int, store: Any) -> dict[str, Any]:
    from app.cli.bench.alerts.callers import Callers
    from app.cli.bench.alerts.crashes import (
        HEARD_WITHIN_S,
        Killer,
        crash_at_points,
        crash_at_random,
        crashed,
    )
    from app.cli.bench.alerts.receivers import settings_for
    from app.cli.bench.faults.points import TELLING_POINTS

    # Four of five anywhere, the others at each named point as often.
    times_each = max(1, kills // (5 * len(TELLING_POINTS)))
    at_random = kills - times_each * len(TELLING_POINTS)
    with _telling(store, settings_for) as (stack, heard):
        killer, callers = Killer(stack), Callers(stack, heard, "job", HEARD_WITHIN_S)
        crashes = chain(
            crash_at_random(killer, at_random, seed), crash_at_points(killer, times_each, seed)
        )
        verdict = crashed(killer, callers, _noted(crashes))
        return {"store": stack.store_kind, "seed": seed} | verdict


def _latency(jobs: int, store: Any) -> dict[str, Any]:
    from app.cli.bench.alerts.latency import measured, settings_with_usual_wait

    with _telling(store, settings_with_usual_wait) as (stack, heard):
        return {"store": stack.store_kind, "jobs": jobs} | measured(stack, heard, jobs)


@contextmanager
def _telling(
    store: Any, settings_for: "Callable[[Heard, Path], dict[str, str]]"
) -> "Iterator[tuple[Stack, Heard]]":
    """A whole Paceline that tells some receivers; its logs are kept if something breaks it off."""
    from pathlib import Path
    from shutil import rmtree
    from tempfile import mkdtemp

    from app.cli.bench.alerts.heard import listening
    from app.cli.bench.alerts.receivers import SHAKY, add_receivers
    from app.cli.bench.alerts.refusing import Refusing
    from app.cli.bench.faults.stack import Stack, usual_store

    directory = Path(mkdtemp(prefix="paceline-alerts-"))
    kind = store or usual_store()
    with listening(Refusing([SHAKY.name])) as heard:
        settings = settings_for(heard, directory)
        with Stack(directory, store=kind, num_consumers=2, settings=settings) as stack:
            add_receivers(stack, heard)
            yield stack, heard
    rmtree(directory)


def _noted(crashes: Iterator[str]) -> Iterator[str]:
    for number, crash in enumerate(crashes, start=1):
        typer.echo(f"{number} crashes: {crash}", err=True)
        yield crash


def _each(call: Any, of: Any, processes: int) -> list[Any]:
    from rich.progress import track

    from app.cli.bench.diagnosis.pool import logs_on_stderr, results
    from app.cli.console import notes

    with logs_on_stderr(), results(call, of, processes) as found:
        return list(track(found, "watching", total=len(of), console=notes(), transient=True))
