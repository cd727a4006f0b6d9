"""An e-mail in plain text; all of one rule on one job is one thread."""

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime
from email import policy
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import format_datetime

from app.alerts.formats.figures import notice_facts, notice_title, unlisted_alerts
from app.alerts.formats.text import defang_links, one_line
from app.alerts.notice import Message, Notice
from app.alerts.receiver import Receiver
from app.alerts.smtp import is_mail_address

_SCHEME = "mailto:"
_MAX_SUBJECT_CHARS = 150
_MESSAGE_ID_HOST = "paceline.invalid"  # of ids alone: no mail goes there


def mailto_address(url: str) -> str | None:
    """The address of a mailto: URL; None where it is not one plain address."""
    address = url.removeprefix(_SCHEME)
    return address if url.startswith(_SCHEME) and is_mail_address(address) else None


def render_email(notice: Notice, receiver: Receiver) -> Message:
    """Subject and text; the message's own headers are made when it is sent."""
    thread = hashlib.sha256(notice.group_key.encode()).hexdigest()[:32]
    return Message(
        body="\n".join(_lines(notice)) + "\n",
        content_type="text/plain; charset=utf-8",
        headers={"references": f"<{thread}@{_MESSAGE_ID_HOST}>"},
        subject=one_line(
            defang_links(f"[{notice.severity}] {notice_title(notice)}"), _MAX_SUBJECT_CHARS
        ),
    )


def build_email(
    message: Message, *, sender: str, to: str, delivery_id: str, at_s: float
) -> EmailMessage:
    """The e-mail of one attempt; its id is the same in all, so that mailboxes show it once."""
    mail = EmailMessage(policy=policy.SMTP)
    mail["From"] = Address("Paceline", addr_spec=sender)
    mail["To"] = Address(addr_spec=to)
    mail["Subject"] = message.subject or "Paceline"
    mail["Date"] = format_datetime(datetime.fromtimestamp(at_s, UTC))
    mail["Message-ID"] = f"<{delivery_id}@{_MESSAGE_ID_HOST}>"
    if "references" in message.headers:
        mail["References"] = message.headers["references"]
    mail["Auto-Submitted"] = "auto-generated"  # no out-of-office reply
    mail.set_content(message.body)
    return mail


def _lines(notice: Notice) -> Iterator[str]:
    yield defang_links(notice.sentence)
    if notice.sub:
        yield defang_links(notice.sub)
    if notice.page_url:
        yield from ("", notice.page_url)
    if facts := notice_facts(notice):
        yield ""
        yield from (f"{name}: {defang_links(value)}" for name, value in facts)
    if len(notice.alerts) > 1:
        yield from ("", "All of them:")
        yield from (f"- {defang_links(alert.sentence)}" for alert in notice.alerts)
    if more := unlisted_alerts(notice):
        yield more
    if notice.runbook_url:
        yield from ("", f"Runbook: {notice.runbook_url}")
