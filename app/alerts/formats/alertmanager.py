"""The body that an Alertmanager's webhooks have, version 4: for whatever takes those already."""

from collections.abc import Mapping, Sequence
from typing import Any

from app.alerts.endpoint import Endpoint
from app.alerts.formats.json_text import json_text, rfc3339
from app.alerts.formats.labelled import Labelled, labelled
from app.alerts.message import Message
from app.alerts.notice import Notice

_NEVER = "0001-01-01T00:00:00Z"  # Go's zero time: it fires


def render(notice: Notice, endpoint: Endpoint) -> Message:
    """The message."""
    alerts = labelled(notice)
    is_firing = any(alert.status == "firing" for alert in alerts)
    return Message(
        json_text(
            {
                "receiver": endpoint.name,
                "status": "firing" if is_firing else "resolved",
                "alerts": [_alert(alert) for alert in alerts],
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


def _alert(alert: Labelled) -> dict[str, Any]:
    ends_at_s = alert.ends_at_s if alert.status == "resolved" else None
    return {
        "status": alert.status,
        "labels": dict(alert.labels),
        "annotations": dict(alert.annotations),
        "startsAt": rfc3339(alert.starts_at_s),
        "endsAt": _NEVER if ends_at_s is None else rfc3339(ends_at_s),
        "generatorURL": alert.url,
        "fingerprint": alert.fingerprint,
    }


def _common(of_alerts: Sequence[Mapping[str, str]]) -> dict[str, str]:
    if not of_alerts:
        return {}
    first, *rest = of_alerts
    return {
        name: value
        for name, value in first.items()
        if all(other.get(name) == value for other in rest)
    }
