"""`python -m benchmarks page` prints what it promises; how fast the page is, is nobody's test."""

import json
import subprocess
import sys

import pytest

FIGURES = {
    "workers",
    "first_load",
    "click_to_charts",
    "slowest_requests",
    "update_to_repaint",
    "minutes",
    "updates",
    "layout_shift",
    "moved_down_px",
    "longest_task_ms",
    "heap_mb_before",
    "heap_mb_most",
    "heap_mb_after",
    "copy_100mb_s",
}


def measured(*arguments):
    """The command in a process of its own: it has an event loop, and so has this one's driver."""
    command = [sys.executable, "-m", "benchmarks", "page", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


@pytest.mark.nightly
def test_a_small_job_has_all_figures(chromium_path):
    size = ("--workers=16", "--microbatches=2", "--clicks=1", "--minutes=0")
    ended = measured(*size, f"--chromium={chromium_path}")
    assert ended.returncode == 0, ended.stderr
    (line,) = ended.stdout.splitlines()
    figures = json.loads(line)
    assert set(figures) == FIGURES
    assert figures["workers"] == 16
    assert figures["updates"] == 1
    for name in ("first_load", "click_to_charts", "update_to_repaint"):
        assert 0 < figures[name]["median_ms"] <= figures[name]["most_ms"]
    assert figures["heap_mb_after"] > 0
    assert figures["slowest_requests"][0]["path"].startswith("/api/v1/")
