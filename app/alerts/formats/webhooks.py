"""A notice as JSON, its data in the envelopes of Standard Webhooks and CloudEvents 1.0; and pings.

A ping goes to a check at healthchecks.io, or at a server with the same addresses: a heartbeat is a
POST to the check's address, an outage one to its /fail, and a test one to its /log, which changes
nothing. The check's own alerts tell people when pings stay away.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import msgspec
from msgspec.structs import asdict

from app.alerts.alert import Detail
from app.alerts.notice import Message, Notice, NoticeAlert, NoticeKind
from app.alerts.receiver import Receiver

# Types have no hyphens.
EVENT_TYPES: dict[NoticeKind, str] = {
    "firing": "alert.firing",
    "resolved": "alert.resolved",
    "acknowledged": "alert.acknowledged",
    "test": "alert.test",
    "notifier-unhealthy": "notifier.unhealthy",
    "fix-outcome": "fix.measured",
    "service-down": "service.down",
    "service-up": "service.up",
    "heartbeat": "service.heartbeat",
}


def render_standard(notice: Notice, receiver: Receiver) -> Message:
    """The message; what signs it is added at each attempt."""
    return Message(
        json_text(
            {
                "type": EVENT_TYPES[notice.kind],
                "timestamp": rfc3339(notice.at_s),
                "data": notice_content(notice),
            }
        )
    )


CONTENT_TYPE = "application/cloudevents+json; charset=utf-8"


def render_cloudevents(notice: Notice, receiver: Receiver) -> Message:
    """The event; its source is the project at this Paceline, its subject the job."""
    base_url = (notice.base_url or "").rstrip("/")
    event = {
        "specversion": "1.0",
        "id": notice.notice_id,
        "source": f"{base_url}/projects/{quote(notice.project, safe='')}",
        "type": f"paceline.{EVENT_TYPES[notice.kind]}",
        "time": rfc3339(notice.at_s),
        "datacontenttype": "application/json",
        "data": notice_content(notice),
    }
    if notice.job:  # must not be empty where it is given
        event["subject"] = notice.job
    return Message(json_text(event), content_type=CONTENT_TYPE)


def json_text(content: Any) -> str:
    """The content as JSON; a number that is not finite is null."""
    return msgspec.json.encode(content).decode()


def rfc3339(unix_s: float) -> str:
    """A moment in UTC, to the millisecond, without zeros at the end: as Go's servers write it."""
    moment = datetime.fromtimestamp(round(unix_s, 3), UTC)
    text = moment.isoformat(timespec="milliseconds").removesuffix("+00:00")
    return f"{text.rstrip('0').removesuffix('.')}Z"


def _rfc3339_or_none(unix_s: float | None) -> str | None:
    return None if unix_s is None else rfc3339(unix_s)


def notice_content(notice: Notice) -> dict[str, Any]:
    """All of the notice as plain data, for programs."""
    return {
        **_fields(notice, "kind", "is_repeat", "is_partly_resolved", "project"),
        "job_id": notice.job,
        **_fields(notice, "job_name", "rule", "severity", "sentence", "sub"),
        "url": notice.page_url,
        **_fields(notice, "image_url", "runbook_url"),
        "alerts": [_alert(alert) for alert in notice.alerts],
        "num_more": notice.num_more,
        "as_of": _rfc3339_or_none(notice.as_of_s),
        "behind_s": notice.behind_s,
        "held_since": _rfc3339_or_none(notice.held_since_s),
    }


def _alert(alert: NoticeAlert) -> dict[str, Any]:
    now, blame = alert.detail, alert.detail.blame
    finding = None
    if blame is not None:
        finding = {
            **_fields(blame, "cause", "sentence", "cost", "confidence"),
            "culprits": [culprit.as_json() for culprit in blame.culprits],
            "num_culprits": blame.num_culprits,
        }
    return {
        **_fields(alert, "fingerprint", "event_id", "status", "severity"),
        "labels": dict(alert.labels),
        "sentence": alert.sentence,
        "starts_at": rfc3339(alert.starts_at_s),
        "ends_at": _rfc3339_or_none(alert.ends_at_s),
        **_fields(alert, "threshold", "runbook_url", "assigned_to", "note"),
        **_fields(now, "gpu_time_wasted", "num_gpus"),
        "window": now.window_id,
        "finding": finding,
        "fix": None if now.fix is None else asdict(now.fix),
        "names": list(now.names),
        "num_named": now.num_named,
        **_figures(now),
        "was": None if alert.was is None else _figures(alert.was),
    }


def _figures(detail: Detail) -> dict[str, Any]:
    """The figures that a resolved alert has twice."""
    return {
        **_fields(detail, "value", "slowdown", "gpu_hours_lost_per_hour", "since_step"),
        "since_at": _rfc3339_or_none(detail.since_at_s),
    }


def _fields(record: object, *names: str) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}


# What is put behind the check's address, by the kind of notice. Others are not sent to checks.
PING_PATHS: Mapping[NoticeKind, str] = {"heartbeat": "", "service-down": "/fail", "test": "/log"}


def render_healthchecks(notice: Notice, receiver: Receiver) -> Message:
    """The ping; the check's log shows its text."""
    body = f"{notice.sentence}\n{notice.sub}".strip()
    return Message(f"{body}\n", content_type="text/plain; charset=utf-8")


def ping_url(url: str, kind: NoticeKind) -> str:
    """Where the ping of this kind goes, of the check at this address."""
    parts = urlsplit(url)
    # What stands behind the path, such as ?create=1, stays there.
    behind = PING_PATHS.get(kind, "/log")  # which changes nothing
    return urlunsplit(parts._replace(path=parts.path.rstrip("/") + behind))
