"""Slow jobs, one after the other: each fires until every receiver has been notified, then ends.

Some are acknowledged meanwhile, some silenced before they begin or before they end.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

from app.synth.faults.slow_compute import SlowWorker
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from tests.harness.alerts.judge import SLACK_S, SilencedPeriod
from tests.harness.alerts.listener import Inbox, Status
from tests.harness.alerts.receivers import PAGER, RECEIVERS, Operator, Receiver
from tests.harness.load import Load
from tests.harness.stack import SETTINGS, TOKEN, Stack

# Two workers of it are alerts of one rule, the job itself is one of another.
SLOW_JOB = SimulatedJob(Parallelism(2, 2), 2, faults=(SlowWorker(1, 0, 2.5), SlowWorker(0, 1, 2.5)))
NUM_ALERTS = 3
_LOOK_EVERY_S = 0.1
# How long a silence is listened to, of which the judge forgives what was on its way at first.
QUIET_S = 2.0 * SLACK_S
MANNERS = ("left alone", "acknowledged", "silent at first", "silent at last")


class NotNotified(Exception):
    """Something of a job was not heard in all the time that it may take."""


@dataclass
class SlowJobs:
    """Threads that push one slow job after the other; `ended` have had everything told but the end.

    After the block, what is told has `within_s` to arrive; before, nobody says how soon.
    """

    stack: Stack
    heard: Inbox
    name: str
    within_s: float
    receivers: Sequence[Receiver] = RECEIVERS
    num_at_once: int = 6
    ended: list[str] = field(default_factory=list)
    unheard: list[str] = field(default_factory=list)
    quiets: list[SilencedPeriod] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._stopped_s = float("inf")

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Push jobs until the block ends; each is then seen to its end."""
        threads = [
            threading.Thread(target=self._call_on, args=(number,), daemon=True)
            for number in range(self.num_at_once)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stopped_s = time.monotonic()
            self._stop.set()
            for thread in threads:
                thread.join()

    def _call_on(self, number: int) -> None:
        turn = 0
        while not self._stop.is_set():
            job = f"{self.name}-{number}-{turn}"
            manner = MANNERS[(number + turn) % len(MANNERS)]
            with (
                closing(Operator(self.stack)) as person,
                closing(
                    Load(self.stack.ports, TOKEN, self.stack.oracle.line(), job, SLOW_JOB)
                ) as load,
            ):
                try:
                    self._call(load, person, manner)
                    self.ended.append(job)
                except NotNotified:
                    self.unheard.append(job)
                    load.end()
            turn += 1

    def _call(self, load: Load, person: Operator, manner: str) -> None:
        job = load.job
        if manner == "silent at first":
            with self._quiet(job, person):
                fired = self._fire(load, person)
                time.sleep(QUIET_S)
        else:
            fired = self._fire(load, person)
        self._wait(lambda: self._know(fired, "firing"))
        if manner == "acknowledged":
            self._acknowledge(job, fired, person)
        if manner == "silent at last":
            with self._quiet(job, person):
                load.end()
                time.sleep(QUIET_S)
        else:
            load.end()

    def _fire(self, load: Load, person: Operator) -> Mapping[str, str]:
        """The job's alerts with their rules, once all of them fire."""
        load.register()
        load.push_steps(int(SETTINGS["window_steps"]))
        self._wait(lambda: len(person.firing(load.job)) == NUM_ALERTS)
        return person.firing(load.job)

    def _acknowledge(self, job: str, fired: Mapping[str, str], person: Operator) -> None:
        for each in fired:
            person.acknowledge(each)
        self._wait(lambda: self.heard.knows(PAGER.name, fired, "acknowledged"))

    @contextmanager
    def _quiet(self, job: str, person: Operator) -> Iterator[None]:
        silence_id = person.silence(job)
        began_s = time.monotonic()
        try:
            yield
        finally:
            self.quiets.append(SilencedPeriod(job, began_s, time.monotonic()))
            person.end_silence(silence_id)

    def _know(self, fired: Mapping[str, str], status: Status) -> bool:
        return all(
            self.heard.knows(each.name, [mark for mark in fired if each.wants(fired[mark])], status)
            for each in self.receivers
        )

    def _wait(self, holds: Callable[[], bool]) -> None:
        while not holds():
            if time.monotonic() - self._stopped_s > self.within_s:
                raise NotNotified
            time.sleep(_LOOK_EVERY_S)
