"""`paceline rules`."""

import json

import pytest
from typer.testing import CliRunner

from app.cli import app
from app.store import windows
from tests.alerts.alert_factories import finding, result
from tests.store.factories import register, window

RULES = """rules:
  - name: slow
    on: slowdown
    above: 1.2
    for: {windows: 2, seconds: 0}
    keep_firing: 0
  - name: late
    on: step-time
    above: 1.5
    for: {windows: 1, seconds: 0}
  - name: quiet
    on: stalled
"""
NOON_S = 1_700_000_000.0


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "alerts.yaml"
    path.write_text(RULES)
    return path


@pytest.fixture
def rules(tmp_path):
    def run(command, *arguments):
        options = ["--data-dir", str(tmp_path)] if command == "test" else []
        return CliRunner().invoke(app, ["rules", command, *map(str, arguments), *options])

    return run


def job(store, job_id, slowdowns, step_s=1.0):
    """Store a job with a window of eight steps per slowdown; None is an incomplete window."""
    register(store, f"default/{job_id}")
    with store.write() as conn:
        for at, slowdown in enumerate(slowdowns):
            figures = result(
                slowdown or 9.0,
                findings=[finding()] if (slowdown or 0) > 1.1 else [],
                step_time_s={"recorded": [step_s * (slowdown or 1.0)] * 8},
                steps=list(range(8 * at, 8 * at + 8)),
            )
            record = window(
                8 * at,
                last_step=8 * at + 7,
                state="incomplete" if slowdown is None else "complete",
                slowdown=slowdown,
                result=figures,
                updated_s=NOON_S + 60 * at,
            )
            windows.save(conn, f"default/{job_id}", record)


def test_check_prints_rules_with_their_defaults(rules, file):
    output = rules("check", file)
    assert (output.exit_code, output.stdout.count("name:")) == (0, 3)
    assert "clear: 1.1\n" in output.stdout
    assert json.loads(rules("check", file, "--json").stdout)["rules"] == ["slow", "late", "quiet"]


def test_check_reports_every_invalid_line(rules, file):
    file.write_text("rules:\n  - name: Slow\n    on: slowdown\n    colour: red\n")
    output = rules("check", file)
    assert (output.exit_code, output.stdout) == (2, "")
    lines = output.stderr.splitlines()
    assert [line.removeprefix(f"{file}:").partition(":")[0] for line in lines] == ["2", "4"]
    as_json = json.loads(rules("check", file, "--json").stdout)
    assert [each["line"] for each in as_json["problems"]] == [2, 4]
    file.write_bytes(b"\xff\xfe")
    assert "not a text file" in rules("check", file).stderr
    assert "No such file" in rules("check", file.parent / "none.yaml").stderr


def test_rules_are_tested_on_stored_windows(rules, file, store):
    job(store, "llm-a", [1.0, 1.3, None, 1.3, 1.3, 1.0])
    job(store, "llm-b", [1.0, 1.0, 1.3])
    output = rules("test", file)
    assert output.exit_code == 0, output.stderr
    first, *lines = output.stdout.splitlines()
    assert first == "9 windows of 2 jobs"
    assert lines[0] == "slow: fired 1 time"
    assert lines[1].startswith("  2023-11-14 22:16:20 firing: llm-a, window 1-24: llm-a runs at")
    assert "since step 8: dp 0, stage 0 on host-1 is 1.6\u00d7 slower" in lines[1]
    assert lines[2].startswith("  2023-11-14 22:18:20 resolved: llm-a, window 1-40")
    assert lines[3:] == ["late: fired 0 times", "quiet: on missing data: not tested"]


def test_rule_test_filters_by_job_and_time(rules, file, store):
    job(store, "llm-a", [1.3, 1.3, 1.0])
    job(store, "llm-b", [1.3, 1.3, 1.0])
    found = json.loads(rules("test", file, "--job", "*-b", "--json").stdout)
    assert (found["jobs"], found["windows"], found["not_tried"]) == (1, 3, ["quiet"])
    assert [(each["job"], each["kind"], each["window"]) for each in found["rules"]["slow"]] == [
        ("llm-b", "firing", "1-8"),
        ("llm-b", "resolved", "1-16"),
    ]
    later = json.loads(rules("test", file, "--since", "2023-11-14T22:14:00", "--json").stdout)
    assert (later["windows"], later["rules"]["slow"]) == (4, [])
    assert json.loads(rules("test", file, "--since", "1h", "--json").stdout)["windows"] == 0
    assert "give 12h, 7d or a date" in rules("test", file, "--since", "yesterday").stderr


INHIBITING = """rules:
  - name: slow
    on: slowdown
    above: 1.2
    clear: 1.2
    for: {windows: 1, seconds: 0}
    keep_firing: 0
    inhibits: [causes]
  - name: causes
    on: cause
    above: 0.1
    for: {windows: 1, seconds: 0}
    keep_firing: 0
"""


def test_muted_alerts_are_counted_but_not_listed(rules, file, store):
    file.write_text(INHIBITING)
    job(store, "llm-a", [1.3, 1.3, 1.15, 1.0])
    job(store, "llm-b", [1.3, 1.0])
    job(store, "llm-c", [1.3])
    output = rules("test", file).stdout.splitlines()
    assert [line.partition(": llm")[0] for line in output if line.startswith("causes")] == [
        "causes: fired 1 time, and 2 muted by other alerts"
    ]
    found = json.loads(rules("test", file, "--json").stdout)
    assert found["kept_back"] == {"causes": 2}
    assert [(each["kind"], each["window"]) for each in found["rules"]["causes"]] == [
        ("firing", "1-0"),
        ("resolved", "1-24"),
    ]


def test_step_time_rule_compares_with_earlier_windows(rules, file, store):
    job(store, "llm-a", [1.0, 1.0, 1.0, 1.0, 2.0])
    found = json.loads(rules("test", file, "--json").stdout)["rules"]["late"]
    assert [(each["window"], each["value"]) for each in found] == [("1-32", 2.0)]
    since = json.loads(rules("test", file, "--since", "2023-11-14T22:17:00", "--json").stdout)
    assert (since["windows"], since["rules"]["late"]) == (1, found)
