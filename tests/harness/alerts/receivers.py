"""Receivers and rules of the crash tests, what each receiver is owed, and an operator.

The operator acknowledges and silences alerts through the API while everything else dies.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from app.alerts.alert import AlertEvent
from app.alerts.rule import SEVERITIES, Severity
from app.store.alerting import alerts
from app.store.database import Connection, Store
from app.trace.job import DEFAULT_PROJECT, job_key
from tests.harness.alerts.judge import OwedNotification
from tests.harness.alerts.listener import Inbox, Status
from tests.harness.http_client import HttpClient, Unreachable
from tests.harness.stack import TOKEN, Stack

SECRET = "whsec_" + "cGFjZWxpbmUh" * 3
# Alerts fire at the first slow window and resolve at once: several of one rule, and one of another
# whose severity passes the filter of the receiver "critical".
RULES: Mapping[str, Severity] = {"worker": "warning", "slowdown": "critical"}
_TEXT = """rules:
  - {{name: worker, on: worker, above: 1.05, severity: {worker}, {at_once}}}
  - {{name: slowdown, on: slowdown, above: 1.05, severity: {slowdown}, {at_once}}}
"""
_NO_DELAY = "for: {windows: 1, seconds: 0}, keep_firing: 0"
_MAX_EVENTS = 1000
_STATUSES: Sequence[Status] = ("firing", "resolved")
_RETRY_S = 0.1


@dataclass(frozen=True, slots=True)
class Receiver:
    """A receiver of this name, which is also its path."""

    name: str
    format: Literal["standard", "pagerduty"] = "standard"
    min_severity: Severity = "info"

    def wants(self, rule: str) -> bool:
        """Whether it is notified of alerts of this rule."""
        return SEVERITIES.index(RULES[rule]) >= SEVERITIES.index(self.min_severity)


STEADY = Receiver("steady")  # the environment's own
SHAKY = Receiver("shaky")
PAGER = Receiver("pager", "pagerduty")
RECEIVERS = (STEADY, SHAKY, PAGER, Receiver("critical", min_severity="critical"))


def settings_for(inbox: Inbox, directory: Path) -> dict[str, str]:
    """Settings for short group waits and receivers on loopback; writes rules to `directory`."""
    rules = directory / "rules.yaml"
    rules.write_text(_TEXT.format(**RULES, at_once=_NO_DELAY))
    return {
        "webhook_url": inbox.url(STEADY.name),
        "webhook_secret": SECRET,
        "webhook_allow": "127.0.0.0/8",
        "webhook_allow_http": "true",
        "webhook_ports": str(urlsplit(inbox.base_url).port),
        "alert_rules": str(rules),
        "alert_group_wait_s": "0.2",
        "alert_group_interval_s": "1",
        "alert_damping_s": "1",
    }


def add_receivers(stack: Stack, inbox: Inbox) -> None:
    """Add all receivers except the one that the settings configure."""
    with closing(HttpClient(stack.api_ports[0], TOKEN)) as client:
        for each in RECEIVERS:
            if each is not STEADY:
                client.ask("POST", "/receivers", _body(each, inbox))


def owed(
    stack: Stack, jobs: Iterable[str], receivers: Iterable[Receiver]
) -> list[OwedNotification]:
    """Firing and resolved notifications of all alerts of these ended jobs."""
    store = Store(stack.store_url)
    try:
        with store.read() as conn:
            fired = [(job, event) for job in jobs for event in _fired(conn, job)]
    finally:
        store.close()
    return [
        OwedNotification(each.name, event.fingerprint, status, job, event.rule)
        for each in receivers
        for job, event in fired
        for status in _STATUSES
        if each.wants(event.rule)
    ]


def _fired(conn: Connection, job: str) -> list[AlertEvent]:
    job_id = job_key(DEFAULT_PROJECT, job)
    events = alerts.firings_of_job(conn, job_id, limit=_MAX_EVENTS)
    return [event for event in events if event.kind == "firing"]


def _body(receiver: Receiver, inbox: Inbox) -> dict[str, str]:
    body = {
        "name": receiver.name,
        "format": receiver.format,
        "url": inbox.url(receiver.name),
        "min_severity": receiver.min_severity,
    }
    return body | ({"secret": "k" * 32} if receiver.format == "pagerduty" else {})


class Operator:
    """An API client that retries until it succeeds; one per thread. Close it when done."""

    def __init__(self, stack: Stack) -> None:
        self._client = HttpClient(stack.api_ports[0], TOKEN)

    def close(self) -> None:
        """Free the connection."""
        self._client.close()

    def firing(self, job: str) -> dict[str, str]:
        """The job's firing alerts with their rules; empty while the API is unreachable."""
        try:
            found = self._client.ask("GET", f"/alerts?phase=firing&job={job}")
        except Unreachable:
            return {}
        return {each["fingerprint"]: each["rule"] for each in found["items"]}

    def silence(self, job: str) -> str:
        """Silence a job for an hour, before or after it starts; the silence's id."""
        body = {
            "matchers": [{"label": "job", "pattern": job}],
            "ends_at": (datetime.now(UTC) + timedelta(hours=1)).isoformat(),
            "comment": "bench",
        }
        silence_id: str = _retry(lambda: self._client.ask("POST", "/silences", body))["silence_id"]
        return silence_id

    def end_silence(self, silence_id: str) -> None:
        """End the silence now."""
        _retry(lambda: self._change("DELETE", f"/silences/{silence_id}"))

    def acknowledge(self, fingerprint: str) -> None:
        """Acknowledge the alert."""
        _retry(lambda: self._change("POST", f"/alerts/{fingerprint}/acknowledge"))

    def _change(self, method: str, path: str) -> None:
        answer = self._client.request(method, f"/api/v1{path}")
        if answer.status >= 300:
            raise Unreachable(f"{method} {path}: {answer.status} {answer.body!r}")


def _retry(action: Callable[[], Any]) -> Any:
    while True:
        try:
            return action()
        except Unreachable:
            time.sleep(_RETRY_S)
