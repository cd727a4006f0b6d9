"""One made job from its first batch to the last message, by a clock that nobody waits for.

Windows close, whoever is silent is looked for, rules are held against both, and a real dispatcher
plans what is told, as it all does in the consumer; nothing is sent, the messages are kept.
"""

import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from app import words
from app.alerts.alert import AlertEvent
from app.alerts.changes import Change
from app.alerts.endpoint import Endpoint
from app.alerts.evaluate import Book
from app.alerts.facts import SilenceFacts
from app.alerts.rule import Rule
from app.alerts.send import make_transport
from app.cli.bench.diagnosis.arrivals import Habits, arrivals
from app.cli.bench.diagnosis.watched import seen_windows
from app.consumer.desk import Desk
from app.consumer.dispatcher import Dispatcher
from app.consumer.runs import LISTEN_EVERY_S
from app.consumer.saving import save_alerts
from app.consumer.sender import LOOK_EVERY_S
from app.consumer.silence import Watch
from app.ingest.batch import OpBatch
from app.settings import Settings
from app.store import alert_groups, endpoints, outbox, registering
from app.store.engine import Store
from app.store.migrate import migrate
from app.synth.life import Attempt

SILENT_AFTER_S = float(Settings.model_fields["silent_after_s"].default)
# Somebody starts the job again: it takes a while, and less than would be told.
RESTART_TAKES_S = 240.0
_JOB = "default/made"
_RECEIVER = Endpoint("hook", "default", "hook", "standard", "https://a.example", ("whsec_",))
_LEASE_S = 30.0
_MANY = 1000
_BEGAN_S = 1.7e9
# Longer than what was told is damped: an end may wait for that.
_TOLD_WITHIN_S = 400.0


@dataclass
class Night:
    """The job's alerts, and what was told of them, in one database.

    `rang` are transitions until the job ended; whoever sends nothing for `silent_after_s` is
    silent, which is looked for every `look_every_s`.
    """

    store: Store
    rules: Sequence[Rule]
    silent_after_s: float = SILENT_AFTER_S
    look_every_s: float = LISTEN_EVERY_S
    now_s: float = _BEGAN_S
    told: list[str] = field(default_factory=list)
    rang: list[AlertEvent] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._book = Book(_JOB, rules=self.rules)
        desk = Desk(
            store=self.store,
            transport=make_transport(),
            rules=self.rules,
            database_time=lambda _: self.now_s,
        )
        self._wait_s = desk.timing.wait_s
        self._events: list[AlertEvent] = []
        self._told_s = 0.0
        self._dispatcher = Dispatcher(desk)
        with self.store.write() as conn:
            endpoints.add(conn, _RECEIVER)

    def live(self, attempts: Sequence[Attempt], habits: Habits, window_steps: int) -> None:
        """All runs of the job, until it ends and nobody has anything to tell any more."""
        for attempt in attempts:
            if attempt is not attempts[0]:
                self._pass_until(self.now_s + RESTART_TAKES_S)
            self._run(attempt, habits, window_steps)
        self.rang = list(self._events)
        self._save(self._book.ended(attempts[-1].epoch, self.now_s))
        self._tell_for(_TOLD_WITHIN_S)

    def _run(self, attempt: Attempt, habits: Habits, window_steps: int) -> None:
        sizes = attempt.made.parallelism
        record = attempt.made.record(attempt.steps)
        name = f"run-{attempt.epoch}"
        run = registering.Registration("made", sizes, sizes.num_workers, None, {}, name)
        with self.store.write() as conn:
            registering.register(conn, _JOB, run, now_s=self.now_s)
        self._unheard = frozenset(record.rank.tolist())
        self._num_workers = sizes.num_workers
        self._hosts = record.hosts
        self._places: dict[int, tuple[int, int]] = {}
        self._watch = Watch(self.now_s, self.now_s)
        arriving = self._listened(in_true_time(attempt, habits))
        for seen in seen_windows(record.job, attempt.epoch, window_steps, arriving):
            self._save(self._book.window(seen.facts, self.now_s))

    def _listened(
        self, arriving: Iterable[tuple[float, OpBatch]]
    ) -> Iterator[tuple[float, OpBatch]]:
        """The batches, each at its time; meanwhile others look at the clock."""
        began_s = self.now_s
        for at_s, batch in arriving:
            self._pass_until(began_s + at_s)
            self._watch.heard(batch.rank, self.now_s, self.now_s)
            self._unheard -= {batch.rank}
            self._places[batch.rank] = (batch.dp_rank, batch.stage)
            yield at_s, batch

    def _pass_until(self, at_s: float) -> None:
        while self.now_s < at_s:
            self.now_s = min(self.now_s + self.look_every_s, at_s)
            self._save(self._book.silence(self._silence(), self.now_s))
            self._tell()

    def _silence(self) -> SilenceFacts:
        found = self._watch.silence(self.now_s, self.now_s, self.silent_after_s, self._unheard)
        return SilenceFacts(
            stalled_since_s=found.stalled_since_s,
            silent_since_s=found.silent_since_s,
            names=tuple(self._name(rank) for rank in found.silent_ranks),
            num_silent=len(found.silent_ranks),
            num_workers=self._num_workers,
            num_gpus=self._num_workers,
        )

    def _name(self, rank: int) -> str:
        if rank not in self._places:
            return f"rank {rank}"
        dp_rank, stage = self._places[rank]
        return words.worker(dp_rank, stage, self._hosts)

    def _save(self, changes: Sequence[Change]) -> None:
        if not changes:
            return
        self._events += (event for change in changes for event in change.events)
        with self.store.write() as conn:
            save_alerts(conn, _JOB, changes)
            for rule in sorted({each.rule for each in changes if each.is_news}):
                alert_groups.wake(conn, _JOB, rule, at_s=self.now_s + self._wait_s)

    def _tell_for(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += LISTEN_EVERY_S
            self._tell()

    def _tell(self) -> None:
        if self.now_s < self._told_s + LOOK_EVERY_S:
            return
        self._told_s = self.now_s
        while self._dispatcher.dispatch_due():
            pass
        with self.store.read() as conn:
            if not outbox.has_due(conn, now_s=self.now_s):
                return
        with self.store.write() as conn:
            for each in outbox.claim(conn, now_s=self.now_s, lease_s=_LEASE_S, limit=_MANY):
                outbox.delivered(conn, each, now_s=self.now_s)
                self.told.append(json.loads(each.payload)["data"]["sentence"])


def in_true_time(attempt: Attempt, habits: Habits) -> list[tuple[float, OpBatch]]:
    """Every batch with the second in which it arrives, whatever the clocks of its host say."""
    right = replace(attempt.made.cluster, clock_offset_s=0.0, drift_ppm=0.0)
    truly = arrivals(replace(attempt.made, cluster=right).record(attempt.steps), habits, 0)
    at_s = {(batch.rank, batch.batch_seq): seconds for seconds, batch in truly}
    claimed = arrivals(attempt.made.record(attempt.steps), habits, attempt.epoch)
    known = [(at_s[batch.rank, batch.batch_seq], batch) for _, batch in claimed]
    return sorted(known, key=lambda each: each[0])


@contextmanager
def night(
    rules: Sequence[Rule],
    *,
    silent_after_s: float = SILENT_AFTER_S,
    look_every_s: float = LISTEN_EVERY_S,
) -> Iterator[Night]:
    """A night by these rules, with a database of its own that goes with it."""
    with tempfile.TemporaryDirectory(prefix="paceline-night-") as directory:
        url = f"sqlite:///{Path(directory) / 'night.db'}"
        migrate(url)
        store = Store(url)
        try:
            yield Night(store, rules, silent_after_s, look_every_s)
        finally:
            store.close()
