"""What happens in `serve` when the machine refuses what a part needs."""

import errno
import os
from pathlib import Path
from typing import Any

from structlog.testing import capture_logs

from app.cli.processes import _print_address
from app.cli.supervisor import Supervisor
from app.settings import load_settings


class Stop:
    """Set after so many turns."""

    def __init__(self, turns):
        self._left = turns
        self.reason = "SIGTERM"

    def wait(self, timeout_s):
        self._left -= 1
        return self._left < 0


class Child:
    """Refuses to be looked after as often as there are errors left."""

    def __init__(self, name, *errors):
        self.name = name
        self._errors = list(errors)
        self.turns = 0

    def keep_alive(self):
        self.turns += 1
        if self._errors:
            raise self._errors.pop(0)


def refused(number):
    return OSError(number, os.strerror(number))


def test_serve_goes_on_when_the_machine_refuses_a_part(tmp_path):
    stop: Any = Stop(turns=6)
    supervisor = Supervisor(load_settings(data_dir=tmp_path), stop)
    full = refused(errno.ENOSPC)
    children: list[Any] = [Child("api", full, full, refused(errno.EAGAIN)), Child("consumer")]
    supervisor._children = children
    with capture_logs() as logged:
        supervisor.keep_running()
    assert [child.turns for child in children] == [6, 6]
    # Each reason is logged once, not four times a second.
    *errors, end = logged
    assert [(each["event"], each["name"]) for each in errors] == [
        ("process not checked", "api")
    ] * 2
    assert (end["event"], end["because"]) == ("stopping everything", "SIGTERM")


def test_address_that_cannot_be_printed_stops_nothing(tmp_path, monkeypatch):
    settings = load_settings(data_dir=tmp_path, token="pl_0123456789abcdef0123456789abcdef")
    with Path("/dev/full").open("w") as full_disk:
        monkeypatch.setattr("sys.stdout", full_disk)
        with capture_logs() as logged:
            _print_address(settings)
        monkeypatch.undo()
        os.dup2(os.open(os.devnull, os.O_WRONLY), full_disk.fileno())
    assert [each["event"] for each in logged] == ["address not printed"]
