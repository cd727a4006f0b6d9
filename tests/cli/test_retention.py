"""`paceline retention`."""

import time

import pytest
from typer.testing import CliRunner

from app.cli import app
from app.store import windows
from tests.results import window_result
from tests.store.factories import register, window

DAY_S = 86_400.0
TIMES_S = {"recorded": [1.25], "simulated": [1.25], "ideal": [1.0]}
RESULT = window_result(slowdown=1.25, steps=[0], step_time_s=TIMES_S)


@pytest.fixture
def paceline(tmp_path):
    def run(*arguments):
        command = ["retention", *arguments, "--data-dir", str(tmp_path)]
        days = {"KEEP_RAW": "20", "THIN_WINDOWS": "30", "THIN_STEPS": "19"}
        env = {f"PACELINE_{name}_DAYS": each for name, each in days.items()}
        return CliRunner().invoke(app, command, env=env)

    return run


def test_retention_of_each_project_is_shown_and_set(store, paceline):
    assert paceline("show").stdout == (
        "default: operations 20 days (default), results 180 days (default); "
        "windows take 0 GB, no quota\n"
    )
    shown = paceline("set", "--project", "default", "--results-days", "7.5", "--max-gb", "2")
    assert shown.stdout == (
        "default: operations 20 days (default), results 7.5 days; "
        "windows take 0 GB, of at most 2 GB\n"
    )
    shown = paceline("set", "--project", "default", "--max-gb", "3")  # the rest stays
    assert "results 7.5 days; windows take 0 GB, of at most 3 GB" in shown.stdout
    assert paceline("set", "--project", "default").stdout == paceline("show").stdout
    assert "(default), results 180 days (default)" in paceline("show").stdout


def test_too_short_retention_and_unknown_projects_are_refused(store, paceline):
    assert paceline("set", "--project", "default", "--raw-days", "0.5").exit_code == 2
    assert "no project 'x'" in paceline("set", "--project", "x", "--raw-days", "5").stderr


def test_run_removes_old_rows_and_a_dry_run_none(store, paceline):
    assert paceline("run").stdout == "nothing to remove\n"
    register(store, "default/job")
    old_s = time.time() - 21 * DAY_S
    with store.write() as conn:
        for first_step in range(30):
            given = {"per_step": None} if first_step else {"result": RESULT}
            record = window(first_step, state="complete", trace=b"ops", updated_s=old_s, **given)
            windows.save(conn, "default/job", record)
    would = paceline("run", "--dry-run").stdout
    assert would.splitlines() == [
        "default: 30 operations of windows to remove",
        "default: 1 windows' figures by step to remove",
    ]
    assert paceline("run").stdout == would.replace("to remove", "removed")
    assert paceline("run", "--dry-run").stdout == "nothing to remove\n"
    with store.read() as conn:
        assert windows.trace(conn, "default/job", "1-7") is None
