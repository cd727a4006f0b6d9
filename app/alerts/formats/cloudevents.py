"""A CloudEvent 1.0 in structured mode: the same data as in a Standard Webhook."""

from urllib.parse import quote

from app.alerts.endpoint import Endpoint
from app.alerts.formats.figures import content
from app.alerts.formats.json_text import json_text, rfc3339
from app.alerts.formats.standard import EVENT_TYPES
from app.alerts.message import Message
from app.alerts.notice import Notice

CONTENT_TYPE = "application/cloudevents+json; charset=utf-8"


def render(notice: Notice, endpoint: Endpoint) -> Message:
    """The event; its source is the project at this Paceline, its subject the job."""
    base_url = (notice.base_url or "").rstrip("/")
    event = {
        "specversion": "1.0",
        "id": notice.notice_id,
        "source": f"{base_url}/projects/{quote(notice.project, safe='')}",
        "type": f"paceline.{EVENT_TYPES[notice.kind]}",
        "time": rfc3339(notice.at_s),
        "datacontenttype": "application/json",
        "data": content(notice),
    }
    if notice.job:  # must not be empty where it is given
        event["subject"] = notice.job
    return Message(json_text(event), content_type=CONTENT_TYPE)
