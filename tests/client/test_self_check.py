"""One screen that says what is wrong, and to nobody the token."""

import email.utils
import subprocess
import sys
import time

import paceline_client
import pytest
from paceline_client import Topology
from paceline_client.self_check import is_good

from tests.client.conftest import TOKEN
from tests.client.hostile_servers import listening

PLACE = Topology(rank=1, dp_rank=1, stage=0, dp_size=2, pp_size=1)


@pytest.fixture(autouse=True)
def _nothing_told(monkeypatch):
    for name in ("PACELINE_URL", "PACELINE_TOKEN", "PACELINE_JOB", "WORLD_SIZE", "RANK"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def healthy(paceline):
    """Answers as Paceline does: a batch that is none is refused for itself."""
    paceline.health = b'{"status": "ok"}'
    paceline.answers += [(400, b'{"detail": "the batch cannot be decoded"}', {})]
    return paceline


def line(report, name):
    [found] = [line for line in report.splitlines() if line.startswith(name)]
    return found.split(maxsplit=2)


def test_all_is_well(healthy):
    report = paceline_client.check(healthy.url, TOKEN, "llm", PLACE)
    assert is_good(report)
    assert line(report, "server")[1] == "ok"
    assert line(report, "token")[1:] == ["ok", "may send operations of job 'llm'"]
    assert line(report, "topology")[1:] == ["ok", "rank 1 of 2: dp rank 1 of 2, stage 0 of 1"]
    assert line(report, "clocks")[1] == "ok"
    assert len(report.splitlines()) < 24
    assert max(map(len, report.splitlines())) < 160
    assert healthy.puts == []


@pytest.mark.parametrize("status", [401, 403])
def test_a_bad_token_is_wrong_and_not_shown(healthy, status):
    healthy.answers.clear()
    healthy.answers.append((status, f'{{"detail": "{TOKEN} is not known"}}'.encode(), {}))
    report = paceline_client.check(healthy.url, TOKEN, "llm", PLACE)
    assert not is_good(report)
    assert line(report, "token")[1:] == ["WRONG", f"{status}: ... is not known"]
    assert TOKEN not in report


def test_a_job_that_nobody_has_registered_yet_is_no_fault(healthy):
    healthy.answers.clear()
    healthy.answers.append((404, b'{"detail": "no job"}', {}))
    assert is_good(paceline_client.check(healthy.url, TOKEN, "llm", PLACE))


def test_without_a_job_the_token_is_asked_about_all_the_same(healthy):
    healthy.answers.clear()
    healthy.answers.append((404, b'{"detail": "no job"}', {}))
    report = paceline_client.check(healthy.url, TOKEN, None, PLACE)
    assert line(report, "token")[1:] == ["ok", "known; give job= or PACELINE_JOB to check the job"]
    healthy.answers.append((401, b'{"detail": "not known here"}', {}))
    assert not is_good(paceline_client.check(healthy.url, TOKEN, None, PLACE))


@pytest.mark.parametrize("url", ["http://user:pass-word@127.0.0.1:1", "ftp://pass-word@x", "", "x"])
def test_no_server_is_said_in_one_line_without_secrets(url):
    report = paceline_client.check(url, "the-token", "llm", PLACE)
    assert not is_good(report)
    assert line(report, "server")[1] == "WRONG"
    assert "pass-word" not in report
    assert "the-token" not in report


@pytest.mark.parametrize("token", ["tok\nen", "tok\x00en", "tök"])
def test_a_token_with_a_lines_end_is_said_and_not_shown(healthy, token):
    report = paceline_client.check(healthy.url, token, "llm", PLACE)
    assert not is_good(report)
    assert "the token has invalid characters" in report
    assert token not in report
    assert repr(token)[1:-1] not in report


def test_somebody_elses_server_is_told_from_paceline():
    with listening("nonsense") as server:
        server.num_connections = 2  # "<html>", with 200
        report = paceline_client.check(server.url, TOKEN, None, PLACE)
    assert "not from Paceline" in report


def test_what_is_missing_is_said():
    report = paceline_client.check()
    assert line(report, "server")[1:] == ["WRONG", "no address: give url=, or set PACELINE_URL"]
    assert line(report, "token")[1:] == ["WRONG", "none: give token=, or set PACELINE_TOKEN"]


def test_a_topology_that_is_not_the_launchers_is_wrong(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "8")
    report = paceline_client.check(topology=PLACE)
    assert line(report, "topology")[1] == "WRONG"
    assert "WORLD_SIZE is 8" in report
    nowhere = Topology(rank=5, dp_rank=0, stage=0, dp_size=2, pp_size=1)
    assert line(paceline_client.check(topology=nowhere), "topology")[1] == "WRONG"


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({}, "(a job of one process: no RANK, no WORLD_SIZE, and torch.distributed is not up)"),
        ({"RANK": "1", "WORLD_SIZE": "2"}, "(by RANK and WORLD_SIZE of the environment"),
    ],
)
def test_a_topology_that_nobody_gave_says_what_it_rests_on(monkeypatch, told, words):
    monkeypatch.delitem(sys.modules, "torch.distributed", raising=False)
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert words in line(paceline_client.check(), "topology")[2]


class _Distributed:
    """What of torch.distributed is asked once it is up."""

    def __getattr__(self, name):
        answers = {"get_rank": 1, "get_world_size": 2}
        return lambda: answers.get(name, True)


def test_a_topology_of_torch_distributed_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.distributed", _Distributed())
    found = line(paceline_client.check(), "topology")[2]
    assert found.startswith("rank 1 of 2: ")
    assert found.endswith("(as torch.distributed tells)")


def test_a_clock_that_is_far_off_is_said(healthy):
    healthy.date = email.utils.formatdate(time.time() - 3600, usegmt=True)
    report = paceline_client.check(healthy.url, TOKEN, "llm", PLACE)
    assert "ahead of the server's" in report


@pytest.mark.parametrize("status", [400, 404])
def test_of_no_job_nothing_is_said(healthy, status):
    healthy.answers.clear()
    healthy.answers.append((status, b"{}", {}))
    report = paceline_client.check(healthy.url, TOKEN, None, PLACE)
    assert line(report, "token")[1:] == ["ok", "known; give job= or PACELINE_JOB to check the job"]


def test_a_name_that_is_no_text_is_said(healthy, monkeypatch):
    monkeypatch.setenv("PACELINE_JOB", "j\udcff")
    report = paceline_client.check(healthy.url, TOKEN, None, PLACE)
    assert line(report, "token")[1:] == ["WRONG", r"not checked: job 'j\udcff' is not valid text"]
    assert report.isascii()


def test_what_somebody_else_answers_does_not_reach_the_terminal(healthy):
    healthy.answers.clear()
    healthy.answers.append((403, b'{"detail": "no\\u001b[2J\\u202eway"}', {}))
    report = paceline_client.check(healthy.url, TOKEN, "llm", PLACE)
    assert line(report, "token")[1:] == ["WRONG", "403: no?[2J?way"]


def test_it_is_a_command(monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    monkeypatch.setenv("PACELINE_TOKEN", "t")
    monkeypatch.setenv("PACELINE_JOB", "j\u00f6b")
    command = [sys.executable, "-W", "error", "-m", "paceline_client"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stdout.startswith("server   WRONG  no address")
    assert done.stderr == ""
