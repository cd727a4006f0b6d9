"""Send one message to one receiver, once: the only way out of this service."""

import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace

import httpcore

from app.alerts.answer import Answer
from app.alerts.endpoint import OF_SETTINGS, Endpoint
from app.alerts.formats import alertmanager_push, pagerduty
from app.alerts.guard.addresses import Network
from app.alerts.guard.guard import Guard, Reply, of_operator
from app.alerts.guard.url import PORTS
from app.alerts.headers import headers_of
from app.alerts.mailing import mailed
from app.alerts.message import Message
from app.alerts.smtp import MailServer
from app.errors import Blocked

# What went wrong in words, by the first of an error's causes that is one of these.
_WORDS: tuple[tuple[type[BaseException], str], ...] = (
    (socket.gaierror, "its name is not known"),
    (ssl.SSLCertVerificationError, "its certificate is not valid"),
    (ssl.SSLError, "TLS failed"),
    (ConnectionRefusedError, "nobody listens there"),
    (ConnectionResetError, "the connection was broken off"),
    (httpcore.RemoteProtocolError, "the answer is no HTTP"),
    (httpcore.ConnectError, "no connection"),
)


class Transport:
    """The ways out: HTTP through the guard, and the operator's mail server if there is one."""

    def __init__(
        self,
        guard: Guard,
        mail: MailServer | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.guard = guard
        self.mail = mail
        self.monotonic = monotonic
        self.of_operator = of_operator(guard)

    def guard_for(self, endpoint: Endpoint) -> Guard:
        """Who says where it may be: the operator's own endpoint may be anywhere."""
        return self.of_operator if endpoint.endpoint_id == OF_SETTINGS else self.guard


def make_transport(
    *,
    allowed: Sequence[Network] = (),
    allows_http: bool = False,
    ports: Set[int] = PORTS,
    mail: MailServer | None = None,
) -> Transport:
    """The ways out as they are set up."""
    return Transport(Guard(allowed, allows_http, ports), mail)


def send(
    transport: Transport, endpoint: Endpoint, message: Message, delivery_id: str, now_s: float
) -> Answer:
    """One attempt; whatever goes wrong is in the answer. `delivery_id` is the same in all."""
    began_s = transport.monotonic()
    if endpoint.format == "email":
        answer = mailed(transport.mail, endpoint, message, delivery_id, now_s)
    else:
        answer = _posted(transport, endpoint, message, delivery_id, now_s)
    return replace(answer, took_s=transport.monotonic() - began_s)


def _posted(
    transport: Transport, endpoint: Endpoint, message: Message, delivery_id: str, now_s: float
) -> Answer:
    headers = headers_of(endpoint, message, delivery_id, now_s)
    body = message.body
    if endpoint.format == "pagerduty":
        body = pagerduty.with_routing_key(body, endpoint.secrets)
    return _answer(transport.guard_for(endpoint), _address(endpoint), headers, body)


def _address(endpoint: Endpoint) -> str:
    if endpoint.format == "alertmanager-push":
        return alertmanager_push.address_of(endpoint.url)
    return endpoint.url


def _answer(guard: Guard, url: str, headers: Mapping[str, str], body: str) -> Answer:
    try:
        reply = guard.post(url, headers=headers, body=body.encode())
    except Blocked as refusal:
        return Answer(None, f"blocked: {refusal}")
    except httpcore.TimeoutException:
        return Answer(None, "no answer in time", is_late=True)
    except (httpcore.NetworkError, httpcore.ProtocolError) as error:
        return Answer(None, f"not reached: {_words(error)}")
    return Answer(reply.status, _detail(reply), reply.headers.get("retry-after"))


def _detail(reply: Reply) -> str:
    printable = "".join(chr(byte) if 32 <= byte < 127 else " " for byte in reply.beginning)
    return f"HTTP {reply.status} {printable}".rstrip()


def _words(error: Exception) -> str:
    causes: list[BaseException] = [error]
    while (cause := causes[-1].__context__) is not None:
        causes.append(cause)
    for kind, words in _WORDS:
        if any(isinstance(cause, kind) for cause in causes):
            return words
    return "the connection broke"
