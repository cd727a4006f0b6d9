"""A Slack incoming webhook. All text is plain: no mention, link or format comes from outside."""

import json
from collections.abc import Iterator

from app.alerts.formats.figures import notice_facts, notice_heading, notice_title, unlisted_alerts
from app.alerts.formats.text import ELLIPSIS, defang_links
from app.alerts.formats.webhooks import json_text
from app.alerts.notice import Message, Notice
from app.alerts.receiver import Receiver
from app.result.record import Json

# More is refused, and with it the whole message. The length counts as escaped.
_MAX_HEADER_CHARS = 150
_MAX_TEXT_CHARS = 3000
_MAX_FIELD_CHARS = 2000
_MAX_FIELDS = 10
_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_REFUSED_STATUS = 400  # "invalid_blocks", also where it cannot fetch an image
_ALT_TEXT = "Heatmap: slowdown of each worker"


def render_slack(notice: Notice, receiver: Receiver) -> Message:
    """The message; its `text` is what notifications and screen readers show."""
    content = {
        "text": _escaped(
            f"{notice_heading(notice)}: {notice.sentence} {notice.sub}", _MAX_TEXT_CHARS
        ),
        "mrkdwn": False,
        "parse": "none",
        "link_names": False,
        "unfurl_links": False,
        "unfurl_media": False,
        "blocks": list(_blocks(notice)),
    }
    return Message(json_text(content))


def is_image_refused(body: str, status: int | None) -> bool:
    """Whether Slack may have refused this message because of its image."""
    return status == _REFUSED_STATUS and any(
        block["type"] == "image" for block in json.loads(body)["blocks"]
    )


def without_image(body: str) -> str:
    """The message without its image: Slack may refuse a message if it cannot fetch the image."""
    content = json.loads(body)
    blocks = [block for block in content["blocks"] if block["type"] != "image"]
    return json_text(content | {"blocks": blocks})


_Block = dict[str, Json]  # or a part of one


def _blocks(notice: Notice) -> Iterator[_Block]:
    yield {"type": "header", "text": _plain_text(notice_title(notice), _MAX_HEADER_CHARS)}
    yield {"type": "section", "text": _plain_text(f"{notice.sentence} {notice.sub}")}
    if facts := notice_facts(notice)[:_MAX_FIELDS]:
        fields = [_plain_text(f"{name}: {value}", _MAX_FIELD_CHARS) for name, value in facts]
        yield {"type": "section", "fields": fields}
    more = unlisted_alerts(notice)
    if others := [alert.sentence for alert in notice.alerts[1:]] + ([more] if more else []):
        yield {"type": "section", "text": _plain_text("\n".join(others))}
    if notice.image_url:
        yield {"type": "image", "image_url": notice.image_url, "alt_text": _ALT_TEXT}
    links = (("Open in Paceline", notice.page_url), ("Runbook", notice.runbook_url))
    buttons = [
        {"type": "button", "text": _plain_text(text), "url": url, "action_id": f"open-{number}"}
        for number, (text, url) in enumerate(links)
        if url
    ]
    if buttons:
        yield {"type": "actions", "elements": buttons}


def _plain_text(text: str, most_chars: int = _MAX_TEXT_CHARS) -> _Block:
    return {"type": "plain_text", "emoji": False, "text": _escaped(text, most_chars)}


def _escaped(text: str, most_chars: int) -> str:
    """The text without links, Slack's three signs escaped, cut so that no escape is cut through."""
    escaped: list[str] = []
    room = most_chars - len(ELLIPSIS)
    for char in defang_links(text):
        written = _ESCAPES.get(char, char)
        if room < len(written):
            return "".join(escaped) + ELLIPSIS
        escaped.append(written)
        room -= len(written)
    return "".join(escaped)
