import json
import logging
import os
from pathlib import Path

import pytest
import structlog
from typer.testing import CliRunner

from app.cli import app
from app.errors import StartUpFailed
from app.telemetry import set_up_logging

TOKEN = "pl_" + "t" * 40


@pytest.fixture
def lines(capsys):
    """A function that logs in a format and returns the written text."""
    root = logging.getLogger()
    before = root.handlers, root.level

    def written(log_format, write):
        set_up_logging(log_format)
        write(structlog.get_logger())
        return capsys.readouterr().err

    yield written
    root.handlers, root.level = before
    structlog.reset_defaults()


@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.parametrize("secret", [TOKEN, "whsec_" + "c2Vj+/JldA==" * 3])
def test_no_secret_is_ever_written(lines, log_format, secret):
    def write(log):
        log.info(f"hello {secret}", token=secret, nested={"a": [secret]})
        logging.getLogger("uvicorn.error").warning("failed for %s", secret)

    found = lines(log_format, write)
    kind, _, of_it = secret.partition("_")
    assert of_it[-8:] not in found
    assert f"{kind}_***" in found


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_event_with_line_breaks_is_one_log_line(lines, log_format):
    found = lines(log_format, lambda log: log.info("a\nb", name="x\r\ny\x1b[31m\u2028z"))
    assert found.count("\n") == 1
    assert "\x1b" not in found


def test_failure_is_logged_with_its_reason(lines):
    def write(log):
        try:
            raise ValueError("it broke\n2026-01-01 [info] all is well")
        except ValueError:
            log.exception("failed")

    assert json.loads(lines("json", write))["exception"].startswith("Traceback")
    for line in lines("text", write).splitlines()[1:]:
        assert line.startswith("  | ")


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_bound_context_is_on_every_line_and_escaped(lines, log_format):
    def write(log):
        with structlog.contextvars.bound_contextvars(request_id="r-1", path=f"/a\nb{TOKEN}"):
            log.info("request refused", status=404)

    found = lines(log_format, write)
    assert "r-1" in found
    assert "404" in found
    assert found.count("\n") == 1
    assert TOKEN not in found


def test_a_line_that_cannot_be_written_stops_nothing(lines, monkeypatch):
    with Path("/dev/full").open("w") as full_disk:
        monkeypatch.setattr("sys.stderr", full_disk)
        lines("text", lambda log: log.warning("the disk is full"))
        monkeypatch.undo()
        os.dup2(os.open(os.devnull, os.O_WRONLY), full_disk.fileno())


@pytest.mark.parametrize("command", ["serve", "demo"])
def test_what_looks_after_the_parts_logs_as_they_do(lines, monkeypatch, tmp_path, command):
    """By default structlog prints to standard output, and raises where its disk is full."""
    seen = []

    def start(self, stack):
        seen.append((structlog.is_configured(), logging.getLogger().handlers))
        raise StartUpFailed("seen enough")

    monkeypatch.setattr("app.cli.supervisor.Supervisor.start", start)
    monkeypatch.setattr("app.cli.supervisor.StopSignal", object)
    monkeypatch.setattr("app.cli.supervisor.end_with_parent", lambda: None)
    structlog.reset_defaults()
    result = CliRunner().invoke(app, [command, "--data-dir", str(tmp_path)])
    [(is_configured, handlers)] = seen
    assert is_configured, result.output
    assert isinstance(handlers[0], logging.StreamHandler)
