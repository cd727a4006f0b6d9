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

# Its two slow workers raise an alert each, of one rule; the job raises one of another rule.
SLOW_JOB = SimulatedJob(Parallelism(2, 2), 2, faults=(SlowWorker(1, 0, 2.5), SlowWorker(0, 1, 2.5)))
NUM_ALERTS = 3
_POLL_S = 0.1
# Length of a silence; the judge ignores its first SLACK_S.
SILENCE_S = 2.0 * SLACK_S
TREATMENTS = ("none", "acknowledged", "silenced at start", "silenced at end")


class NotNotified(Exception):
    """A notification of a job was not received within its time limit."""


@dataclass
class SlowJobs:
    """Threads that push one slow job after the other.

    Jobs in `ended` had all firing notifications delivered. Deliveries have `within_s` after the
    block ends, and no limit before.
    """

    stack: Stack
    inbox: Inbox
    name: str
    within_s: float
    receivers: Sequence[Receiver] = RECEIVERS
    num_at_once: int = 6
    ended: list[str] = field(default_factory=list)
    not_notified: list[str] = field(default_factory=list)
    silences: list[SilencedPeriod] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._stopped_s = float("inf")

    @contextmanager
    def running(self) -> Iterator[None]:
        """Push jobs until the block ends, then finish the current ones."""
        threads = [
            threading.Thread(target=self._run_jobs, args=(number,), daemon=True)
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

    def _run_jobs(self, number: int) -> None:
        turn = 0
        while not self._stop.is_set():
            job = f"{self.name}-{number}-{turn}"
            treatment = TREATMENTS[(number + turn) % len(TREATMENTS)]
            with (
                closing(Operator(self.stack)) as operator,
                closing(
                    Load(self.stack.ports, TOKEN, self.stack.oracle.client(), job, SLOW_JOB)
                ) as load,
            ):
                try:
                    self._run_job(load, operator, treatment)
                    self.ended.append(job)
                except NotNotified:
                    self.not_notified.append(job)
                    load.end()
            turn += 1

    def _run_job(self, load: Load, operator: Operator, treatment: str) -> None:
        job = load.job
        if treatment == "silenced at start":
            with self._silenced(job, operator):
                fired = self._fire(load, operator)
                time.sleep(SILENCE_S)
        else:
            fired = self._fire(load, operator)
        self._wait(lambda: self._all_notified(fired, "firing"))
        if treatment == "acknowledged":
            self._acknowledge(job, fired, operator)
        if treatment == "silenced at end":
            with self._silenced(job, operator):
                load.end()
                time.sleep(SILENCE_S)
        else:
            load.end()

    def _fire(self, load: Load, operator: Operator) -> Mapping[str, str]:
        """The job's alerts with their rules, once all of them fire."""
        load.register()
        load.push_steps(int(SETTINGS["window_steps"]))
        self._wait(lambda: len(operator.firing(load.job)) == NUM_ALERTS)
        return operator.firing(load.job)

    def _acknowledge(self, job: str, fired: Mapping[str, str], operator: Operator) -> None:
        for each in fired:
            operator.acknowledge(each)
        self._wait(lambda: self.inbox.has_status(PAGER.name, fired, "acknowledged"))

    @contextmanager
    def _silenced(self, job: str, operator: Operator) -> Iterator[None]:
        silence_id = operator.silence(job)
        began_s = time.monotonic()
        try:
            yield
        finally:
            self.silences.append(SilencedPeriod(job, began_s, time.monotonic()))
            operator.end_silence(silence_id)

    def _all_notified(self, fired: Mapping[str, str], status: Status) -> bool:
        return all(
            self.inbox.has_status(
                each.name,
                [fingerprint for fingerprint in fired if each.wants(fired[fingerprint])],
                status,
            )
            for each in self.receivers
        )

    def _wait(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if time.monotonic() - self._stopped_s > self.within_s:
                raise NotNotified
            time.sleep(_POLL_S)
