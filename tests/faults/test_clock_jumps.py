"""Row 21 of the fault matrix: the clock of the whole server jumps, by libfaketime."""

import os
import time
from datetime import datetime
from pathlib import Path

import pytest

from tests.harness.processes import wait_until
from tests.harness.stack import Stack
from tests.harness.trial import Trial

pytestmark = pytest.mark.nightly

LIBRARY = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
JUMP_S = 7200.0


@pytest.fixture
def clock_file(tmp_path):
    if LIBRARY is None:
        if os.environ.get("CI"):
            pytest.fail("needs Debian's libfaketime: .ci/system-packages")
        pytest.skip("needs Debian's libfaketime: .ci/system-packages")
    file = tmp_path / "clock"
    file.write_text("+0")
    return file


@pytest.fixture
def stack(clock_file, tmp_path):
    environment = {
        "LD_PRELOAD": str(LIBRARY),
        "FAKETIME_TIMESTAMP_FILE": str(clock_file),
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_CACHE_DURATION": "1",
    }
    with Stack(tmp_path, store="sqlite", environment=environment) as stack:
        yield stack


def shown_ahead_s(stack, job):
    """How far the consumer's clock is ahead of ours, by the job's newest window; 0 without one."""
    newest = stack.get(f"/jobs/{job}/windows?limit=1")["items"]
    if not newest:
        return 0.0
    return datetime.fromisoformat(newest[0]["updated_at"]).timestamp() - time.time()


def test_row_21_clock_that_jumps_loses_nothing_and_alerts_nobody(stack, clock_file):
    with Trial(stack, "clock") as trial:
        (load,) = trial.loads
        for offset_s in (JUMP_S, -JUMP_S, 0.0):
            clock_file.write_text(f"{offset_s:+.0f}")
            trial.faults += 1
            wait_until(
                lambda: abs(shown_ahead_s(stack, load.job) - offset_s) < 60,  # noqa: B023
                f"the server's clock is {offset_s} s ahead",
            )
            trial.wait_for_steps(8)
            assert stack.get(f"/jobs/{load.job}")["state"] not in ("stalled", "silent")
        assert stack.get("/alerts")["items"] == []
        verdict = trial.finish()
    assert verdict["violations"] == []
