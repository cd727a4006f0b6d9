"""Send one message to one receiver, once: headers, signature, then HTTP or SMTP.

The only way out of this service for notifications. HTTP goes through the guard; e-mail goes to
the operator's mail server. Webhooks are signed by Standard Webhooks 1.0, symmetric.
`refuse_unusable_receiver` checks a new receiver without sending anything.
"""

import base64
import re
import smtplib
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property

import httpcore
from standardwebhooks.webhooks import Webhook

from app.alerts.formats import alertmanager, email, pagerduty, webhooks
from app.alerts.guard import SsrfGuard, operator_guard
from app.alerts.notice import Message, NoticeKind
from app.alerts.receiver import (
    HEARTBEAT_FORMATS,
    SETTINGS_RECEIVER_ID,
    Format,
    Receiver,
    public_address,
)
from app.alerts.smtp import MailServer
from app.errors import Blocked, InvalidRequest

_OVERLOADED_STATUSES = frozenset({429, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """How one attempt went; `status` is HTTP's or SMTP's, None where none came.

    `detail` is for people: of the receiver's own words only the first few, printable ones.
    `retry_after` is the receiver's header as it is.
    """

    status: int | None
    detail: str
    retry_after: str | None = None
    took_s: float = 0.0
    is_late: bool = False

    @property
    def is_success(self) -> bool:
        """Whether the receiver has taken it."""
        return self.status is not None and 200 <= self.status < 300

    @property
    def is_overloaded(self) -> bool:
        """Whether the receiver, or a gateway before it, needs a longer rest."""
        return self.is_late or self.status in _OVERLOADED_STATUSES


# Formats with signed messages; receivers of the others check no signature.
SIGNED_FORMATS: frozenset[Format] = frozenset({"standard", "alertmanager", "cloudevents"})
KEY_PREFIX = "whsec_"
MIN_SECRET_BYTES, MAX_SECRET_BYTES = 24, 64
MAX_SECRETS = 2  # the new one, and the one that receivers still have


def signature_headers(
    secrets: Sequence[str], delivery_id: str, body: str, now_s: float
) -> dict[str, str]:
    """The three headers of one attempt: a signature per secret, the newest first."""
    signed_at = datetime.fromtimestamp(int(now_s), UTC)
    signatures = [Webhook(secret).sign(delivery_id, signed_at, body) for secret in secrets]
    return {
        "webhook-id": delivery_id,
        "webhook-timestamp": str(int(now_s)),
        "webhook-signature": " ".join(signatures),
    }


def check_secret(secret: str) -> None:
    """Raise InvalidRequest if the secret is malformed, or too short to sign messages with."""
    try:
        key = base64.b64decode(secret.removeprefix(KEY_PREFIX), validate=True)
    except ValueError:
        key = b""
    if not secret.startswith(KEY_PREFIX) or not MIN_SECRET_BYTES <= len(key) <= MAX_SECRET_BYTES:
        raise InvalidRequest(
            f"a signing secret is {KEY_PREFIX} and {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES} bytes "
            "in base64"
        )


USER_AGENT = "Paceline"
# Headers that users may add. Not Host, Content-Length, Transfer-Encoding, cookies, X-Forwarded-*.
_ALLOWED_NAMES = re.compile(r"authorization|x-(?!forwarded|real-ip)[a-z0-9-]{1,60}")
# The HTTP library refuses a value with a space at either end.
_ALLOWED_VALUE = re.compile(r"(?! )[\x20-\x7e]{0,1000}(?<! )")


def attempt_headers(
    receiver: Receiver, message: Message, delivery_id: str, now_s: float
) -> dict[str, str]:
    """All headers of one attempt; ours win over the receiver's own."""
    own_headers = {name.lower(): value for name, value in receiver.headers.items()}
    headers = {name: value for name, value in own_headers.items() if is_allowed_header(name, value)}
    if receiver.format == "alertmanager-push" and receiver.secrets:
        headers["authorization"] = f"Bearer {receiver.secrets[0]}"
    headers |= {**message.headers, "content-type": message.content_type, "user-agent": USER_AGENT}
    if receiver.format in SIGNED_FORMATS and receiver.secrets:
        headers |= signature_headers(receiver.secrets_at(now_s), delivery_id, message.body, now_s)
    else:
        headers["webhook-id"] = delivery_id
    return headers


def is_allowed_header(name: str, value: str) -> bool:
    """Whether a receiver may have this header."""
    return bool(_ALLOWED_NAMES.fullmatch(name.lower())) and bool(_ALLOWED_VALUE.fullmatch(value))


def send_mail(
    server: MailServer | None,
    receiver: Receiver,
    message: Message,
    delivery_id: str,
    now_s: float,
) -> AttemptResult:
    """Hand the message to the mail server; status codes are SMTP's."""
    try:
        ours, to = mail_route(server, receiver)
    except InvalidRequest as refusal:
        return AttemptResult(None, str(refusal))
    mail = email.build_email(
        message, sender=ours.sender, to=to, delivery_id=delivery_id, at_s=now_s
    )
    try:
        ours.send(mail, to)
    except smtplib.SMTPResponseException as refusal:
        return AttemptResult(refusal.smtp_code, f"SMTP {refusal.smtp_code}")
    except smtplib.SMTPRecipientsRefused as refusal:
        status = max((code for code, _ in refusal.recipients.values()), default=550)
        return AttemptResult(status, f"SMTP {status}: the recipient is refused")
    except TimeoutError:
        return AttemptResult(None, "no answer in time", is_late=True)
    except (smtplib.SMTPException, OSError) as error:
        return AttemptResult(None, f"no connection: {type(error).__name__}")
    return AttemptResult(250, "SMTP 250")


def mail_route(server: MailServer | None, receiver: Receiver) -> tuple[MailServer, str]:
    """The mail server for a receiver, and its address.

    Raises:
        InvalidRequest: there is no server, no valid address, or its domain is not allowed.
    """
    if server is None:
        raise InvalidRequest("no mail server is set up: the operator sets PACELINE_SMTP_URL")
    to = email.mailto_address(receiver.url)
    if to is None:
        raise InvalidRequest(
            "the url of an e-mail receiver must be mailto:NAME@HOST, one plain address"
        )
    if not server.may_write_to(to):
        raise InvalidRequest(
            "mail to this domain is not allowed: the operator lists them in PACELINE_SMTP_DOMAINS"
        )
    return server, to


# Words for the first of an error's causes that is one of these.
_NETWORK_ERRORS: tuple[tuple[type[BaseException], str], ...] = (
    (socket.gaierror, "host name not found (DNS)"),
    (ssl.SSLCertVerificationError, "its certificate is not valid"),
    (ssl.SSLError, "TLS failed"),
    (ConnectionRefusedError, "connection refused"),
    (ConnectionResetError, "the connection was broken off"),
    (httpcore.RemoteProtocolError, "the answer is not HTTP"),
    (httpcore.ConnectError, "connecting failed"),
)


@dataclass(frozen=True)
class Transport:
    """The ways out: HTTP through the guard, and the operator's mail server if there is one."""

    guard: SsrfGuard
    mail: MailServer | None = None
    monotonic: Callable[[], float] = time.monotonic

    @cached_property
    def operator_guard(self) -> SsrfGuard:
        """The guard of the operator's own receiver."""
        return operator_guard(self.guard)

    def guard_for(self, receiver: Receiver) -> SsrfGuard:
        """The guard for this receiver: the operator's own receiver may be anywhere."""
        return self.operator_guard if receiver.endpoint_id == SETTINGS_RECEIVER_ID else self.guard


def send(
    transport: Transport, receiver: Receiver, message: Message, delivery_id: str, now_s: float
) -> AttemptResult:
    """One attempt; errors are in the result. `delivery_id` is the same in all attempts."""
    began_s = transport.monotonic()
    if receiver.format == "email":
        answer = send_mail(transport.mail, receiver, message, delivery_id, now_s)
    else:
        answer = _post_message(transport, receiver, message, delivery_id, now_s)
    detail = without_secrets_of(receiver, answer.detail)
    return replace(answer, detail=detail, took_s=transport.monotonic() - began_s)


_MIN_SECRET_CHARS = 6  # shorter texts are in every answer
_MIN_CUT_CHARS = 4


def without_secrets_of(receiver: Receiver, text: str) -> str:
    """The text without the receiver's secrets: some receivers repeat what they were sent.

    One that is cut off at the end of the text is masked, too.
    """
    for secret in _secrets_of(receiver):
        text = text.replace(secret, "***")
        for length in range(min(len(secret), len(text)), _MIN_CUT_CHARS - 1, -1):
            if text.endswith(secret[:length]):
                text = f"{text[:-length]}***"
                break
    return text


def _secrets_of(receiver: Receiver) -> Sequence[str]:
    """The parts of the receiver's address, headers and secrets that are secret, longest first."""
    after_host = receiver.url.removeprefix(public_address(receiver.format, receiver.url))
    of_headers = (part for value in receiver.headers.values() for part in (value, *value.split()))
    pieces = {after_host, *re.split(r"[/?&=#]", after_host), *receiver.secrets, *of_headers}
    pieces |= {secret.removeprefix(KEY_PREFIX) for secret in receiver.secrets}
    return sorted(
        (piece for piece in pieces if len(piece) >= _MIN_SECRET_CHARS), key=len, reverse=True
    )


def _post_message(
    transport: Transport, receiver: Receiver, message: Message, delivery_id: str, now_s: float
) -> AttemptResult:
    headers = attempt_headers(receiver, message, delivery_id, now_s)
    body = message.body
    if receiver.format == "pagerduty":
        body = pagerduty.with_routing_key(body, receiver.secrets)
    guard, url = transport.guard_for(receiver), _url(receiver, message.kind)
    try:
        reply = guard.post(url, headers=headers, body=body.encode())
    except Blocked as refusal:
        return AttemptResult(None, f"blocked: {refusal}")
    except httpcore.TimeoutException:
        return AttemptResult(None, "no answer in time", is_late=True)
    except (httpcore.NetworkError, httpcore.ProtocolError) as error:
        return AttemptResult(None, f"no connection: {_network_error(error)}")
    printable = "".join(chr(byte) if 32 <= byte < 127 else " " for byte in reply.beginning)
    detail = f"HTTP {reply.status} {printable}".rstrip()
    return AttemptResult(reply.status, detail, reply.headers.get("retry-after"))


def _url(receiver: Receiver, kind: NoticeKind) -> str:
    if receiver.format == "alertmanager-push":
        return alertmanager.push_url(receiver.url)
    if receiver.format == "healthchecks":
        return webhooks.ping_url(receiver.url, kind)
    return receiver.url


def why_not_reached(guard: SsrfGuard, receiver: Receiver) -> str | None:
    """Why no connection to the receiver can be made, in words; None where one can.

    Nothing is sent. E-mail goes to the operator's server, which is not asked.

    Raises:
        Blocked: messages must not be sent to its URL.
    """
    if receiver.format == "email":
        return None
    try:
        guard.connect(_url(receiver, "test"))
    except httpcore.TimeoutException:
        return "no answer in time"
    except (httpcore.NetworkError, httpcore.ProtocolError) as error:
        return _network_error(error)
    return None


def _network_error(error: Exception) -> str:
    causes: list[BaseException] = [error]
    while (cause := causes[-1].__context__) is not None:
        causes.append(cause)
    for kind, words in _NETWORK_ERRORS:
        if any(isinstance(cause, kind) for cause in causes):
            return words
    return "the connection broke"


MAX_HEADERS = 16
_API_KEY = re.compile(r"[\x21-\x7e]{16,512}")


def refuse_unusable_receiver(
    receiver: Receiver, guard: SsrfGuard, mail: MailServer | None = None
) -> None:
    """Check a receiver without sending anything.

    Raises:
        Blocked: messages must not be sent to its URL.
        InvalidRequest: its address, secrets or headers are invalid.
    """
    if receiver.format == "email":
        mail_route(mail, receiver)
    else:
        guard.check(receiver.url)
    _check_heartbeat(receiver)
    _check_secrets(receiver)
    if len(receiver.headers) > MAX_HEADERS:
        raise InvalidRequest(f"a receiver has {MAX_HEADERS} headers at most")
    for name, value in receiver.headers.items():
        if not is_allowed_header(name, value):
            raise InvalidRequest(
                f"header {name[:64]!r} cannot be set: Authorization and X-... can, in plain ASCII"
            )


def _check_heartbeat(receiver: Receiver) -> None:
    if receiver.heartbeat_every_s is None:
        if receiver.format == "healthchecks":
            raise InvalidRequest(
                "heartbeat_every_s: a check of healthchecks gets heartbeats only, say how often"
            )
    elif receiver.format not in HEARTBEAT_FORMATS:
        raise InvalidRequest(
            f"heartbeat_every_s: format {receiver.format} is for people, heartbeats go to "
            f"{', '.join(sorted(HEARTBEAT_FORMATS))}"
        )


def _check_secrets(receiver: Receiver) -> None:
    if receiver.format in SIGNED_FORMATS:
        if len(receiver.secrets) > MAX_SECRETS:
            raise InvalidRequest(f"a receiver has {MAX_SECRETS} secrets at most, the newest first")
        if receiver.format == "standard" and not receiver.secrets:
            raise InvalidRequest("a standard webhook is signed: it needs a secret")
        for secret in receiver.secrets:
            check_secret(secret)
    elif receiver.format == "pagerduty" and not receiver.secrets:
        raise InvalidRequest("PagerDuty needs the integration's routing key as its secret")
    elif receiver.format == "healthchecks" and receiver.secrets:
        raise InvalidRequest("a check of healthchecks has no secret: its address is one")
    elif not all(_API_KEY.fullmatch(secret) for secret in receiver.secrets):
        raise InvalidRequest("a key is 16 to 512 printable ASCII characters without spaces")
