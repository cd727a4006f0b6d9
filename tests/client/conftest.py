"""A tiny Paceline for the client's tests: answers as told, and keeps what it was sent."""

import json
import threading
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from app.ingest.wire.codec import BINARY_TYPE, decode
from app.trace.job import Parallelism
from app.trace.ops import BUILT_IN

TOKEN = "pl_secret"
SIZES = Parallelism(dp_size=2, pp_size=2, vpp_size=2)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


class FakePaceline:
    """`answers` are given one by one to the next posted batches; after them all are taken."""

    def __init__(self):
        self.answers: deque[tuple] = deque()
        self.registrations: deque[tuple] = deque()
        self.posted = []  # every body that came, taken or not
        self.taken = []  # decoded batches
        self.puts = []
        self.health = b"no such page"
        self.date: str | None = None  # in place of now
        self.op_types = BUILT_IN
        self.accepts: list[str] = []
        self.recording: dict | None = None  # the plan that every answer names
        self.ended = []
        self.came = threading.Condition()
        self.server = Server(("127.0.0.1", 0), self.handler())
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def close(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def wait_for(self, is_so, limit_s=10.0):
        with self.came:
            assert self.came.wait_for(is_so, limit_s), "it did not come"

    @property
    def ops(self):
        return [
            row
            for batch in self.taken
            for row in zip(
                batch.columns.step.tolist(),
                batch.columns.optype.tolist(),
                batch.columns.seq_id.tolist(),
                strict=True,
            )
        ]

    @property
    def steps_done(self):
        return [done for batch in self.taken for done in batch.steps_done]

    def put(self, path, body):
        self.puts.append((path, json.loads(body)))
        if self.registrations:
            return self.registrations.popleft()
        answer = {"epoch": 3, "accepts": self.accepts, "recording": self.recording}
        return 200, json.dumps(answer).encode(), {}

    def post(self, path, body, content_type, encoding):
        if path.endswith("/end"):
            self.ended.append(path)
            return 200, b"{}", {}
        self.posted.append(body)
        said = {"accepted": 1, **({"recording": self.recording} if self.recording else {})}
        usual: tuple = (202, json.dumps(said).encode(), {})
        answer = self.answers.popleft() if self.answers else usual
        if answer[0] == 202:
            assert content_type == BINARY_TYPE
            read = decode(body, content_type, SIZES, self.op_types, content_encoding=encoding)
            self.taken.append(read.batch)
        return answer

    def handler(fake):  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                assert self.headers["Authorization"] == f"Bearer {TOKEN}"
                with fake.came:
                    if self.command == "GET":
                        status, reply, headers = 200, fake.health, {}
                    elif self.command == "PUT":
                        status, reply, headers = fake.put(self.path, body)
                    else:
                        kind = self.headers["Content-Type"]
                        encoding = self.headers.get("Content-Encoding", "")
                        status, reply, headers = fake.post(self.path, body, kind, encoding)
                    fake.came.notify_all()
                if status == 0:  # garbage, and the line goes dead
                    self.wfile.write(reply)
                    self.close_connection = True
                    return
                self.send_response(status)
                for name, value in {"Content-Length": len(reply), **headers}.items():
                    self.send_header(name, str(value))
                self.end_headers()
                self.wfile.write(reply)

            do_GET = do_PUT = do_POST = answer  # noqa: N815

            def date_time_string(self, timestamp=None):
                return fake.date or super().date_time_string(timestamp)

            def log_message(self, *args):
                pass

        return Handler


@pytest.fixture(autouse=True)
def _no_senders_left():
    yield
    from tests.client.recorders import end_senders  # which is built on this module

    end_senders()


@pytest.fixture
def paceline():
    fake = FakePaceline()
    yield fake
    fake.close()
