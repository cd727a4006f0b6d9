"""Who is to be told in part crashes, by which rules, and what each of them is owed."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from app.alerts.alert import AlertEvent
from app.alerts.rule import SEVERITIES, Severity
from app.cli.bench.alerts.heard import Heard, Status
from app.cli.bench.alerts.judge import Owed
from app.cli.bench.faults.http import Http
from app.cli.bench.faults.stack import TOKEN, Stack
from app.store import alert_events
from app.store.engine import Connection, Store
from app.trace.names import DEFAULT_PROJECT, qualified

SECRET = "whsec_" + "cGFjZWxpbmUh" * 3
# Alerts at the first slow window, over as soon as they are: several of one rule, and one of another
# that somebody wants who does not want the first.
RULES: Mapping[str, Severity] = {"worker": "warning", "slowdown": "critical"}
_TEXT = """rules:
  - {{name: worker, on: worker, above: 1.05, severity: {worker}, {at_once}}}
  - {{name: slowdown, on: slowdown, above: 1.05, severity: {slowdown}, {at_once}}}
"""
_AT_ONCE = "for: {windows: 1, seconds: 0}, keep_firing: 0"
_MOST_RINGS = 1000
_STATUSES: Sequence[Status] = ("firing", "resolved")


@dataclass(frozen=True, slots=True)
class Receiver:
    """An endpoint of this name, which is also its path."""

    name: str
    format: Literal["standard", "pagerduty"] = "standard"
    min_severity: Severity = "info"

    def wants(self, rule: str) -> bool:
        """Whether it is told of alerts of this rule."""
        return SEVERITIES.index(RULES[rule]) >= SEVERITIES.index(self.min_severity)


STEADY = Receiver("steady")  # the environment's own
SHAKY = Receiver("shaky")
PAGER = Receiver("pager", "pagerduty")
RECEIVERS = (STEADY, SHAKY, PAGER, Receiver("critical", min_severity="critical"))


def settings_for(heard: Heard, directory: Path) -> dict[str, str]:
    """Told at once, and all receivers on loopback; `directory` is where the rules are written."""
    rules = directory / "rules.yaml"
    rules.write_text(_TEXT.format(**RULES, at_once=_AT_ONCE))
    return {
        "webhook_url": heard.url(STEADY.name),
        "webhook_secret": SECRET,
        "webhook_allow": "127.0.0.0/8",
        "webhook_allow_http": "true",
        "webhook_ports": str(urlsplit(heard.base_url).port),
        "alert_rules": str(rules),
        "alert_group_wait_s": "0.2",
        "alert_group_interval_s": "1",
        "alert_damping_s": "1",
    }


def add_receivers(stack: Stack, heard: Heard) -> None:
    """Have all of them told but the environment's own, which is."""
    with closing(Http(stack.api_ports[0], TOKEN)) as line:
        for each in RECEIVERS:
            if each is not STEADY:
                line.ask("POST", "/endpoints", _body(each, heard))


def owed(stack: Stack, jobs: Iterable[str], receivers: Iterable[Receiver]) -> list[Owed]:
    """Beginning and end of all that fired in these jobs, which have ended."""
    store = Store(stack.store_url)
    try:
        with store.read() as conn:
            fired = [(job, ring) for job in jobs for ring in _fired(conn, job)]
    finally:
        store.close()
    return [
        Owed(each.name, ring.fingerprint, status, job, ring.rule)
        for each in receivers
        for job, ring in fired
        for status in _STATUSES
        if each.wants(ring.rule)
    ]


def _fired(conn: Connection, job: str) -> list[AlertEvent]:
    job_id = qualified(DEFAULT_PROJECT, job)
    rings = alert_events.rings_of_job(conn, job_id, limit=_MOST_RINGS)
    return [ring for ring in rings if ring.kind == "firing"]


def _body(receiver: Receiver, heard: Heard) -> dict[str, str]:
    body = {
        "name": receiver.name,
        "format": receiver.format,
        "url": heard.url(receiver.name),
        "min_severity": receiver.min_severity,
    }
    return body | ({"secret": "k" * 32} if receiver.format == "pagerduty" else {})
