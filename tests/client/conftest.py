"""A fake Paceline server for the client's tests: scripted answers, recorded requests."""

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


@pytest.fixture(autouse=True)
def _without_exit_reports(monkeypatch):
    """Only tests of the watcher need its process: it takes a tenth of a second each time."""
    monkeypatch.setenv("PACELINE_EXIT_REPORTS", "0")


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


class FakePaceline:
    """`answers` are used one by one for the next posted batches; later batches are accepted."""

    def __init__(self):
        self.answers: deque[tuple] = deque()
        self.registrations: deque[tuple] = deque()
        self.posted = []  # every body, accepted or refused
        self.batches = []  # accepted and decoded
        self.puts = []
        self.health = b"no such page"
        self.date: str | None = None  # the Date header, instead of now
        self.op_types = BUILT_IN
        self.accepts: list[str] = []
        self.recording: dict | None = None  # the plan in every answer
        self.ended = []
        self.end_answers: deque[tuple] = deque()
        self.exits = []  # reports of how processes ended
        self.annotations = []  # bodies, accepted or refused
        self.annotation_answers: deque[tuple] = deque()
        self.changed = threading.Condition()
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

    def wait_for(self, condition, limit_s=10.0):
        with self.changed:
            assert self.changed.wait_for(condition, limit_s), "the condition was not met in time"

    @property
    def ops(self):
        return [
            row
            for batch in self.batches
            for row in zip(
                batch.columns.step.tolist(),
                batch.columns.optype.tolist(),
                batch.columns.seq_id.tolist(),
                strict=True,
            )
        ]

    @property
    def steps_done(self):
        return [done for batch in self.batches for done in batch.steps_done]

    def put(self, path, body):
        self.puts.append((path, json.loads(body)))
        if self.registrations:
            return self.registrations.popleft()
        answer = {"epoch": 3, "accepts": self.accepts, "recording": self.recording}
        return 200, json.dumps(answer).encode(), {}

    def post(self, path, body, content_type, encoding):
        if path.endswith("/end"):
            self.ended.append(path)
            return self.end_answers.popleft() if self.end_answers else (200, b'{"job_id": "j"}', {})
        if path.endswith("/exits"):
            self.exits.append(json.loads(body))
            return 200, b'{"job_state": "healthy"}', {}
        if path.endswith("/annotations"):
            self.annotations.append(json.loads(body))
            if self.annotation_answers:
                return self.annotation_answers.popleft()
            return 201, b'{"annotation_id": "ab"}', {}
        self.posted.append(body)
        reply = {"accepted": 1, **({"recording": self.recording} if self.recording else {})}
        accepted: tuple = (202, json.dumps(reply).encode(), {})
        answer = self.answers.popleft() if self.answers else accepted
        if answer[0] == 202:
            assert content_type == BINARY_TYPE
            decoded = decode(body, content_type, SIZES, self.op_types, content_encoding=encoding)
            self.batches.append(decoded.batch)
        return answer

    def handler(fake):  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # or bodies wait 40 ms for the client's ACK

            def answer(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                assert self.headers["Authorization"] == f"Bearer {TOKEN}"
                with fake.changed:
                    if self.command == "GET":
                        status, reply, headers = 200, fake.health, {}
                    elif self.command == "PUT":
                        status, reply, headers = fake.put(self.path, body)
                    else:
                        kind = self.headers["Content-Type"]
                        encoding = self.headers.get("Content-Encoding", "")
                        status, reply, headers = fake.post(self.path, body, kind, encoding)
                    fake.changed.notify_all()
                if status == 0:  # garbage, then a closed connection
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
def _stop_leftover_senders():
    yield
    from tests.client.recorders import end_senders  # which imports this module

    end_senders()


@pytest.fixture
def paceline():
    fake = FakePaceline()
    yield fake
    fake.close()
