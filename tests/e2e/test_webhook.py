"""From slow steps to a signed notification that is retried, and to the alert's resolution."""

import base64
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from standardwebhooks.webhooks import Webhook

from app.synth.faults.slow_compute import SlowWorker
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from tests.e2e.producers import batch_of, push, register
from tests.e2e.stack import Stack, wait_until
from tests.secret_keys import KEY

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()
NUM_STEPS = 4


class Receiver(ThreadingHTTPServer):
    """Fails the first delivery attempt and accepts all others."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), self.handler())
        self.attempts = []  # (headers, body) of every attempt

    def handler(self):
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.attempts.append((dict(self.headers.items()), body.decode()))
                self.send_response(500 if len(receiver.attempts) == 1 else 204)
                self.end_headers()

            def log_message(self, *_):
                pass

        return Handler


@pytest.fixture
def receiver():
    server = Receiver()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_slow_job_is_notified_once_after_a_retry(receiver, tmp_path):
    settings = {
        "webhook_url": f"http://127.0.0.1:{receiver.server_address[1]}/hook",
        "webhook_secret": SECRET,
        "secret_key": KEY,
        "window_steps": "2",
        "alert_windows": "2",
        "alert_for_s": "0",
    }
    simulated = SimulatedJob(Parallelism(2, 2), 8, faults=(SlowWorker(1, 1, 1.8),))
    with Stack(tmp_path, f"sqlite:///{tmp_path / 'paceline.db'}", **settings) as stack:
        epoch = register(stack, "slow", simulated, "run-1")
        for step in range(NUM_STEPS):
            trace = simulated.make_step(step)
            for dp_rank in range(2):
                for stage in range(2):
                    push(stack, "slow", batch_of(trace, epoch, dp_rank, stage, step))
        wait_until(lambda: len(receiver.attempts) == 2, "the delivery is retried")
        stack.http.post("/jobs/slow/end").raise_for_status()
        wait_until(
            lambda: alert_kinds(stack)[:1] == ["resolved"], "the alert is resolved with the job"
        )
        assert alert_kinds(stack) == ["resolved", "firing", "pending"]
    first, again = [Webhook(SECRET).verify(body, headers) for headers, body in receiver.attempts]
    assert first == again
    assert first["type"] == "alert.firing"
    [alert] = first["data"]["alerts"]
    [culprit] = alert["finding"]["culprits"]
    assert culprit["dp_rank"] == culprit["stage"] == 1
    ids = [headers["webhook-id"] for headers, _ in receiver.attempts]
    assert ids[0] == ids[1]
    assert alert["slowdown"] >= 1.1


def alert_kinds(stack):
    """The alert's events, newest first. Its resolution is notified after five minutes."""
    items = stack.get("/alerts/transitions", job="slow")["items"]
    return [item["kind"] for item in items if item["rule"] == "slowdown"]
