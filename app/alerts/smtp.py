"""E-mail through the operator's own mail server, which only the environment names."""

import re
import smtplib
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from email.message import EmailMessage
from fnmatch import fnmatchcase

import httpx

from app.alerts.connection import Deadline, Dial, Resolver, SystemResolver, connect_to_first
from app.alerts.guard import CONNECT_S
from app.errors import StartUpFailed

TOTAL_S = 10.0
_PORTS = {"smtp": 587, "smtps": 465}
_ADDRESS = re.compile(r"[A-Za-z0-9._%+=#&'*/-]+@[A-Za-z0-9.-]+")


@dataclass(frozen=True, slots=True)
class MailServer:
    """The operator's mail server; `sender` is the address that mail is from.

    It relays mail to any address, so mail goes only to `domains`, patterns with * and ?; otherwise
    a user who may add a receiver could send to any address. Without any: the sender's own domain.

    With `is_tls` it speaks TLS from the first byte, else from STARTTLS on if it offers that; a
    password is never sent without. All has to be over after `total_s`, from the name's addresses
    on: a sender's claim lasts no longer than that, and a second e-mail would follow.
    """

    host: str
    port: int
    is_tls: bool
    sender: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    domains: Sequence[str] = ()
    total_s: float = TOTAL_S
    tls: ssl.SSLContext = field(default_factory=ssl.create_default_context, repr=False)
    resolver: Resolver = field(default_factory=SystemResolver, repr=False)
    dial: Dial = field(default=socket.create_connection, repr=False)

    def may_write_to(self, address: str) -> bool:
        """Whether the operator lets projects have mail sent there."""
        domain = _domain(address)
        allowed = self.domains or (_domain(self.sender),)
        return any(fnmatchcase(domain, pattern.lower()) for pattern in allowed)

    def send(self, message: EmailMessage, to: str) -> None:
        """Hand the message over.

        Raises:
            smtplib.SMTPException: the server does not take it.
            OSError: the server does not answer, or not in time.
        """
        with self._connected() as smtp:
            smtp.send_message(message, self.sender, [to])

    @contextmanager
    def _connected(self) -> Iterator[smtplib.SMTP]:
        deadline = Deadline(self.total_s)
        with closing(self._connect(deadline)) as line, _ended_by(deadline, line):
            if self.is_tls:
                line = self.tls.wrap_socket(line, server_hostname=self.host)
            with closing(line), _SmtpOverSocket(self.host, self.port, line) as smtp:
                self._sign_in(smtp)
                yield smtp

    def _connect(self, deadline: Deadline) -> socket.socket:
        connect_by = Deadline(min(CONNECT_S, self.total_s))
        line = connect_to_first(
            list(dict.fromkeys(self.resolver(self.host))),
            lambda: min(connect_by.left_s(), deadline.left_s()),
            lambda address, within_s: self.dial((address, self.port), within_s),
        )
        line.settimeout(self.total_s)
        return line

    def _sign_in(self, smtp: smtplib.SMTP) -> None:
        smtp.ehlo_or_helo_if_needed()
        if not self.is_tls and smtp.has_extn("starttls"):
            smtp.starttls(context=self.tls)
        elif not self.is_tls and self.password is not None:
            raise smtplib.SMTPNotSupportedError("no TLS: the password stays here")
        if self.user is not None and self.password is not None:
            smtp.login(self.user, self.password)


def parse_mail_server(url: str, sender: str | None, domains: Sequence[str] = ()) -> MailServer:
    """The server of smtp://[USER:PASSWORD@]HOST[:PORT], or of smtps:// for TLS from the start.

    Raises:
        StartUpFailed: it is no such URL, or `sender` no address.
    """
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        parsed = httpx.URL("")
    if parsed.scheme not in _PORTS or not parsed.host:
        raise StartUpFailed("PACELINE_SMTP_URL must be smtp://HOST or smtps://HOST")
    if sender is None or not is_mail_address(sender):
        raise StartUpFailed("PACELINE_SMTP_FROM must be the address that e-mail is from")
    return MailServer(
        host=parsed.host,
        port=parsed.port or _PORTS[parsed.scheme],
        is_tls=parsed.scheme == "smtps",
        sender=sender,
        user=parsed.username or None,
        password=parsed.password or None,
        domains=tuple(domains),
    )


def is_mail_address(text: str) -> bool:
    """Whether it is one plain address, NAME@HOST, that no header or command can be hidden in."""
    return len(text) <= 254 and _ADDRESS.fullmatch(text) is not None


def _domain(address: str) -> str:
    return address.rpartition("@")[2].lower()


class _SmtpOverSocket(smtplib.SMTP):
    """Speaks over a connection that is there already; `host` is for its certificate."""

    def __init__(self, host: str, port: int, line: socket.socket) -> None:
        self._line = line
        super().__init__(host, port)

    def _get_socket(self, *_: object) -> socket.socket:
        return self._line


@contextmanager
def _ended_by(deadline: Deadline, line: socket.socket) -> Iterator[None]:
    """Break the connection off at the deadline: the timeout limits only single answers."""
    # What speaks TLS from some moment on is another socket; its twin ends the connection of both.
    with closing(line.dup()) as twin:
        watch = threading.Timer(deadline.left_s(), _break_off, [twin])
        watch.daemon = True
        watch.start()
        try:
            yield
        finally:
            watch.cancel()


def _break_off(line: socket.socket) -> None:
    with suppress(OSError):  # it may be over anyway
        line.shutdown(socket.SHUT_RDWR)
