"""PagerDuty Events v2: one incident per rule and job, opened, acknowledged, resolved."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from app.alerts.formats.figures import notice_facts, notice_heading
from app.alerts.formats.text import defang_links, map_texts, one_line
from app.alerts.formats.webhooks import json_text, notice_content, rfc3339
from app.alerts.notice import Message, Notice, NoticeKind
from app.alerts.receiver import Receiver

_ACTIONS: dict[NoticeKind, str] = {
    "firing": "trigger",
    "resolved": "resolve",
    "acknowledged": "acknowledge",
    "test": "trigger",
    "notifier-unhealthy": "trigger",
    "service-down": "trigger",
    "service-up": "resolve",
}
_OWN_LINKS = ("url", "image_url", "runbook_url")
_MAX_SUMMARY_CHARS = 1024  # more is refused
_MAX_SOURCE_CHARS = 255


def render_pagerduty(notice: Notice, receiver: Receiver) -> Message:
    """The event without its routing key, which is a secret and stays out of the outbox."""
    action = _ACTIONS[notice.kind]
    event = {"event_action": action, "dedup_key": dedup_key(notice)}
    if action != "trigger":
        return Message(json_text(event))
    event |= {"client": "Paceline"} | ({"client_url": notice.page_url} if notice.page_url else {})
    payload = {
        "summary": one_line(defang_links(f"{notice.sentence} {notice.sub}"), _MAX_SUMMARY_CHARS),
        "source": one_line(
            defang_links(notice.job_name or notice.job or "Paceline"), _MAX_SOURCE_CHARS
        ),
        "severity": notice.severity,
        "timestamp": rfc3339(notice.at_s),
        "component": notice.job,
        "group": notice.project,
        "class": notice.rule,
        "custom_details": _details(notice),
    }
    href = notice.page_url or notice.image_url
    image = {"src": notice.image_url, "alt": "Slowdown of each worker", "href": href}
    lists = {"links": _links(notice), "images": [image] if notice.image_url else []}
    return Message(json_text({**event, "payload": payload, **lists}))


def dedup_key(notice: Notice) -> str:
    """Dedup key: one per rule and job."""
    return "paceline-" + hashlib.sha256(notice.group_key.encode()).hexdigest()[:32]


def with_routing_key(body: str, secrets: Sequence[str]) -> str:
    """The event as it is sent."""
    event = json.loads(body)
    return json_text({"routing_key": secrets[0] if secrets else "", **event})


def _details(notice: Notice) -> dict[str, Any]:
    """All that is known, in which only our own addresses are links: its page makes some of all."""
    content = notice_content(notice)
    facts = {**dict(notice_facts(notice)), "status": notice_heading(notice), **content}
    details: dict[str, Any] = map_texts(facts, defang_links)
    return details | {name: content[name] for name in _OWN_LINKS}


def _links(notice: Notice) -> list[dict[str, str]]:
    links = ((notice.page_url, "The window in Paceline"), (notice.runbook_url, "Runbook"))
    return [{"href": href, "text": text} for href, text in links if href]
