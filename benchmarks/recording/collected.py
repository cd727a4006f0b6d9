"""Windows of trainings on this machine, assembled in this process: without a server of its own.

A server that analyses each window as it closes would take one of two cores from the training.
"""

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

from app.ingest.assembly.assembler import RunAssembler, WindowRules
from app.ingest.assembly.window_codec import PackedWindow
from app.ingest.batch import OpBatch
from app.ingest.wire.body import EXTENSIONS
from app.ingest.wire.codec import decode
from app.trace.job import Job, Parallelism
from app.trace.window import Window

_LATE_S = 30.0


class Collector:
    """Accepts the batches of one job like the server, and assembles them like the consumer."""

    def __init__(self, name: str, sizes: Parallelism, window_steps: int) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._batches: list[OpBatch] = []
        self._job, self._sizes = Job.of(name, sizes), sizes
        self._rules = WindowRules(window_steps, _LATE_S)

    def take(self, body: bytes, content_type: str, encoding: str) -> int:
        """Add one request's body; returns its number of rows."""
        decoded = decode(body, content_type, self._sizes, content_encoding=encoding)
        batch = decoded.batch
        with self._lock:
            # A training that goes on has a new recorder, which numbers its batches from 0 again.
            number = sum(each.rank == batch.rank for each in self._batches)
            self._batches.append(replace(batch, batch_seq=number))
        return batch.columns.num_ops + batch.num_group_rows

    def windows(self) -> list[Window]:
        """Windows of all batches so far, in their last revision, without step 0.

        The first step is none that training takes: processes wait there for each other to start.
        """
        with self._lock:
            batches = list(self._batches)
        found: dict[int, Window] = {}
        stored: dict[int, PackedWindow] = {}
        run = RunAssembler(self._job, 1, self._rules, stored.__getitem__)
        for batch in batches:
            run.add(batch, 0.0)
            _store(run.settle(0.0, tells_open=False), found, stored)
        _store(run.finish(0.0, "complete"), found, stored)
        windows = []
        for _, window in sorted(found.items()):
            steps = [step for step in window.steps if step > 0]
            if steps:
                windows.append(window.only(steps) if len(steps) < len(window.steps) else window)
        return windows


def _store(
    changes: Sequence[Any], windows: dict[int, Window], stored: dict[int, PackedWindow]
) -> None:
    for change in changes:
        if change.ops is not None:
            windows[change.window.first_step] = change.window
            stored[change.window.first_step] = change.ops


@contextmanager
def served(
    collectors: Mapping[str, Collector], on_end: Callable[[str], None] = lambda _: None
) -> Iterator[str]:
    """The address at which the collectors take their jobs' batches, while this is entered.

    `on_end` is called with the name of each job that ends, in another thread.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            self._body()
            self._answer(200, {"epoch": 1, "accepts": EXTENSIONS, "recording": None})

        def do_POST(self) -> None:
            body = self._body()
            _, _, job_path = self.path.partition("/jobs/")
            name, _, route = job_path.partition("/")
            job = unquote(name)
            accepted = 0
            if route == "ops":
                kind, encoding = (
                    self.headers["Content-Type"],
                    self.headers.get("Content-Encoding", ""),
                )
                accepted = collectors[job].take(body, kind, encoding)
            if route == "end":
                on_end(job)
            # A client repeats reports of exits and of the end until it knows that they are taken.
            taken = {"exits": {"job_state": "healthy"}, "end": {"job_id": job}}
            counts = {"accepted": accepted, "rejected": 0, "errors": []}
            self._answer(202, taken.get(route, counts))

        def log_message(self, *_: object) -> None:
            """Nothing is printed."""

        def _body(self) -> bytes:
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))

        def _answer(self, status: int, fields: object) -> None:
            body = json.dumps(fields).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
