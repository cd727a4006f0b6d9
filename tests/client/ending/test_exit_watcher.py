"""How long a watcher tries to report, by a clock that only its attempts advance."""

import os
import socket
import time

import pytest
from paceline_client.ending import exit_watcher
from paceline_client.ending.exit_watcher import REPORT_WITHIN_S, Watcher

WATCHED = {"url": "http://nowhere", "token": "t", "path": "/exits", "ends_job": True, "report": {}}
END = {"outcome": "finished"}


class Server:
    """A server and the clock: while it is away, an attempt takes all of its time."""

    def __init__(self):
        self.now_s, self.is_away = 1000.0, True
        self.asked_s = []

    def deliver(self, _watched, _end, within_s):
        self.asked_s.append(within_s)
        self.now_s += within_s if self.is_away else 0.1
        return not self.is_away


@pytest.fixture
def server(monkeypatch):
    server = Server()
    monkeypatch.setattr(exit_watcher, "deliver", server.deliver)
    monkeypatch.setattr(time, "monotonic", lambda: server.now_s)
    return server


@pytest.fixture
def watcher():
    pairs = [socket.socketpair() for _ in range(2)]
    yield Watcher(os.getpid(), pairs[0][0], pairs[1][0], None)
    for each in (one for pair in pairs for one in pair):
        each.close()


def test_reports_of_hundreds_of_recorders_take_no_longer_than_that_of_one(server, watcher):
    began_s = server.now_s
    for _ in range(300):
        watcher._deliver(WATCHED, END)
    assert server.now_s - began_s == REPORT_WITHIN_S


def test_every_report_is_sent_to_a_server_that_answers(server, watcher):
    server.is_away = False
    for _ in range(900):  # which together take three times as long
        watcher._deliver(WATCHED, END)
    assert len(server.asked_s) == 900


def test_a_later_report_is_tried_again(server, watcher):
    watcher._deliver(WATCHED, END)
    server.is_away = False
    watcher._deliver(WATCHED, END)
    assert len(server.asked_s) == 1
    server.now_s += REPORT_WITHIN_S + 1.0
    watcher._deliver(WATCHED, END)
    assert server.asked_s == [REPORT_WITHIN_S] * 2
