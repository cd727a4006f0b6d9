"""Alert rules over simulated jobs: the rules alone, or a dispatcher and an outbox as well.

`evaluate_rules` evaluates rules on a job's windows. `SimulatedService` runs a job from its first
batch to its last notification by a simulated clock: windows close, silent ranks are checked,
rules are evaluated, and a real dispatcher plans notifications, which are recorded, not sent.
"""

import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from app import formatting
from app.alerts.alert import AlertEvent, AlertState
from app.alerts.facts import MissingDataFacts, WindowFacts
from app.alerts.guard import SsrfGuard
from app.alerts.receiver import Receiver
from app.alerts.rule import Rule
from app.alerts.rules.evaluation import AlertChange, JobAlerts
from app.alerts.sending import Transport
from app.consumer.commit import save_alerts
from app.consumer.context import NotifyContext
from app.consumer.dispatcher import Dispatcher
from app.consumer.run_cache import CHECK_SILENCE_EVERY_S, RankWatch
from app.consumer.sender import CHECK_EVERY_S
from app.ingest.batch import OpBatch
from app.settings import Settings
from app.store import runs
from app.store.alerting import notifications, outbox, receivers
from app.store.credentials.sealing import new_key, parse_keys
from app.store.database import Store
from app.store.migrations import migrate
from app.synth.job import SimulatedRun
from benchmarks.diagnosis.observation import ArrivalHabits, arrivals, observed_run, observed_windows

SILENT_AFTER_S = float(Settings.model_fields["silent_after_s"].default)
# Duration of a restart: less than the limit of silence.
RESTART_TAKES_S = 240.0
_JOB = "default/made"
_RECEIVER = Receiver("hook", "default", "hook", "standard", "https://a.example", ("whsec_",))
_LEASE_S = 30.0
_MAX_CLAIMED = 1000
_BEGAN_S = 1.7e9
# Longer than damping, which may delay a resolved notification.
_NOTIFIED_WITHIN_S = 400.0
# From an alert to the first dispatch of its group, as in `paceline serve`.
_GROUP_WAIT_S = float(Settings.model_fields["alert_group_wait_s"].default)
WINDOW_STEPS = 8
_RULES_JOB = "default/made"


@dataclass
class SimulatedService:
    """The job's alerts and notifications, in one database.

    `transitions` are those until the job ended, `delivered` the sentences of all notifications. A
    rank without batches for `silent_after_s` is silent, which is checked every `check_every_s`.
    """

    store: Store
    rules: Sequence[Rule]
    silent_after_s: float = SILENT_AFTER_S
    check_every_s: float = CHECK_SILENCE_EVERY_S
    now_s: float = _BEGAN_S
    delivered: list[str] = field(default_factory=list)
    transitions: list[AlertEvent] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._job_alerts = JobAlerts(_JOB, rules=self.rules)
        context = NotifyContext(
            store=self.store,
            transport=Transport(SsrfGuard()),
            default_rules=self.rules,
            database_time=lambda _: self.now_s,
        )
        self._events: list[AlertEvent] = []
        self._dispatched_s = 0.0
        self._dispatcher = Dispatcher(context)
        with self.store.write() as conn:
            receivers.add(conn, _RECEIVER)

    def run_job(
        self, attempts: Sequence[SimulatedRun], habits: ArrivalHabits, window_steps: int
    ) -> None:
        """All runs of the job, until it has ended and its last notification is delivered."""
        for attempt in attempts:
            if attempt is not attempts[0]:
                self._advance_to(self.now_s + RESTART_TAKES_S)
            self._run(attempt, habits, window_steps)
        self.transitions = list(self._events)
        self._save(self._job_alerts.end(attempts[-1].epoch, self.now_s))
        self._dispatch_for(_NOTIFIED_WITHIN_S)

    def _run(self, attempt: SimulatedRun, habits: ArrivalHabits, window_steps: int) -> None:
        sizes = attempt.job.parallelism
        record = attempt.job.record(attempt.steps)
        name = f"run-{attempt.epoch}"
        run = runs.Registration("made", sizes, sizes.num_workers, None, {}, name)
        with self.store.write() as conn:
            runs.register(conn, _JOB, run, now_s=self.now_s)
        self._ranks_without_batches = frozenset(record.rank.tolist())
        self._num_workers = sizes.num_workers
        self._hosts = record.hosts
        self._workers: dict[int, tuple[int, int]] = {}
        self._rank_watch = RankWatch(self.now_s, self.now_s)
        arriving = self._at_arrival_times(arrivals_by_true_time(attempt, habits))
        for observed in observed_windows(record.job, attempt.epoch, window_steps, arriving):
            self._save(self._job_alerts.add_window(observed.facts, self.now_s))

    def _at_arrival_times(
        self, arriving: Iterable[tuple[float, OpBatch]]
    ) -> Iterator[tuple[float, OpBatch]]:
        """The batches, each at its time; timers run in between."""
        began_s = self.now_s
        for at_s, batch in arriving:
            self._advance_to(began_s + at_s)
            self._rank_watch.note_batch(batch.rank, self.now_s, self.now_s)
            self._ranks_without_batches -= {batch.rank}
            self._workers[batch.rank] = (batch.dp_rank, batch.stage)
            yield at_s, batch

    def _advance_to(self, at_s: float) -> None:
        while self.now_s < at_s:
            self.now_s = min(self.now_s + self.check_every_s, at_s)
            self._save(self._job_alerts.missing_data(self._missing_data(), self.now_s))
            self._dispatch()

    def _missing_data(self) -> MissingDataFacts:
        found = self._rank_watch.silent_ranks(
            self.now_s, self.now_s, self.silent_after_s, self._ranks_without_batches
        )
        return MissingDataFacts(
            stalled_since_s=found.stalled_since_s,
            silent_since_s=found.silent_since_s,
            names=tuple(self._name(rank) for rank in found.silent_ranks),
            num_silent=len(found.silent_ranks),
            num_workers=self._num_workers,
            num_gpus=self._num_workers,
        )

    def _name(self, rank: int) -> str:
        if rank not in self._workers:
            return f"rank {rank}"
        dp_rank, stage = self._workers[rank]
        return formatting.worker(dp_rank, stage, self._hosts)

    def _save(self, changes: Sequence[AlertChange]) -> None:
        if not changes:
            return
        self._events += (event for change in changes for event in change.events)
        with self.store.write() as conn:
            save_alerts(conn, _JOB, changes)
            for rule in sorted({each.rule for each in changes if each.is_news}):
                notifications.wake_group(conn, _JOB, rule, at_s=self.now_s + _GROUP_WAIT_S)

    def _dispatch_for(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += CHECK_SILENCE_EVERY_S
            self._dispatch()

    def _dispatch(self) -> None:
        if self.now_s < self._dispatched_s + CHECK_EVERY_S:
            return
        self._dispatched_s = self.now_s
        while self._dispatcher.dispatch_due():
            pass
        with self.store.read() as conn:
            if not outbox.has_due(conn, now_s=self.now_s):
                return
        with self.store.write() as conn:
            for each in outbox.claim(conn, now_s=self.now_s, lease_s=_LEASE_S, limit=_MAX_CLAIMED):
                outbox.mark_delivered(conn, each, now_s=self.now_s)
                self.delivered.append(json.loads(each.payload)["data"]["sentence"])


def arrivals_by_true_time(
    attempt: SimulatedRun, habits: ArrivalHabits
) -> list[tuple[float, OpBatch]]:
    """Every batch with the second in which it arrives, whatever the clocks of its host say."""
    right_clocks = replace(attempt.job.cluster, clock_offset_s=0.0, drift_ppm=0.0)
    true_arrivals = arrivals(
        replace(attempt.job, cluster=right_clocks).record(attempt.steps), habits, 0
    )
    at_s = {(batch.rank, batch.batch_seq): seconds for seconds, batch in true_arrivals}
    recorded_arrivals = arrivals(attempt.job.record(attempt.steps), habits, attempt.epoch)
    timed = [(at_s[batch.rank, batch.batch_seq], batch) for _, batch in recorded_arrivals]
    return sorted(timed, key=lambda each: each[0])


@contextmanager
def simulated_service(
    rules: Sequence[Rule],
    *,
    silent_after_s: float = SILENT_AFTER_S,
    check_every_s: float = CHECK_SILENCE_EVERY_S,
) -> Iterator[SimulatedService]:
    """A service with these rules and a temporary database."""
    with tempfile.TemporaryDirectory(prefix="paceline-alerts-") as directory:
        url = f"sqlite:///{Path(directory) / 'alerts.db'}"
        migrate(url)
        store = Store(url, keys=parse_keys(new_key(), "this benchmark"))
        try:
            yield SimulatedService(store, rules, silent_after_s, check_every_s)
        finally:
            store.close()


@dataclass(frozen=True, slots=True)
class RuleEvents:
    """Every transition, and alerts still pending or firing after the last window."""

    events: tuple[AlertEvent, ...]
    left: tuple[AlertState, ...]

    @property
    def firing(self) -> tuple[AlertEvent, ...]:
        """Transitions to firing."""
        return tuple(event for event in self.events if event.kind == "firing")


def evaluate_rules(facts: Iterable[WindowFacts], rules: Sequence[Rule]) -> RuleEvents:
    """Evaluate these rules on window facts; times are event times."""
    job_alerts, now_s = JobAlerts(_RULES_JOB, rules=rules), 0.0
    events: list[AlertEvent] = []
    for each in facts:
        now_s += each.took_s
        events += (
            event for change in job_alerts.add_window(each, now_s) for event in change.events
        )
    return RuleEvents(tuple(events), tuple(job_alerts.states))


def facts_of(
    attempts: Iterable[SimulatedRun],
    habits: ArrivalHabits | None = None,
    window_steps: int = WINDOW_STEPS,
) -> list[WindowFacts]:
    """Facts of all windows of a job's runs, including each revision."""
    return [
        observed.facts
        for attempt in attempts
        for observed in observed_run(attempt, window_steps, habits or ArrivalHabits())
    ]
