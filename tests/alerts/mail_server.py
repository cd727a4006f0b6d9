"""A mail server on loopback that takes what it is told to take, and keeps it."""

import base64
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BufferedIOBase
from typing import cast


@dataclass
class Mailbox:
    """What came in, and what is answered: `answers` by the first word of a command."""

    port: int = 0
    answers: dict[str, str] = field(default_factory=dict)
    offers: tuple[str, ...] = ()
    tls: ssl.SSLContext | None = None
    is_tls: bool = False  # from the first byte
    commands: list[str] = field(default_factory=list)
    mails: list[bytes] = field(default_factory=list)
    was_secure: list[bool] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    mailbox: Mailbox


@contextmanager
def mail_server(**given: object) -> Iterator[Mailbox]:
    """A server that listens on 127.0.0.1 until the block ends."""
    mailbox = Mailbox(**given)  # type: ignore[arg-type]
    with _Server(("127.0.0.1", 0), _Talk) as server:
        server.mailbox = mailbox
        mailbox.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield mailbox
        finally:
            mailbox.over.set()
            server.shutdown()
            thread.join()


class _Talk(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        try:
            self._converse(self.server.mailbox)
        except (OSError, ValueError):
            pass
        finally:
            self.connection.close()

    def _converse(self, mailbox: Mailbox) -> None:
        self._greet(mailbox)
        while line := self.rfile.readline().decode().rstrip("\r\n"):
            word = line.split(" ")[0].upper()
            mailbox.commands.append(line)
            if word in mailbox.answers:
                self._answer(mailbox, mailbox.answers[word])
            elif word == "EHLO":
                self._say(
                    "250-mail.example", *[f"250-{each}" for each in mailbox.offers], "250 HELP"
                )
            elif word == "STARTTLS":
                self._start_tls(mailbox)
            elif word == "DATA":
                self._take(mailbox)
            elif word == "AUTH":
                mailbox.commands[-1] = base64.b64decode(line.split(" ")[2]).decode()
                self._say("235 ok")
            else:
                self._say("221 bye" if word == "QUIT" else "250 ok")

    def _greet(self, mailbox: Mailbox) -> None:
        if mailbox.is_tls:
            self._secure(mailbox)
        for _ in range(300 if mailbox.answers.get("GREETING") == "drip" else 0):
            self._say("220-mail.example")
            mailbox.over.wait(0.01)
        self._say("220 mail.example")

    def _answer(self, mailbox: Mailbox, answer: str) -> None:
        if answer == "silence":
            mailbox.over.wait(10)
            raise OSError
        self._say(answer)

    def _start_tls(self, mailbox: Mailbox) -> None:
        self._say("220 go ahead")
        self._secure(mailbox)

    def _secure(self, mailbox: Mailbox) -> None:
        assert mailbox.tls is not None
        secure = mailbox.tls.wrap_socket(self.connection, server_side=True)
        self.rfile, self.wfile = (
            secure.makefile("rb"),
            cast("BufferedIOBase", secure.makefile("wb", 0)),
        )
        self.connection = secure

    def _take(self, mailbox: Mailbox) -> None:
        self._say("354 go ahead")
        lines = iter(self.rfile.readline, b".\r\n")
        mailbox.mails.append(b"".join(line.removeprefix(b".") for line in lines))
        mailbox.was_secure.append(isinstance(self.connection, ssl.SSLSocket))
        self._say(mailbox.answers.get("TAKEN", "250 taken"))

    def _say(self, *lines: str) -> None:
        self.wfile.write("".join(f"{line}\r\n" for line in lines).encode())
