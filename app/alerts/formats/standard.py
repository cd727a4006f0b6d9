"""The body of a Standard Webhook: figures for programs, two sentences for people."""

from app.alerts.endpoint import Endpoint
from app.alerts.formats.figures import content
from app.alerts.formats.json_text import json_text, rfc3339
from app.alerts.message import Message
from app.alerts.notice import Notice, NoticeKind

# Types have no hyphens.
EVENT_TYPES: dict[NoticeKind, str] = {
    "firing": "alert.firing",
    "resolved": "alert.resolved",
    "acknowledged": "alert.acknowledged",
    "test": "alert.test",
    "notifier-unhealthy": "notifier.unhealthy",
}


def render(notice: Notice, endpoint: Endpoint) -> Message:
    """The message; what signs it is added at each attempt."""
    return Message(
        json_text(
            {
                "type": EVENT_TYPES[notice.kind],
                "timestamp": rfc3339(notice.at_s),
                "data": content(notice),
            }
        )
    )
