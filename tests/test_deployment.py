"""Checks of docker-compose.yml and Dockerfile that need no container engine."""

import re
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from app.cli import app
from tests.settings_table import settings_rows

ROOT = Path(__file__).parent.parent
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
DOCKERFILE = (ROOT / "Dockerfile").read_text()
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
    command = COMPOSE["services"]["queue"]["command"]
    options = dict(zip(command[1::2], command[2::2], strict=True))
    assert options["--appendonly"] == "yes"
    assert options["--appendfsync"] == "always"
    assert options["--maxmemory-policy"] == "noeviction"


def test_the_image_does_not_run_as_root():
    users = re.findall(r"^USER (\S+)", DOCKERFILE, re.MULTILINE)
    assert users
    assert users[-1] not in ("root", "0")


def test_published_ports_bind_to_loopback_by_default():
    for service in COMPOSE["services"].values():
        for port in service.get("ports", []):
            assert port.startswith("${PACELINE_BIND:-127.0.0.1}:")
