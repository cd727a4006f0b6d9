"""An HTTP server that records the requests of the CLI."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from app.ingest.wire import codec
from app.trace import ops
from app.trace.job import Parallelism

TOKEN = "pl_only-for-this-test"


class RecordingServer(ThreadingHTTPServer):
    """Answers like the API and records calls, registrations and batches."""

    daemon_threads = True

    def __init__(self, refuse=None, sizes=None):
        super().__init__(("127.0.0.1", 0), Handler)
        self.refuse = refuse
        self.sizes = sizes or Parallelism(2, 2, tp_size=2)
        self.batches = []
        self.calls = []
        self.registered: dict = {}
        self.num_registered = 0
        self.known: dict | None = None  # the job as GET returns it; None is 404

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or bodies wait 40 ms for the client's ACK
    server: RecordingServer

    def handle_call(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        call = f"{self.command} {self.path}"
        self.server.calls.append(call)
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            return self.answer(401, {"detail": "this token is not known"})
        if self.server.refuse and self.path.endswith(self.server.refuse):
            return self.answer(422, {"detail": "it is not wanted"})
        if self.command == "GET":
            if self.server.known is None:
                return self.answer(404, {"detail": "there is no such job"})
            return self.answer(200, self.server.known)
        if self.command == "PUT":
            self.server.registered = json.loads(body)
            self.server.num_registered += 1
            return self.answer(201, {"job_id": "any", "epoch": 6 + self.server.num_registered})
        if self.path.endswith("/ops"):
            own = ops.parse_op_types(self.server.registered.get("op_types", []))
            decoded = codec.decode(body, self.headers["Content-Type"], self.server.sizes, own)
            self.server.batches.append(decoded.batch)
            return self.answer(202, {"accepted": decoded.batch.columns.step.size})
        return self.answer(200, {"job_id": "any"})

    do_GET = do_PUT = do_POST = handle_call  # noqa: N815

    def answer(self, status, fields):
        body = json.dumps(fields).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format, *args):  # noqa: A002
        pass


@contextmanager
def running_server(**options):
    with RecordingServer(**options) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
