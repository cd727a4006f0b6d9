"""`paceline serve` shuts down cleanly, leaves no orphans, and restarts its processes."""

import os
import sys
from functools import partial

import pytest

from tests.harness.http_client import answer_to
from tests.harness.processes import ControlledProcess, children, free_port, is_alive, wait_until
from tests.harness.stack import TOKEN

pytestmark = pytest.mark.nightly

COMMAND = [sys.executable, "-m", "app.cli", "serve"]


class Serve(ControlledProcess):
    """`paceline serve` on a port and a directory of its own."""

    def __init__(self, directory, log):
        self.port = free_port()
        settings = {"data_dir": str(directory), "port": str(self.port), "token": TOKEN}
        variables = {f"PACELINE_{name.upper()}": value for name, value in settings.items()}
        super().__init__(COMMAND, directory / log, environment={**os.environ, **variables})

    def is_ready(self):
        answer = answer_to(self.port, TOKEN, "/readyz")
        return answer is not None and answer.status == 200

    def start_and_wait(self):
        self.start()
        wait_until(lambda: self.is_ready() or not self.is_running(), "it is ready")
        assert self.is_running(), self.log_text()

    def has_other(self, word, victim):
        return self.child(word) not in (None, victim)

    def child(self, word):
        """Number of the child with this word in its command line, None while there is none."""
        return next((pid for pid, line in children(self.pid) if word in line), None)


@pytest.fixture
def serve(tmp_path):
    server = Serve(tmp_path, "serve.log")
    server.start_and_wait()
    yield server
    server.kill()


def test_sigterm_ends_every_child_with_status_0_and_allows_a_restart(serve):
    started = [pid for pid, _ in children(serve.pid)]
    assert len(started) == 3
    assert serve.terminate(within_s=10) == 0
    assert not any(is_alive(pid) for pid in started)
    serve.start_and_wait()


def test_killed_child_is_restarted(serve):
    for word in ("consumer", "valkey", " api"):
        victim = serve.child(word)
        os.kill(victim, 9)
        wait_until(partial(serve.has_other, word, victim), f"another {word} runs")
        wait_until(serve.is_ready, "all is well again")


def test_second_server_is_refused_and_sigkill_leaves_no_orphans(serve, tmp_path):
    second = Serve(tmp_path, "second.log")
    second.start()
    wait_until(lambda: not second.is_running(), "the second gives up")
    assert second.ended() == 2
    assert "another Paceline uses" in second.log_text()
    assert serve.is_ready()
    left = [pid for pid, _ in children(serve.pid)]
    serve.kill()
    wait_until(lambda: not any(is_alive(pid) for pid in left), "no child is left")
    second.start_and_wait()
    second.kill()
