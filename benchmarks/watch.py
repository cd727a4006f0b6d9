"""`watch`: are people told, once, when consumers die, and is the canary missed when a part is?"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Annotated, Any, Literal

import typer

from tests.harness.processes import wait_until
from tests.harness.stack import default_store
from tests.harness.watching import (
    DEAD_AFTER_S,
    FIND_NOTHING,
    HEARTBEAT_EVERY_S,
    ROUND_WITHIN_S,
    WatchedStack,
    watched_stack,
)

TOLD_WITHIN_S = 30.0  # beyond the limit
_STAYS_TOLD_S = 45.0


def watch(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of the canary to count.")] = 10,
    store: Annotated[
        Literal["sqlite", "postgresql"] | None,
        typer.Option(help="PostgreSQL if its server is installed, else SQLite."),
    ] = None,
) -> None:
    """Count canary rounds, kill every consumer, break one part after the other; 1 if one is missed.

    Example: python -m benchmarks watch --rounds 10
    """
    directory = Path(mkdtemp(prefix="paceline-watch-"))
    began_s = time.monotonic()
    with watched_stack(directory, store or default_store()) as watched:
        figures = {
            "canary": _rounds(watched, rounds),
            "consumers_killed": _consumers_killed(watched),
            "broken": dict(_broken(watched)),
        }
    wrong = list(_wrong(figures, rounds))
    took_s = round(time.monotonic() - began_s, 1)
    typer.echo(json.dumps({"took_s": took_s, "wrong": wrong} | figures))
    if wrong:
        print(f"the logs are in {directory}")
        raise typer.Exit(1)
    rmtree(directory)


def _rounds(watched: WatchedStack, rounds: int) -> dict[str, Any]:
    found, missed = watched.rounds("found"), watched.rounds("missed")

    def done() -> int:
        return watched.rounds("found") + watched.rounds("missed") - found - missed

    wait_until(lambda: done() >= rounds, f"{rounds} rounds", rounds * ROUND_WITHIN_S)
    canary = watched.stack.get("/status")["canary"]
    return {
        "rounds": done(),
        "found": watched.rounds("found") - found,
        "last_took_s": round(canary["took_s"], 2),
    }


def _consumers_killed(watched: WatchedStack) -> dict[str, Any]:
    """Kill them, wait beyond being told, start them again."""
    before = {kind: len(watched.told(kind)) for kind in ("service.down", "service.up")}
    pings = len(watched.told("/fail", path="/check"))
    beats = len(watched.told("service.heartbeat", path="/switch"))
    watched.stack.kill(*watched.stack.consumers)
    killed_s = time.monotonic()
    limit_s = DEAD_AFTER_S + TOLD_WITHIN_S
    told_s = wait_until(
        lambda: len(watched.told("service.down")) > before["service.down"],
        "people are told",
        limit_s + 30,
    )
    while time.monotonic() < killed_s + told_s + _STAYS_TOLD_S:
        watched.received()
        time.sleep(0.5)
    num_down = len(watched.told("service.down")) - before["service.down"]
    num_fail = len(watched.told("/fail", path="/check")) - pings
    beats_meanwhile = len(watched.told("service.heartbeat", path="/switch")) - beats
    for name in watched.stack.consumers:
        watched.stack.start(name)
    back_s = wait_until(
        lambda: len(watched.told("service.up")) > before["service.up"], "people are told", 120
    )
    beat_s = wait_until(
        lambda: len(watched.told("service.heartbeat", path="/switch")) > beats + beats_meanwhile,
        "heartbeats go on",
        120,
    )
    return {
        "limit_s": DEAD_AFTER_S,
        "told_after_s": round(told_s, 1),
        "times_told": num_down,
        "fail_pings": num_fail,
        "heartbeats_meanwhile": beats_meanwhile,
        "told_back_after_s": round(back_s, 1),
        "times_told_back": len(watched.told("service.up")) - before["service.up"],
        "heartbeats_again_after_s": round(beat_s, 1),
    }


@contextmanager
def _frozen_consumers(watched: WatchedStack) -> Iterator[None]:
    for name in watched.stack.consumers:
        watched.stack.processes[name].freeze()
    yield
    for name in watched.stack.consumers:
        watched.stack.processes[name].thaw()


@contextmanager
def _killed_queue(watched: WatchedStack) -> Iterator[None]:
    watched.stack.kill("queue")
    yield
    watched.stack.start("queue")
    watched.stack.wait_for_backends()


@contextmanager
def _blind_detectors(watched: WatchedStack) -> Iterator[None]:
    for name in watched.stack.consumers:
        watched.stack.restart(name, FIND_NOTHING)
    yield
    watched.stack.restart_patched()


def _is_told_again(watched: WatchedStack, before: int) -> bool:
    return len(watched.told("service.down")) > before


_PARTS: dict[str, Callable[[WatchedStack], Any]] = {
    "consumers frozen": _frozen_consumers,
    "queue killed": _killed_queue,
    "detectors sabotaged": _blind_detectors,
}


def _broken(watched: WatchedStack) -> Iterator[tuple[str, dict[str, Any]]]:
    """Break each part until the canary is missing and people are told, then mend it."""
    for name, broken in _PARTS.items():
        before = len(watched.told("service.down"))
        with broken(watched):
            missing_s = wait_until(
                lambda: watched.canary_state() == "missing", "the canary is missing", 240
            )
            detail = watched.stack.get("/status")["canary"]["detail"]
            wait_until(
                partial(_is_told_again, watched, before),
                "people are told",
                240,
            )
            beats = len(watched.told("service.heartbeat", path="/switch"))
            time.sleep(2 * HEARTBEAT_EVERY_S)
            meanwhile = len(watched.told("service.heartbeat", path="/switch")) - beats
        found_s = wait_until(
            lambda: watched.canary_state() == "found", "the canary is found again", 240
        )
        said = [each.sentence for each in watched.told("service.down")[before:]]
        yield (
            name,
            {
                "missing_after_s": round(missing_s, 1),
                "detail": detail,
                "told": said,
                "heartbeats_meanwhile": meanwhile,
                "found_again_after_s": round(found_s, 1),
            },
        )
        wait_until(
            watched.is_quiet,
            "people are told that it works",
            120,
        )


def _wrong(figures: dict[str, Any], rounds: int) -> Iterator[str]:
    if figures["canary"]["found"] < rounds:
        yield f"canary found in {figures['canary']['found']} of {rounds} rounds"
    killed = figures["consumers_killed"]
    if killed["told_after_s"] > killed["limit_s"] + TOLD_WITHIN_S:
        yield f"told after {killed['told_after_s']} s"
    for name in ("times_told", "times_told_back", "fail_pings"):
        if killed[name] != 1:
            yield f"{name}: {killed[name]}"
    # One may have been written just before, and be sent by the consumers when they are back.
    if killed["heartbeats_meanwhile"] > 1:
        yield f"{killed['heartbeats_meanwhile']} heartbeats while consumers were dead"
    for name, broken in figures["broken"].items():
        if broken["heartbeats_meanwhile"]:
            yield f"{name}: heartbeats went on"
        if len(broken["told"]) != 1:
            yield f"{name}: told {len(broken['told'])} times"
