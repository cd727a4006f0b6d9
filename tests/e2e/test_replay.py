"""A published trace, pushed over HTTP, gives the figures of the same steps analysed offline."""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from app.engine.report import analyse
from app.trace.readers.published import trace_files
from app.trace.window import Window
from tests.e2e.stack import TOKEN, Stack, wait_until
from tests.result_comparison import agree
from tests.results import report_as_json
from tests.shared_traces import SHARED_TRACES, needs_shared

TRACES = (
    "ST",
    *(
        pytest.param(name, marks=pytest.mark.nightly)
        for name in ("AR", "ovlp", "puredp", "purepp", "flap", "inter")
    ),
)
# All figures of a result except the recorded step time and those derived from it or from recorded
# starts; the other fields name the window and its job.
FIGURES = (
    "slowdown",
    "gpu_time_wasted",
    "step_slowdown",
    "optype_slowdown",
    "dp_rank_slowdown",
    "stage_slowdown",
    "worker_slowdown",
    "worker_slowdown_estimate",
    "m_w",
    "m_w_exact",
    "m_s",
    "stage_share",
    "per_step",
)
# Replayed steps count from the end of the previous step, those of a published file from their first
# start. The difference is `between`, and starts of receives that were posted early.
MAX_DIFFERENCE = 2e-3


@pytest.fixture(scope="module")
def stack(database_url, tmp_path_factory):
    with Stack(tmp_path_factory.mktemp("stack"), database_url, step_deadline_s="600") as stack:
        yield stack


@needs_shared
@pytest.mark.parametrize("name", TRACES)
def test_a_replayed_trace_has_the_offline_figures(stack, name):
    _replay(stack, name)
    whole = trace_files.read(SHARED_TRACES / f"trace-{name}.parquet")
    wait_until(lambda: _num_closed(stack, name) == len(whole.steps), "all windows are closed")
    items = stack.get(f"/jobs/{name}/windows", limit=100)["items"]
    assert {item["state"] for item in items} == {"complete"}
    seen = []
    for item in items:
        got = stack.get(f"/jobs/{name}/windows/{item['window_id']}", per_step=True)
        want = report_as_json(analyse(_steps_of(whole, got["steps"])))
        figures = {key: want[key] for key in FIGURES}
        agree(got, figures, item["window_id"], relative=1e-6, absolute=1e-6)
        _step_times_agree(got["step_time_s"], want["step_time_s"], item["window_id"])
        delays = {"launch_delay": want["launch_delay"]}
        agree(got, delays, item["window_id"], relative=MAX_DIFFERENCE, absolute=1e-3)
        seen += got["steps"]
    assert sorted(seen) == list(whole.steps)


def _step_times_agree(
    got: dict[str, list[float]], want: dict[str, list[float]], where: str
) -> None:
    for name in ("simulated", "ideal"):
        agree(got[name], want[name], f"{where}.{name}", relative=1e-6, absolute=1e-6)
    got_s, want_s = (np.subtract(each["recorded"], each["between"]) for each in (got, want))
    np.testing.assert_allclose(got_s, want_s, rtol=MAX_DIFFERENCE, err_msg=where)


def _replay(stack: Stack, name: str) -> None:
    trace = SHARED_TRACES / f"trace-{name}.parquet"
    options = ["--speed", "max", "--url", stack.url, "--job", name]
    done = subprocess.run(
        [sys.executable, "-m", "app.cli", "replay", str(trace), *options],
        env={**os.environ, "PACELINE_TOKEN": TOKEN},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def _num_closed(stack: Stack, name: str) -> int:
    """Number of steps in closed windows."""
    items = stack.get(f"/jobs/{name}/windows", limit=100)["items"]
    return sum(item["num_steps"] for item in items if item["state"] != "open")


def _steps_of(window: Window, steps: list[int]) -> Window:
    rows = np.isin(window.trace.step, steps)
    return replace(window, steps=tuple(steps), trace=window.trace.select(rows))
