"""A dispatcher and a sender with a real store, a manual clock, and receivers on loopback."""

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import select

from app.alerts.alert import AlertEvent, AlertEventKind, AlertState, Detail, fingerprint
from app.alerts.connection import parse_networks
from app.alerts.guard import SsrfGuard
from app.alerts.labels import Matcher, Silence
from app.alerts.planning import NotificationTiming
from app.alerts.receiver import Receiver
from app.alerts.rule import Rule, default_rules
from app.alerts.sending import Transport
from app.alerts.wording import alert_sentence
from app.consumer.context import NotifyContext
from app.consumer.dispatcher import Dispatcher
from app.consumer.sender import OutboxSender
from app.store import runs
from app.store.alerting import alert_rules, alerts, notifications, receivers, silences
from app.store.database import Store
from app.store.tables import metadata
from app.trace.job import Parallelism
from tests.alerts.notices import SECRET
from tests.consumer.twin import Clock, CrashingStore, CrashPoints
from tests.secret_keys import KEYS

JOB = "default/job"
LOOPBACK = parse_networks(["127.0.0.0/8", "::1/128"])


class MiddleRandom(random.Random):
    """Always draws the middle of the range."""

    def uniform(self, a, b):
        return (a + b) / 2


class NotifierTwin:
    """A dispatcher, a sender, and alerts for them."""

    def __init__(
        self,
        url: str,
        *,
        rules: list[Rule] | None = None,
        total_s: float = 10.0,
        timing: NotificationTiming | None = None,
        group_wait_s: float = 0.0,
        **given: Any,
    ) -> None:
        self.clock, self.crash_points = Clock(1.7e9), CrashPoints()
        self.group_wait_s = group_wait_s
        self.store = CrashingStore(url, keys=KEYS)
        self.store.crash_points = self.crash_points
        guard = SsrfGuard(LOOPBACK, allows_http=True, ports=None, total_s=total_s)
        self.context = NotifyContext(
            store=self.store,
            transport=Transport(guard),
            default_rules=default_rules() if rules is None else rules,
            timing=timing or NotificationTiming(),
            base_url="https://paceline.example",
            database_time=lambda _conn: self.clock(),
            rng=MiddleRandom(),
            **given,
        )
        self.dispatcher, self.sender = Dispatcher(self.context), OutboxSender(self.context)
        self._registered: set[str] = set()

    def close(self) -> None:
        """Close the sender and the database."""
        self.sender.close()
        self.store.close()

    def pass_time(self, seconds: float) -> None:
        """Advance the clock."""
        self.clock.now_s += seconds

    def dispatch(self) -> int:
        """Plan and send all that is due now; number of attempts."""
        while self.dispatcher.dispatch_due():
            pass
        return self.send()

    def send(self) -> int:
        """Send all that is due now; number of attempts."""
        attempts = 0
        while begun := self.sender.send_due():
            attempts += begun
            self.sender.settle()
        return attempts

    def add_receiver(self, endpoint_id: str, url: str, **given: Any) -> Receiver:
        """Add a receiver of all alerts."""
        made = Receiver(endpoint_id, "default", endpoint_id, "standard", url, (SECRET,))
        with self._write() as conn:
            receivers.add(conn, replace(made, **given))
            notifications.wake_project(conn, "default", self.clock())
        return made

    def fire(
        self,
        subject: str = "",
        *,
        rule: str = "slowdown",
        job_id: str = JOB,
        labels: Mapping[str, str] | None = None,
        **given: Any,
    ) -> str:
        """Save a firing alert as a consumer does; return its fingerprint."""
        self.register(job_id)
        state = AlertState(
            fingerprint=fingerprint(job_id, rule, subject),
            job_id=job_id,
            rule=rule,
            subject=subject,
            phase="firing",
            severity=given.pop("severity", "warning"),
            began_at_s=self.clock() - 30,
            firing_at_s=self.clock(),
            labels={"job": "job", "rule": rule, "subject": subject, **(labels or {})},
            detail=given.pop("detail", Detail(on="slowdown", value=1.4, slowdown=1.4)),
            **given,
        )
        self._save(state, "firing")
        return state.fingerprint

    def resolve(
        self,
        subject: str = "",
        *,
        rule: str = "slowdown",
        job_id: str = JOB,
        detail: Detail | None = None,
    ) -> None:
        """Resolve a firing alert."""
        mark = fingerprint(job_id, rule, subject)
        with self.store.read() as conn:
            state = alerts.get(conn, "default", mark)
        self._save(state if detail is None else replace(state, detail=detail), "resolved")

    def silence(self, *, ends_s: float | None = None, pattern: str = "*") -> None:
        """Silence matching alerts, for an hour by default."""
        now_s = self.clock()
        until_s = now_s + 3600 if ends_s is None else ends_s
        matchers = (Matcher("subject", pattern),)
        with self._write() as conn:
            name = f"s{now_s:.0f}-{pattern.strip('*')}"
            silences.add(
                conn,
                Silence(name, "default", "silence", matchers, now_s, until_s, "ada", "", now_s),
            )

    def acknowledge(self, mark: str) -> None:
        """Acknowledge the alert, as the API does."""
        with self._write() as conn:
            alerts.acknowledge(conn, mark, by="ada", at_s=self.clock())
            notifications.wake_project(conn, "default", self.clock())

    def unacknowledge(self, mark: str) -> None:
        """Remove the acknowledgement."""
        with self._write() as conn:
            alerts.unacknowledge(conn, mark)
            notifications.wake_project(conn, "default", self.clock())

    def set_rules(self, *rules: Rule) -> None:
        """Set the project's rules, as the API does."""
        with self._write() as conn:
            alert_rules.replace_all(conn, "default", rules, text="", now_s=self.clock())
            notifications.wake_project(conn, "default", self.clock())

    def rows(self, table_name: str, *names: str) -> list[tuple[Any, ...]]:
        """These columns of a table in the order of its key."""
        table = metadata.tables[table_name]
        with self.store.read() as conn:
            query = select(*(table.c[name] for name in names)).order_by(*table.primary_key)
            return [tuple(row) for row in conn.execute(query)]

    def states(self) -> list[str]:
        """State of each message, oldest first."""
        return [state for (state,) in self.rows("outbox", "state")]

    def register(self, job_id: str = JOB) -> None:
        """Register the job once."""
        if job_id in self._registered:
            return
        self._registered.add(job_id)
        sizes = Parallelism(2, 2)
        run = runs.Registration(job_id.partition("/")[2], sizes, 4, None, {}, "run-1")
        with self._write() as conn:
            runs.register(conn, job_id, run, now_s=self.clock())

    def _save(self, state: AlertState, kind: AlertEventKind) -> None:
        event = AlertEvent(
            fingerprint=state.fingerprint,
            job_id=state.job_id,
            rule=state.rule,
            subject=state.subject,
            kind=kind,
            at_s=self.clock(),
            severity=state.severity,
            sentence=alert_sentence(state, kind),
            detail=state.detail,
        )
        with self._write() as conn:
            if kind == "firing":
                alerts.save(conn, [state])
            else:
                alerts.remove(conn, [state.fingerprint])
            alerts.add_event(conn, event)
            wait_s = self.group_wait_s
            notifications.wake_group(conn, state.job_id, state.rule, at_s=self.clock() + wait_s)

    def _write(self) -> Any:
        return Store.write(self.store)  # setup passes no crash points
