"""Alerts pushed into an Alertmanager, which then groups, silences and routes them by itself."""

from typing import Any
from urllib.parse import urlsplit, urlunsplit

from app.alerts.endpoint import Endpoint
from app.alerts.formats.json_text import json_text, rfc3339
from app.alerts.formats.labelled import Labelled, labelled
from app.alerts.message import Message
from app.alerts.notice import Notice

# An Alertmanager takes an alert for resolved at `endsAt`, and has forgotten it after a restart: it
# is told again and again. What it is not told, since Paceline is down or cannot reach it, shall
# not look as if all were well; nor shall what Paceline may not tell any more fire for days.
REFRESH_EVERY_S = 300.0
FIRES_FOR_S = 4 * 3600.0
_TEST_FIRES_FOR_S = 60.0
_NEWS_FIRES_FOR_S = 3600.0
PATH = "/api/v2/alerts"


def render(notice: Notice, endpoint: Endpoint) -> Message:
    """The alerts as its API takes them."""
    return Message(json_text([_alert(notice, alert) for alert in labelled(notice)]))


def address_of(url: str) -> str:
    """Where to push to, of the Alertmanager that is at this address."""
    parts = urlsplit(url)
    path = parts.path if parts.path.endswith(PATH) else parts.path.rstrip("/") + PATH
    # What a proxy before it wants to know stays behind the path.
    return urlunsplit(parts._replace(path=path))


def _alert(notice: Notice, alert: Labelled) -> dict[str, Any]:
    pushed = {
        "labels": dict(alert.labels),
        "annotations": dict(alert.annotations),
        "startsAt": rfc3339(alert.starts_at_s),
        "endsAt": rfc3339(_ends_at_s(notice, alert)),
    }
    # It wants an address or nothing.
    return pushed | ({"generatorURL": alert.url} if alert.url else {})


def _ends_at_s(notice: Notice, alert: Labelled) -> float:
    if alert.status == "resolved" and alert.ends_at_s is not None:
        return alert.ends_at_s
    if notice.kind == "test":
        return notice.at_s + _TEST_FIRES_FOR_S
    if notice.kind == "notifier-unhealthy":
        return notice.at_s + _NEWS_FIRES_FOR_S
    return notice.at_s + FIRES_FOR_S
