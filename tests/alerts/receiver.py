"""A real HTTP receiver on loopback that answers what it is told to."""

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Answer:
    """One answer; "reset" and "silence" instead of a status break the exchange off."""

    status: int | str = 204
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass
class Receiver:
    """What came in, and what is answered."""

    url: str
    answer: Answer = field(default_factory=Answer)
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)


@contextmanager
def receiver() -> Iterator[Receiver]:
    """A receiver that listens on 127.0.0.1 until the block ends."""
    told = Receiver("")
    handler = type("Handler", (_Handler,), {"told": told})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
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


class _Handler(BaseHTTPRequestHandler):
    told: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.told.requests.append((self.path, dict(self.headers), body))
        answer = self.told.answer
        if answer.status == "reset":
            # Closing with linger 0 sends RST instead of FIN.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            self.wfile = self.rfile
        elif answer.status == "silence":
            self.told.released.wait(10)
        else:
            self._say(answer)

    def _say(self, answer: Answer) -> None:
        self.send_response(int(answer.status))
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)

    def log_message(self, *_: object) -> None:
        pass
