"""Pings of a check at healthchecks.io, or at a server with the same addresses.

A heartbeat is a POST to the check's address, an outage one to its /fail, and a test one to its
/log, which changes nothing. The check's own alerts tell people when pings stay away.
"""

from collections.abc import Mapping
from urllib.parse import urlsplit, urlunsplit

from app.alerts.notice import Message, Notice, NoticeKind
from app.alerts.receiver import Receiver

# What is put behind the check's address, by the kind of notice. Others are not sent to checks.
PING_PATHS: Mapping[NoticeKind, str] = {"heartbeat": "", "service-down": "/fail", "test": "/log"}
_CHANGES_NOTHING = "/log"


def render_healthchecks(notice: Notice, receiver: Receiver) -> Message:
    """The ping; the check's log shows its text."""
    body = f"{notice.sentence}\n{notice.sub}".strip()
    return Message(f"{body}\n", content_type="text/plain; charset=utf-8")


def ping_url(url: str, kind: NoticeKind) -> str:
    """Where the ping of this kind goes, of the check at this address."""
    parts = urlsplit(url)
    # What stands behind the path, such as ?create=1, stays there.
    behind = PING_PATHS.get(kind, _CHANGES_NOTHING)
    return urlunsplit(parts._replace(path=parts.path.rstrip("/") + behind))
