"""A real HTTP receiver on loopback that answers what it is told to."""

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Answer:
    """One answer; instead of a status, "reset" and "silence" break the exchange off.

    "drip" is an answer without an end that comes a byte at a time, "garbage" no HTTP, and "echo" a
    refusal that repeats what came.
    """

    status: int | str = 204
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass
class Receiver:
    """What came in, and what is answered: `answers` first, one after the other, then `answer`."""

    url: str
    answer: Answer = field(default_factory=Answer)
    answers: list[Answer] = field(default_factory=list)
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)

    @property
    def ids(self) -> list[str]:
        """Each request's webhook-id."""
        return [headers["webhook-id"] for _, headers, _ in self.requests]


@contextmanager
def receiver() -> Iterator[Receiver]:
    """A receiver that listens on 127.0.0.1 until the block ends."""
    told = Receiver("")
    handler = type("Handler", (_Handler,), {"told": told})
    server = _Server(("127.0.0.1", 0), handler)
    told.url = f"http://127.0.0.1:{server.server_port}/hook"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield told
    finally:
        told.released.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who hangs up on us does so on purpose."""


class _Handler(BaseHTTPRequestHandler):
    told: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.told.requests.append((self.path, dict(self.headers), body))
        answers = self.told.answers
        answer = answers.pop(0) if answers else self.told.answer
        if answer.status == "echo":
            key = self.headers.get("authorization", "")
            came = f"{key} {self.path} ".encode() + body[:50] + body[-50:]
            answer = Answer(400, body=came)
        self._answer(answer)

    def _answer(self, answer: Answer) -> None:
        if answer.status == "reset":
            # Closing with linger 0 sends RST instead of FIN.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            self.wfile = self.rfile
        elif answer.status == "silence":
            self.told.released.wait(60)
        elif answer.status == "drip":
            self._drip()
        elif answer.status == "garbage":
            self.wfile.write(b"220 receiver.example ESMTP\r\n")
        else:
            self._say(answer)

    def _drip(self) -> None:
        """Each byte is in time for whoever waits for the next one only."""
        self.wfile.write(b"HTTP/1.1 200 OK\r\nx-padding: ")
        while not self.told.released.wait(0.05):
            self.wfile.write(b"x")

    def _say(self, answer: Answer) -> None:
        self.send_response(int(answer.status))
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)

    def log_message(self, *_: object) -> None:
        pass
