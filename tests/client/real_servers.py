"""A real server on loopback with its own database, and a server with scripted answers."""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from app.main import Connections, create_app
from app.settings import Settings
from app.store.database import Store, is_migrated
from tests.api.server import TOKEN, Api, Clock
from tests.ingest.memory_queue import MemoryQueue

_LIMIT_S = 30.0


@contextlib.contextmanager
def serving(database: Path) -> Iterator[tuple[str, Api]]:
    """URL of an API over this migrated database, and its components."""
    url = f"sqlite:///{database}"
    store, queue, clock, monotonic = Store(url), MemoryQueue(4), Clock(), Clock()
    parts = Connections(
        store=store,
        writer=queue.writer,
        listener=queue.listener(),
        announcer=queue.announcer,
        is_migrated=lambda: is_migrated(url),
        close=store.close,
    )
    app = create_app(
        Settings(token=TOKEN),
        parts,
        now_s=clock,
        database_time=lambda _conn: clock(),
        monotonic=monotonic,
    )
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_config=None, lifespan="on")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        _wait(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        client = httpx.AsyncClient()  # unused: these tests use a socket
        yield f"http://127.0.0.1:{port}", Api(app, client, store, queue, clock, monotonic)
    finally:
        server.should_exit = True
        thread.join(_LIMIT_S)


@dataclass
class Scripted:
    """Answers (status, headers, body), used in order; the last one repeats."""

    url: str
    answers: deque[tuple[int, dict[str, str], bytes]]
    requests: list[str]


@contextlib.contextmanager
def scripted(*answers: tuple[int, dict[str, str], bytes]) -> Iterator[Scripted]:
    """A server with scripted answers, such as a proxy or a failing Paceline."""
    requests: list[str] = []
    waiting = deque(answers)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # or bodies wait 40 ms for the client's ACK

        def do_GET(self) -> None:
            requests.append(self.path)
            status, headers, body = waiting.popleft() if len(waiting) > 1 else waiting[0]
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield Scripted(f"http://127.0.0.1:{server.server_address[1]}", waiting, requests)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _wait(condition: Any) -> None:
    until_s = time.monotonic() + _LIMIT_S
    event = threading.Event()
    while not condition():
        assert time.monotonic() < until_s, "the server did not start"
        event.wait(0.01)
