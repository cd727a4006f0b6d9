"""Report of the self-check: errors and their causes, never the token."""

import email.utils
import subprocess
import sys
import time

import paceline_client
import pytest
from paceline_client import Topology
from paceline_client.self_check import is_good

from tests.client.conftest import TOKEN
from tests.client.hostile_servers import hostile_server

TOPOLOGY = Topology(rank=1, dp_rank=1, stage=0, dp_size=2, pp_size=1)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    for name in ("PACELINE_URL", "PACELINE_TOKEN", "PACELINE_JOB", "WORLD_SIZE", "RANK"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def healthy(paceline):
    """A server that answers like Paceline: an invalid batch gets a 400."""
    paceline.health = b'{"status": "ok"}'
    paceline.answers += [(400, b'{"detail": "the batch cannot be decoded"}', {})]
    return paceline


def line(report, name):
    [found] = [line for line in report.splitlines() if line.startswith(name)]
    return found.split(maxsplit=2)


def test_report_of_a_healthy_setup_is_all_ok(healthy):
    report = paceline_client.check(healthy.url, TOKEN, "llm", TOPOLOGY)
    assert is_good(report)
    assert line(report, "server")[1] == "ok"
    assert line(report, "token")[1:] == ["ok", "may send operations of job 'llm'"]
    assert line(report, "topology")[1:] == ["ok", "rank 1 of 2: dp rank 1 of 2, stage 0 of 1"]
    assert line(report, "clocks")[1] == "ok"
    assert len(report.splitlines()) < 24
    assert max(map(len, report.splitlines())) < 160
    assert healthy.puts == []


@pytest.mark.parametrize("status", [401, 403])
def test_refused_token_is_reported_but_not_shown(healthy, status):
    healthy.answers.clear()
    healthy.answers.append((status, f'{{"detail": "{TOKEN} is not known"}}'.encode(), {}))
    report = paceline_client.check(healthy.url, TOKEN, "llm", TOPOLOGY)
    assert not is_good(report)
    assert line(report, "token")[1:] == ["WRONG", f"{status}: ... is not known"]
    assert TOKEN not in report


def test_unregistered_job_is_no_error(healthy):
    healthy.answers.clear()
    healthy.answers.append((404, b'{"detail": "no job"}', {}))
    assert is_good(paceline_client.check(healthy.url, TOKEN, "llm", TOPOLOGY))


def test_token_is_checked_without_a_job(healthy):
    healthy.answers.clear()
    healthy.answers.append((404, b'{"detail": "no job"}', {}))
    report = paceline_client.check(healthy.url, TOKEN, None, TOPOLOGY)
    assert line(report, "token")[1:] == ["ok", "known; give job= or PACELINE_JOB to check the job"]
    healthy.answers.append((401, b'{"detail": "not known here"}', {}))
    assert not is_good(paceline_client.check(healthy.url, TOKEN, None, TOPOLOGY))


@pytest.mark.parametrize("url", ["http://user:pass-word@127.0.0.1:1", "ftp://pass-word@x", "", "x"])
def test_unreachable_server_is_reported_without_secrets(url):
    report = paceline_client.check(url, "the-token", "llm", TOPOLOGY)
    assert not is_good(report)
    assert line(report, "server")[1] == "WRONG"
    assert "pass-word" not in report
    assert "the-token" not in report


@pytest.mark.parametrize("token", ["tok\nen", "tok\x00en", "tök"])
def test_token_with_invalid_characters_is_reported_but_not_shown(healthy, token):
    report = paceline_client.check(healthy.url, token, "llm", TOPOLOGY)
    assert not is_good(report)
    assert "the token has invalid characters" in report
    assert token not in report
    assert repr(token)[1:-1] not in report


def test_another_server_is_not_mistaken_for_paceline():
    with hostile_server("nonsense") as server:
        server.num_connections = 2  # next answer: 200 with "<html>"
        report = paceline_client.check(server.url, TOKEN, None, TOPOLOGY)
    assert "not from Paceline" in report


def test_missing_url_and_token_are_reported():
    report = paceline_client.check()
    assert line(report, "server")[1:] == ["WRONG", "no address: give url=, or set PACELINE_URL"]
    assert line(report, "token")[1:] == ["WRONG", "none: give token=, or set PACELINE_TOKEN"]


def test_topology_that_contradicts_the_launcher_is_wrong(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "8")
    report = paceline_client.check(topology=TOPOLOGY)
    assert line(report, "topology")[1] == "WRONG"
    assert "WORLD_SIZE is 8" in report
    invalid = Topology(rank=5, dp_rank=0, stage=0, dp_size=2, pp_size=1)
    assert line(paceline_client.check(topology=invalid), "topology")[1] == "WRONG"


def test_clock_skew_is_reported(healthy):
    healthy.date = email.utils.formatdate(time.time() - 3600, usegmt=True)
    report = paceline_client.check(healthy.url, TOKEN, "llm", TOPOLOGY)
    assert "ahead of the server's" in report


def test_job_name_with_invalid_text_is_reported(healthy, monkeypatch):
    monkeypatch.setenv("PACELINE_JOB", "j\udcff")
    report = paceline_client.check(healthy.url, TOKEN, None, TOPOLOGY)
    assert line(report, "token")[1:] == ["WRONG", r"not checked: job 'j\udcff' is not valid text"]
    assert report.isascii()


def test_control_characters_of_the_server_are_not_printed(healthy):
    healthy.answers.clear()
    healthy.answers.append((403, b'{"detail": "no\\u001b[2J\\u202eway"}', {}))
    report = paceline_client.check(healthy.url, TOKEN, "llm", TOPOLOGY)
    assert line(report, "token")[1:] == ["WRONG", "403: no?[2J?way"]


def test_check_runs_as_a_command(monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    monkeypatch.setenv("PACELINE_TOKEN", "t")
    monkeypatch.setenv("PACELINE_JOB", "j\u00f6b")
    command = [sys.executable, "-W", "error", "-m", "paceline_client"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stdout.startswith("server   WRONG  no address")
    assert done.stderr == ""
