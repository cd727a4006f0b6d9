"""What is reported of a process whose exit status its parent asks for first, as a shell does."""

import os
import signal
import socket

import pytest
from paceline_client.ending import exit_watcher
from paceline_client.ending.exit_watcher import Watcher

from tests.client.ending.trainings import ended

SHELL = ("/bin/sh", "-c", '"$@"; exit $?', "sh")


def reaped(code):
    """Number and descriptor of a child that has ended so, and was waited for."""
    pid = os.fork()
    if not pid:
        os._exit(code)
    process = os.pidfd_open(pid)
    os.waitpid(pid, 0)
    return pid, process


@pytest.fixture(scope="module")
def is_told():
    """Whether this kernel keeps exit status for descriptors, as Linux does from 6.15 on."""
    pid, process = reaped(7)
    status = exit_watcher._status_of(pid, process)
    os.close(process)
    assert status in (None, 7 << 8)
    return status is not None


@pytest.mark.parametrize(
    ("last_line", "status", "report"),
    [
        pytest.param("os._exit(0)", 0, {"outcome": "finished"}, marks=pytest.mark.nightly),
        ("os._exit(3)", 3, {"outcome": "failed", "exit_code": 3}),
        pytest.param(
            "os.kill(os.getpid(), signal.SIGKILL)",
            137,
            {"outcome": "killed", "signal": 9},
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_a_process_under_a_shell_is_reported_by_its_status(
    paceline, is_told, last_line, status, report
):
    found, reports = ended(paceline, last_line, launcher=SHELL)
    assert found == status
    # On an older kernel it depends on who asks first.
    assert reports == [report] or (not is_told and reports == [{"outcome": "ended"}])


@pytest.fixture
def told(monkeypatch):
    """The reports that a watcher in this process would send, on a kernel that keeps nothing."""
    found = []
    monkeypatch.setattr(exit_watcher, "deliver", lambda watched, end, _: found.append(end))
    monkeypatch.setattr(exit_watcher, "_status_of_reaped", lambda process: None)
    return found


def watch(lines, *, before_end=lambda: None):
    """Have a watcher watch a process that has ended already."""
    pid, process = reaped(0)
    ours, theirs = socket.socketpair()
    signals = socket.socketpair()
    with ours, theirs, signals[0], signals[1]:
        watcher = Watcher(pid, theirs, signals[1], process)
        for line in lines:
            ours.send(line + b"\n")
        before_end()
        watcher.run()
    os.close(process)


LINES = [b'{"id": 1, "watch": {"ends_job": true}}', b'{"id": 2, "watch": {"ends_job": false}}']


def test_an_end_of_which_nobody_knows_how_is_told_as_that(told):
    watch(LINES)
    assert told == [{"outcome": "ended"}]  # the other recorder tells failures only


def test_what_was_said_to_be_finished_stays_so(told):
    watch([LINES[0], b'{"id": 1, "end": {"outcome": "finished"}, "at_exit": true}', b'{"id": 1, '])
    assert told == [{"outcome": "finished"}]


def test_where_the_kernel_has_killed_for_lack_of_memory_that_is_how(told, monkeypatch, tmp_path):
    monkeypatch.setattr(exit_watcher, "_oom_kills", lambda: len(kills))
    kills: list[str] = []
    watch(LINES, before_end=lambda: kills.append("this one"))
    assert told == 2 * [{"outcome": "killed", "signal": signal.SIGKILL}]
