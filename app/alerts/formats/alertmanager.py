"""Alerts as an Alertmanager knows them: its webhook body, version 4, and pushes into its API.

Labels say which alert it is, annotations all the rest. An Alertmanager that is pushed to groups,
silences and routes alerts by itself.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

from app import formatting
from app.alerts.formats.figures import culprit_names, fix_text
from app.alerts.formats.webhooks import json_text, rfc3339
from app.alerts.labels import CULPRIT_LABELS
from app.alerts.notice import Message, Notice, NoticeAlert
from app.alerts.receiver import Receiver
from app.alerts.wording import cost_sentence, finding_sentence, resolution_sentence

_FNV_START, _FNV_PRIME, _64_BITS = 14695981039346656037, 1099511628211, (1 << 64) - 1
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_]")
_OTHER_ALERTNAMES = {
    "test": "PacelineTest",
    "notifier-unhealthy": "PacelineNotifierUnhealthy",
    "fix-outcome": "PacelineFixOutcome",
    "service-down": "PacelineServiceDown",
    "service-up": "PacelineServiceDown",  # the same alert, resolved
    "heartbeat": "PacelineWatchdog",  # fires always, so that its absence can be noticed
}


@dataclass(frozen=True, slots=True)
class LabelledAlert:
    """One alert; `url` is empty where the page has no address."""

    status: Literal["firing", "resolved"]
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    starts_at_s: float
    ends_at_s: float | None
    url: str

    @property
    def fingerprint(self) -> str:
        """The Alertmanager's own, a hash of the labels (FNV-1a, 64 bits)."""
        value = _FNV_START
        for name in sorted(self.labels):
            for byte in b"%b\xff%b\xff" % (name.encode(), self.labels[name].encode()):
                value = ((value ^ byte) * _FNV_PRIME) & _64_BITS
        return f"{value:016x}"


def labelled_alerts(notice: Notice) -> list[LabelledAlert]:
    """The notice's alerts; of one without any, such as a test, the notice itself."""
    if not notice.alerts:
        return [_of_notice(notice)]
    return [
        LabelledAlert(
            alert.status,
            _labels(alert.known_as or alert.labels),
            {name: value for name, value in _annotations(notice, alert) if value},
            alert.starts_at_s,
            alert.ends_at_s,
            notice.page_url or "",
        )
        for alert in notice.alerts
    ]


def _of_notice(notice: Notice) -> LabelledAlert:
    labels = {
        "alertname": _OTHER_ALERTNAMES.get(notice.kind, "Paceline"),
        "project": notice.project,
        "severity": notice.severity,
    }
    # Routed by job, as its alerts are; or by the part of the service that does not work.
    if notice.kind in ("fix-outcome", "service-down", "service-up", "heartbeat"):
        labels |= _labels(notice.group_labels)
    annotations = {"summary": notice.sentence, "description": notice.sub}
    filled = {name: value for name, value in annotations.items() if value}
    is_over = notice.kind == "service-up"
    return LabelledAlert(
        "resolved" if is_over else "firing",
        labels,
        filled,
        notice.at_s if notice.began_s is None else notice.began_s,
        notice.at_s if is_over else None,
        notice.page_url or "",
    )


def _labels(labels: Mapping[str, str]) -> dict[str, str]:
    subject = labels.get("subject")
    kept: dict[str, str] = {}
    for name in sorted(labels):
        # The culprit of a diagnosis may change while an alert fires, and with other labels it would
        # be another alert: these are labels only where the alert is about them.
        is_passing = name in CULPRIT_LABELS and labels[name] != subject
        if labels[name] and not is_passing:
            kept.setdefault(_label_name(name), labels[name])
    return kept


def _label_name(name: str) -> str:
    """A name that Prometheus takes: letters, digits and underscores."""
    clean = _NOT_IN_NAMES.sub("_", name)
    return f"_{clean}" if clean[:1].isdigit() or not clean else clean


def _annotations(notice: Notice, alert: NoticeAlert) -> Iterator[tuple[str, str | None]]:
    detail, blame = alert.detail, alert.detail.blame
    lost, since = detail.gpu_hours_lost_per_hour, detail.since_step
    yield "summary", alert.sentence
    yield "description", _description(alert)
    yield "slowdown", None if detail.slowdown is None else f"{detail.slowdown:.2f}"
    yield "since_step", None if since is None else str(since)
    yield "since_at", formatting.utc_timestamp(detail.since_at_s)
    yield "gpu_hours_lost_per_hour", None if lost is None else f"{lost:.2f}"
    yield "confidence", formatting.confidence_figure(blame.confidence) if blame else None
    yield "culprits", culprit_names(blame) if blame else None
    yield from ((name, alert.labels.get(name)) for name in CULPRIT_LABELS)
    if alert.status == "firing" and detail.fix is not None:
        yield "fix", fix_text(detail.fix)
        yield "command", detail.fix.command
        yield "command_label", detail.fix.command_label
    yield "as_of", formatting.utc_timestamp(notice.as_of_s)
    yield "behind_s", None if notice.behind_s is None else f"{notice.behind_s:.0f}"
    yield "held_since", formatting.utc_timestamp(notice.held_since_s)
    yield "assigned_to", alert.assigned_to
    yield "note", alert.note
    yield "runbook_url", alert.runbook_url or notice.runbook_url


def _description(alert: NoticeAlert) -> str:
    """The finding without its own figures, which compare other steps, and what the alert costs."""
    if alert.status == "resolved":
        return resolution_sentence(alert)
    blame = alert.detail.blame
    fact = "" if blame is None else f"{finding_sentence(blame)}. "
    return f"{fact}{cost_sentence(alert.detail)}".strip()


_NEVER = "0001-01-01T00:00:00Z"  # Go's zero time: it fires


def render_alertmanager(notice: Notice, receiver: Receiver) -> Message:
    """The message."""
    alerts = labelled_alerts(notice)
    is_firing = any(alert.status == "firing" for alert in alerts)
    return Message(
        json_text(
            {
                "receiver": receiver.name,
                "status": "firing" if is_firing else "resolved",
                "alerts": [_webhook_alert(alert) for alert in alerts],
                "groupLabels": dict(notice.group_labels),
                "commonLabels": _common([alert.labels for alert in alerts]),
                "commonAnnotations": _common([alert.annotations for alert in alerts]),
                "externalURL": notice.base_url or "",
                "version": "4",
                "groupKey": notice.group_key,
                "truncatedAlerts": notice.num_more,
            }
        )
    )


_AlertJson = dict[str, str | dict[str, str]]


def _webhook_alert(alert: LabelledAlert) -> _AlertJson:
    ends_at_s = alert.ends_at_s if alert.status == "resolved" else None
    return {
        "status": alert.status,
        **_alert_json(alert, _NEVER if ends_at_s is None else rfc3339(ends_at_s)),
        "generatorURL": alert.url,
        "fingerprint": alert.fingerprint,
    }


def _alert_json(alert: LabelledAlert, ends_at: str) -> _AlertJson:
    return {
        "labels": dict(alert.labels),
        "annotations": dict(alert.annotations),
        "startsAt": rfc3339(alert.starts_at_s),
        "endsAt": ends_at,
    }


def _common(of_alerts: Sequence[Mapping[str, str]]) -> dict[str, str]:
    first, *rest = of_alerts
    return {
        name: value
        for name, value in first.items()
        if all(other.get(name) == value for other in rest)
    }


# An Alertmanager resolves an alert at `endsAt` and forgets it at a restart, so firing alerts are
# pushed again and again. While Paceline is down or cannot reach it, alerts must not look resolved;
# nor may an alert that Paceline cannot resolve any more fire for days.
REFRESH_EVERY_S = 300.0
PUSH_FIRES_FOR_S = 4 * 3600.0
_FIRES_FOR_S = {"test": 60.0, "notifier-unhealthy": 3600.0, "fix-outcome": 3600.0}
# Of a heartbeat: one may be lost, and one late.
_HEARTBEATS_FIRED_FOR = 3.0
PUSH_PATH = "/api/v2/alerts"


def render_alertmanager_push(notice: Notice, receiver: Receiver) -> Message:
    """The alerts as its API takes them."""
    every_s = receiver.heartbeat_every_s or 0.0
    pushed = [
        _alert_json(alert, rfc3339(_ends_at_s(notice, alert, every_s)))
        # It wants an address or nothing.
        | ({"generatorURL": alert.url} if alert.url else {})
        for alert in labelled_alerts(notice)
    ]
    return Message(json_text(pushed))


def push_url(url: str) -> str:
    """Where to push to, of the Alertmanager that is at this address."""
    parts = urlsplit(url)
    path = parts.path if parts.path.endswith(PUSH_PATH) else parts.path.rstrip("/") + PUSH_PATH
    # What a proxy before it wants to know stays behind the path.
    return urlunsplit(parts._replace(path=path))


def _ends_at_s(notice: Notice, alert: LabelledAlert, heartbeat_every_s: float) -> float:
    if alert.status == "resolved" and alert.ends_at_s is not None:
        return alert.ends_at_s
    if notice.kind == "heartbeat":
        return notice.at_s + _HEARTBEATS_FIRED_FOR * heartbeat_every_s
    return notice.at_s + _FIRES_FOR_S.get(notice.kind, PUSH_FIRES_FOR_S)
