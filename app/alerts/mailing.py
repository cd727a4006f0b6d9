"""A message as e-mail, handed to the operator's mail server."""

import smtplib

from app.alerts.answer import Answer
from app.alerts.endpoint import Endpoint
from app.alerts.formats import email
from app.alerts.message import Message
from app.alerts.smtp import MailServer
from app.errors import InvalidRequest


def mailed(
    server: MailServer | None,
    endpoint: Endpoint,
    message: Message,
    delivery_id: str,
    now_s: float,
) -> Answer:
    """How handing it over went; the server's answers are SMTP's."""
    try:
        ours, to = way(server, endpoint)
    except InvalidRequest as refusal:
        return Answer(None, str(refusal))
    mail = email.made(message, sender=ours.sender, to=to, delivery_id=delivery_id, at_s=now_s)
    try:
        ours.send(mail, to)
    except smtplib.SMTPResponseException as refusal:
        return Answer(refusal.smtp_code, f"SMTP {refusal.smtp_code}")
    except smtplib.SMTPRecipientsRefused as refusal:
        return _refused(refusal)
    except TimeoutError:
        return Answer(None, "no answer in time", is_late=True)
    except (smtplib.SMTPException, OSError) as error:
        return Answer(None, f"not reached: {type(error).__name__}")
    return Answer(250, "SMTP 250")


def way(server: MailServer | None, endpoint: Endpoint) -> tuple[MailServer, str]:
    """By which server an endpoint is written to, and its address.

    Raises:
        InvalidRequest: there is no server, no address, or one that is not to be written to.
    """
    if server is None:
        raise InvalidRequest("no mail server is set up: the operator sets PACELINE_SMTP_URL")
    to = email.address_of(endpoint.url)
    if to is None:
        raise InvalidRequest("an e-mail endpoint's url is mailto:NAME@HOST, one plain address")
    if not server.may_write_to(to):
        raise InvalidRequest(
            "mail to this domain is not allowed: the operator lists them in PACELINE_SMTP_DOMAINS"
        )
    return server, to


def _refused(refusal: smtplib.SMTPRecipientsRefused) -> Answer:
    status = max((code for code, _ in refusal.recipients.values()), default=550)
    return Answer(status, f"SMTP {status}: the recipient is refused")
