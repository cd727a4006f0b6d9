"""Is every alert delivered once while consumers, dispatchers and senders are killed?

Alerts of slow jobs go to several receivers, one of them flaky, while an operator acknowledges and
silences some. The judge compares received notifications with those owed according to the store.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.harness.alerts import judge
from tests.harness.alerts.receivers import owed
from tests.harness.alerts.slow_jobs import SlowJobs
from tests.harness.crash_points import NOTIFICATION_POINTS, crash_at
from tests.harness.processes import NotInTime, wait_until
from tests.harness.stack import Stack

# A claim expires after 30 s, twice if the next owner dies too; retries come 60 s later.
NOTIFIED_WITHIN_S = 150.0
_DIES_WITHIN_S = 90.0
_POLL_S = 0.2


@dataclass
class Killer:
    """Kills consumers, and records when (by the monotonic clock)."""

    stack: Stack
    deaths_s: list[float] = field(default_factory=list)

    def restart(self, name: str, *patches: str) -> None:
        """kill -9 if it runs, and start it again with these patches."""
        self.kill(name)
        self.stack.start(name, *patches)

    def kill(self, *names: str) -> None:
        """kill -9 of all that run, then wait for each."""
        running = [name for name in names if self.stack.processes[name].is_running()]
        self.stack.kill(*running)
        self.deaths_s += [time.monotonic()] * len(running)

    def wait_until_dead(self, name: str, what: str) -> None:
        """Returns when the process has killed itself.

        Raises:
            NotInTime: it still runs.
        """
        server = self.stack.processes[name]
        wait_until(lambda: not server.is_running(), what, _DIES_WITHIN_S)
        self.deaths_s.append(time.monotonic())

    def heal(self) -> None:
        """Restart all consumers without patches."""
        for name in self.stack.consumers:
            self.restart(name)
        self.stack.heal()
        self.stack.wait_until_ready()


def crash_at_random(killer: Killer, kills: int, seed: int) -> Iterator[str]:
    """kill -9 of one consumer after the other, each started again at once."""
    rng = np.random.default_rng(seed)
    consumers = killer.stack.consumers
    for _ in range(kills):
        time.sleep(float(rng.uniform(0.3, 3.5)))
        name = consumers[int(rng.integers(len(consumers)))]
        killer.restart(name)
        yield f"kill {name}"


def crash_at_points(
    killer: Killer,
    times_each: int,
    seed: int,
    *,
    points: Sequence[str] = NOTIFICATION_POINTS,
    patches: Sequence[str] = (),
) -> Iterator[str]:
    """The only consumer dies at each named point and is restarted with these patches."""
    rng = np.random.default_rng(seed)
    name, *others = killer.stack.consumers
    killer.kill(*others)
    for point in list(points) * times_each:
        passes = int(rng.integers(1, 4))
        killer.restart(name, *patches, crash_at(point, passes))
        killer.wait_until_dead(name, f"{name} dies {point}")
        yield f"{point} {passes}"


def crash_verdict(killer: Killer, slow_jobs: SlowJobs, crashes: Iterator[str]) -> dict[str, Any]:
    """The verdict over these crashes, injected while jobs are slow."""
    done: list[str] = []
    late: list[str] = []
    with slow_jobs.running():
        try:
            for crash in crashes:
                done.append(crash)
        except NotInTime as error:
            late.append(str(error))
        killer.heal()
    found = _verdict(killer, slow_jobs)
    return found | {"crashes": len(done), "wrong": [*late, *found["wrong"]]}


def _verdict(killer: Killer, slow_jobs: SlowJobs) -> dict[str, Any]:
    """Compare received with owed notifications once no process dies any more."""
    inbox, jobs = slow_jobs.inbox, frozenset([*slow_jobs.ended, *slow_jobs.not_notified])
    limit_s = time.monotonic() + slow_jobs.within_s
    due = owed(killer.stack, jobs, slow_jobs.receivers)
    while time.monotonic() < limit_s and judge.lost(due, inbox.of_jobs(jobs)):
        time.sleep(_POLL_S)
    received = inbox.of_jobs(jobs)
    wrong = judge.wrong(due, received, deaths_s=killer.deaths_s, silences=slow_jobs.silences)
    return {
        "alerts": len({each.fingerprint for each in due}),
        "owed": len(due),
        "lost": len(judge.lost(due, received)),
        "refused": inbox.refused.total(),
        "duplicates": judge.num_repeated(received).total(),
        "most_duplicates": max(judge.num_repeated(received).values(), default=0),
        "silences": len(slow_jobs.silences),
        "wrong": [*_not_notified(slow_jobs), *wrong, *_vacuous(slow_jobs)],
    }


def _not_notified(slow_jobs: SlowJobs) -> list[str]:
    return [f"unheard: not all of {job} was told, or not in time" for job in slow_jobs.not_notified]


def _vacuous(slow_jobs: SlowJobs) -> list[str]:
    """Why a run without violations would prove nothing."""
    return [] if slow_jobs.ended else ["vacuous: no job was told of from its beginning to its end"]
