"""What happens in `serve` when the machine refuses what a part needs."""

import errno
import os
from pathlib import Path

from structlog.testing import capture_logs

from app.cli.processes import _print_address
from app.cli.supervisor import Supervisor
from app.settings import load_settings


class Stop:
    """Set after so many turns."""

    def __init__(self, turns):
        self._left = turns

    def wait(self, timeout_s):
        self._left -= 1
        return self._left < 0


class Queue:
    """Refuses to be looked after as often as there are errors left."""

    def __init__(self, *errors):
        self.errors = list(errors)
        self.turns = 0

    def keep_alive(self):
        self.turns += 1
        if self.errors:
            raise self.errors.pop(0)

    def alive(self):
        return True


class Child:
    """Counts how often it was looked after."""

    turns = 0

    def keep_alive(self):
        self.turns += 1


def full(number=errno.ENOSPC):
    return OSError(number, os.strerror(number))


def test_serve_goes_on_when_the_machine_refuses_a_part(tmp_path):
    supervisor = Supervisor(load_settings(data_dir=tmp_path), Stop(turns=6))
    queue, child = Queue(full(), full(), full(errno.EAGAIN)), Child()
    supervisor._queue, supervisor._children = queue, [child]
    with capture_logs() as logged:
        supervisor.keep_running()
    assert (queue.turns, child.turns) == (6, 3)
    # Each reason is told once, not four times a second.
    assert [each["event"] for each in logged] == ["parts not looked after"] * 2


def test_address_that_cannot_be_printed_stops_nothing(tmp_path, monkeypatch):
    settings = load_settings(data_dir=tmp_path, token="pl_0123456789abcdef0123456789abcdef")
    with Path("/dev/full").open("w") as full_disk:
        monkeypatch.setattr("sys.stdout", full_disk)
        with capture_logs() as logged:
            _print_address(settings)
        monkeypatch.undo()
        os.dup2(os.open(os.devnull, os.O_WRONLY), full_disk.fileno())
    assert [each["event"] for each in logged] == ["address not printed"]
