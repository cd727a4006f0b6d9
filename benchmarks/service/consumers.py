"""Do consumers share shards in peace, drain as fast as one, and outlive crashes?

All of one stack have the host's name, as the documented command gives it. Where a rate is compared,
one process or two share one core, and both drain the same batches, which waited in the queue.
"""

import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from sqlalchemy import select

from app.store import dead_letters
from app.store.database import Store
from app.store.tables import shards
from benchmarks.measuring import BenchmarkFailed
from benchmarks.service.pushing import batches_of_workers, in_turn
from tests.harness.processes import wait_until
from tests.harness.stack import TOKEN, Stack

NUM_JOBS = 8
_DP, _PP, _MICROBATCHES, _STEPS_A_BATCH = 4, 2, 8, 4
_OPS_TYPE = "application/vnd.paceline.ops+msgpack"
_LEASE_S = 15.0
_TAKEN_OVER_WITHIN_S = 60.0
_DRAINED_WITHIN_S = 600.0
# Where consumers crash: short, so that the next one has the shards and dies anywhere in its work.
_SHORT_LEASE_S = 2.0
_WORKS_S = 0.0, 3.0
_CRASHES_A_BACKLOG = 8


@contextmanager
def stack_of(num_consumers: int, lease_s: float = _LEASE_S) -> Iterator[Stack]:
    """A stack with so many consumers, and the leases of a service."""
    with tempfile.TemporaryDirectory(prefix="paceline-consumers-") as directory:
        settings = {"lease_s": f"{lease_s:g}"}
        with Stack(
            Path(directory), store="sqlite", num_consumers=num_consumers, settings=settings
        ) as stack:
            yield stack


class Shards:
    """Looks at who holds the shards of a stack."""

    def __init__(self, stack: Stack) -> None:
        self._store = Store(stack.store_url)

    def owners(self) -> dict[int, tuple[str | None, int]]:
        """{shard: (owner, fence)}."""
        with self._store.read() as conn:
            rows = conn.execute(select(shards.c.shard, shards.c.owner, shards.c.fence)).all()
        return {row.shard: (row.owner, row.fence) for row in rows}

    def has_new_owner(self, before: Mapping[int, tuple[str | None, int]]) -> bool:
        """Whether a shard has changed hands since."""
        return any(self.owners()[shard][1] > fence for shard, (_, fence) in before.items())

    def wait_for(self, num_owners: int, within_s: float = _TAKEN_OVER_WITHIN_S) -> float:
        """Seconds until all shards are held, by so many consumers."""
        return wait_until(
            lambda: (
                len(found := {owner for owner, _ in self.owners().values()}) == num_owners
                and None not in found
            ),
            f"{num_owners} consumers hold all shards",
            within_s,
        )

    def num_changes(self, seconds: float) -> int:
        """How often a shard changes hands within this time."""
        before, changes, end_s = self.owners(), 0, time.monotonic() + seconds
        while time.monotonic() < end_s:
            time.sleep(1.0)
            now = self.owners()
            changes += sum(now[shard] != before[shard] for shard in now)
            before = now
        return changes

    def num_dead_letters(self) -> int:
        """Batches that were given up."""
        with self._store.read() as conn:
            return sum(dead_letters.count(conn).values())


def shared(minutes: float) -> None:
    """Print how often shards change hands where 1, 2, 4 and 8 consumers do nothing else."""
    for num in (1, 2, 4, 8):
        with stack_of(num) as stack:
            looks = Shards(stack)
            looks.wait_for(min(num, 4), 4 * _TAKEN_OVER_WITHIN_S)
            changes = looks.num_changes(60.0 * minutes)
        typer.echo(json.dumps({"consumers": num, "minutes": minutes, "changes": changes}))


def taken_over(kills: int) -> None:
    """Print the seconds until the other of two consumers has all shards of a killed one."""
    took_s = []
    with stack_of(2) as stack:
        looks = Shards(stack)
        for _ in range(kills):
            looks.wait_for(2)
            name = random.choice(stack.consumers)  # noqa: S311
            stack.kill(name)
            took_s.append(looks.wait_for(1))
            stack.start(name)
    typer.echo(json.dumps({"kills": kills, "taken_over_s": sorted(round(s, 1) for s in took_s)}))


class Backlog:
    """Batches of several jobs that wait in a stack's queue."""

    def __init__(self, stack: Stack, steps: int) -> None:
        self._stack = stack
        self._num_steps = NUM_JOBS * steps
        workers = batches_of_workers(_DP, _PP, _MICROBATCHES, _STEPS_A_BATCH)
        with self._client() as client:
            for job in range(NUM_JOBS):
                body = {"parallelism": {"dp_size": _DP, "pp_size": _PP}, "run_key": "a"}
                client.put(f"/jobs/job-{job}", json=body).raise_for_status()
            for batch in in_turn(workers, range(steps // _STEPS_A_BATCH)):
                for job in range(NUM_JOBS):
                    self._push(client, f"job-{job}", batch)
            for job in range(NUM_JOBS):
                client.post(f"/jobs/job-{job}/end").raise_for_status()

    def drained(self) -> float:
        """Steps a second, from the first ones that are analysed now until all are."""
        before = self._num_done()
        if before >= self._num_steps:
            raise BenchmarkFailed("all was done before: give more --steps")
        first = wait_until(lambda: self._num_done() > before, "it begins", _DRAINED_WITHIN_S)
        began_s, before = time.monotonic(), self._num_done()
        wait_until(lambda: self._num_done() >= self._num_steps, "all is done", _DRAINED_WITHIN_S)
        if before >= self._num_steps:
            raise BenchmarkFailed(f"all was done {first:.0f} s after it began: give more --steps")
        return (self._num_steps - before) / (time.monotonic() - began_s)

    def _num_done(self) -> int:
        with self._client() as client:
            items = client.get("/jobs").json()["items"]
        return sum((job["latest_window"] or {}).get("last_step", -1) + 1 for job in items)

    def _push(self, client: httpx.Client, job: str, body: bytes) -> None:
        headers = {"content-type": _OPS_TYPE}
        deadline_s = time.monotonic() + _DRAINED_WITHIN_S
        while time.monotonic() < deadline_s:
            answer = client.post(f"/jobs/{job}/ops", content=body, headers=headers)
            if answer.status_code not in (429, 503):
                answer.raise_for_status()
                return
            time.sleep(float(answer.headers.get("retry-after", 1)))
        raise BenchmarkFailed("the queue is full while no consumer runs: give fewer --steps")

    def _client(self) -> httpx.Client:
        url = f"http://127.0.0.1:{self._stack.api_ports[0]}/api/v1"
        headers = {"authorization": f"Bearer {TOKEN}"}
        return httpx.Client(base_url=url, headers=headers, timeout=30.0)


def _pinned(stack: Stack, names: list[str], core: int = 0) -> None:
    for name in names:
        for task in Path(f"/proc/{stack.processes[name].pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), {core})


def rate(num_consumers: int, steps: int, crashes: int = 0) -> tuple[float, int]:
    """Steps a second by consumers on one core, after so many crashes; and dead letters."""
    with stack_of(num_consumers, _SHORT_LEASE_S) as stack:
        stack.kill(*stack.consumers)
        backlog, looks = Backlog(stack, steps), Shards(stack)
        for _ in range(crashes):
            dead = looks.owners()
            stack.start(stack.consumers[0])
            wait_until(
                partial(looks.has_new_owner, dead), "it has a shard", 4 * _TAKEN_OVER_WITHIN_S
            )
            time.sleep(random.uniform(*_WORKS_S))  # noqa: S311
            stack.kill(stack.consumers[0])
        for name in stack.consumers:
            stack.start(name)
        _pinned(stack, stack.consumers)
        looks.wait_for(num_consumers, 4 * _TAKEN_OVER_WITHIN_S)
        return backlog.drained(), looks.num_dead_letters()


def _compared(name: str, steps: int, rounds: int, usual: Any, other: Any) -> None:
    """Print the ratio of two rates that are measured in alternation."""
    ratios, letters = [], 0
    for number in range(rounds):
        pair = (usual, other) if number % 2 else (other, usual)
        found = {of is other: of(steps) for of in pair}
        ratios.append(found[True][0] / found[False][0])
        letters += found[True][1] + found[False][1]
    ratio = statistics.median(ratios)
    typer.echo(json.dumps({"of": name, "ratio": ratio, "ratios": ratios, "dead_letters": letters}))


def consumers(
    minutes: Annotated[float, typer.Option(help="How long shards are looked at.")] = 10.0,
    kills: Annotated[int, typer.Option(help="Consumers that are killed.")] = 20,
    rounds: Annotated[int, typer.Option(help="Pairs of rates.")] = 3,
    steps: Annotated[int, typer.Option(help="Steps of each of eight jobs.")] = 400,
    crashes: Annotated[int, typer.Option(help="Crashes before a drain.")] = 20,
) -> None:
    """Measure consumers that share one queue; 0 leaves a part out.

    Example: python -m benchmarks consumers --minutes 0 --kills 0 --crashes 50 --rounds 1
    """
    if minutes:
        shared(minutes)
    if kills:
        taken_over(kills)
    if rounds:
        _compared("two on one core", steps, rounds, lambda n: rate(1, n), lambda n: rate(2, n))
        if crashes:
            # What those that crash get done is no small part of a backlog.
            more = steps * max(1, crashes // _CRASHES_A_BACKLOG)
            after = f"after {crashes} crashes"
            _compared(
                after, more, rounds, lambda n: rate(1, n), lambda n: rate(1, n, crashes=crashes)
            )
