"""Checks of docker-compose.yml and Dockerfile that need no container engine."""

import os
import re
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from app.cli import app
from app.errors import QueueUnavailable
from app.ingest.embedded import find_server
from app.ingest.redis.queue import RedisReader
from tests.harness.processes import ControlledProcess, free_port, wait_until
from tests.settings_table import settings_rows

ROOT = Path(__file__).parent.parent
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
DOCKERFILE = (ROOT / "Dockerfile").read_text()
QUEUE_PASSWORD = "hunter2AndMore"
OURS = ("migrate", "api", "consumer")


@pytest.mark.parametrize("name", OURS)
def test_our_containers_are_locked_down(name):
    service = COMPOSE["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["command"][0] in get_command(app).commands  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", sorted(set(COMPOSE["services"]) - {"migrate"}))
def test_long_running_containers_have_a_health_check(name):
    assert COMPOSE["services"][name]["healthcheck"]["test"]


def test_containers_set_only_variables_that_exist():
    known = {name for name, _, _ in settings_rows()}
    used = set(COMPOSE["services"]["api"]["environment"])
    used |= set(re.findall(r"(PACELINE_\w+)=", DOCKERFILE))
    assert used <= known


def test_queue_is_durable_and_never_evicts():
    script = COMPOSE["services"]["queue"]["command"][-1]
    options = dict(re.findall(r"(--[\w-]+) (\S+)", script))
    assert options["--appendonly"] == "yes"
    assert options["--appendfsync"] == "always"
    assert options["--maxmemory-policy"] == "noeviction"


@pytest.fixture
def compose_queue(tmp_path):
    """The queue of docker-compose.yml, run by its own command: its process, and its URL."""
    port, programs = free_port(), tmp_path / "bin"
    programs.mkdir()
    (programs / "docker-entrypoint.sh").write_text('#!/bin/sh\nexec "$@"\n')
    server = f'#!/bin/sh\nshift\nexec {find_server()} - --port {port} --dir {tmp_path} "$@"\n'
    (programs / "valkey-server").write_text(server)
    for program in programs.iterdir():
        program.chmod(0o755)
    service = COMPOSE["services"]["queue"]
    environment = {"PATH": f"{programs}:{os.environ['PATH']}", "QUEUE_PASSWORD": QUEUE_PASSWORD}
    command = [part.replace("$$", "$") for part in service["command"]]
    url = COMPOSE["services"]["api"]["environment"]["PACELINE_REDIS_URL"]
    url = re.sub(r"\$\{QUEUE_PASSWORD[^}]*\}", QUEUE_PASSWORD, url)
    process = ControlledProcess(command, tmp_path / "log", environment=environment)
    process.start()
    yield process, url.replace("queue:6379", f"127.0.0.1:{port}")
    process.kill()


def test_queue_of_compose_takes_batches_only_with_its_password(compose_queue):
    process, url = compose_queue
    reader = RedisReader(url)
    wait_until(lambda: _answers(reader), "the queue answers")
    assert reader.weaknesses() == ()
    stranger = RedisReader(url.replace(f":{QUEUE_PASSWORD}@", ""))
    with pytest.raises(QueueUnavailable, match="Authentication required"):
        stranger.backlog(0)
    arguments = Path(f"/proc/{process.pid}/cmdline").read_bytes()
    assert b"valkey-server" in arguments
    assert QUEUE_PASSWORD.encode() not in arguments
    for each in (reader, stranger):
        each.close()


def _answers(reader):
    try:
        return reader.backlog(0) == 0
    except QueueUnavailable:
        return False


def test_the_image_does_not_run_as_root():
    users = re.findall(r"^USER (\S+)", DOCKERFILE, re.MULTILINE)
    assert users
    assert users[-1] not in ("root", "0")


def test_published_ports_bind_to_loopback_by_default():
    for service in COMPOSE["services"].values():
        for port in service.get("ports", []):
            assert port.startswith("${PACELINE_BIND:-127.0.0.1}:")
