"""Workers whose hosts are unknown: each has its own clock where shared ends show several."""

from dataclasses import replace

import numpy as np
import pytest

from app.engine.report import analyse
from app.trace.ops import OP_CODES
from app.trace.readers.published import trace_files
from tests import window_factory
from tests.engine.clocks.pipeline_job import simulated_pipeline
from tests.engine.clocks.shifted_windows import Clock, Ends, recorded, worker_is_host
from tests.engine.clocks.skewed_windows import skewed
from tests.shared_traces import SHARED_TRACES, needs_shared

SIZES = [(4, 1), (1, 8), (3, 4)]


@pytest.mark.parametrize(("dp_size", "pp_size"), SIZES)
@pytest.mark.parametrize("skew_s", [0.5e-3, 10e-3])
def test_skewed_workers_of_unknown_hosts_have_the_figures_of_right_clocks(dp_size, pp_size, skew_s):
    job = simulated_pipeline(dp_size, pp_size, num_steps=8)
    right, wrong = analyse(job), analyse(skewed(job, skew_s))
    assert wrong.clocks.residual_s == pytest.approx(0.0, abs=1e-6)
    assert "shared ends show several clocks" in (wrong.clocks.reason or "")
    assert wrong.slowdown == pytest.approx(right.slowdown, rel=1e-4)
    assert wrong.worker_slowdown == pytest.approx(right.worker_slowdown, rel=1e-4)
    assert wrong.recorded_s == pytest.approx(right.recorded_s, rel=1e-3)


def test_drift_between_steps_without_absolute_times_is_corrected():
    job = simulated_pipeline(3, 4, num_steps=8)
    wrong = analyse(skewed(job, 5e-3, drift_ppm=200))
    # Within a step a clock gains less than from step to step, if there is time between them.
    assert wrong.clocks.residual_s == pytest.approx(0.0, abs=60e-6)
    assert wrong.slowdown == pytest.approx(analyse(job).slowdown, rel=1e-3)


def test_absolute_times_of_unknown_hosts_are_corrected():
    job = simulated_pipeline(2, 3, num_steps=4)
    clocks = {worker_is_host(1, 1): Clock(4_000_000), worker_is_host(0, 2): Clock(-3_000_000)}
    right, wrong = analyse(recorded(job, {})), analyse(replace(recorded(job, clocks), hosts={}))
    assert wrong.clocks.offset_s["dp 1, stage 1"] == pytest.approx(4e-3, abs=1e-6)
    assert wrong.slowdown == pytest.approx(right.slowdown, rel=1e-6)


def test_unsteady_ends_of_one_clock_are_left_as_recorded():
    shown = recorded(simulated_pipeline(3, 4, num_steps=6), {}, ends=Ends(jitter_s=50e-6))
    report = analyse(replace(shown, hosts={}))
    assert report.clocks.residual_s is None
    assert report.clocks.apart_s == pytest.approx(70e-6, rel=0.5)
    assert report.clocks.error_s == pytest.approx(2 * (report.clocks.apart_s or 0.0))


def test_ends_that_no_clock_brings_together_have_a_distance():
    job = simulated_pipeline(1, 3, num_steps=3)
    trace = job.trace
    is_recv = np.isin(trace.optype, [OP_CODES["forward-recv"], OP_CODES["backward-recv"]])
    later_s = np.random.default_rng(0).uniform(0.1, 0.5, trace.num_ops)
    used = window_factory.with_columns(job, duration_s=trace.duration_s + later_s * is_recv)
    clocks = analyse(used).clocks
    assert clocks.residual_s is None
    assert clocks.apart_s is not None
    assert clocks.apart_s > 0.02


@needs_shared
@pytest.mark.parametrize("name", ["AR", "ST"])
def test_published_traces_with_skewed_workers_have_their_figures(name):
    window = trace_files.read(SHARED_TRACES / f"trace-{name}.parquet")
    right, wrong = analyse(window), analyse(skewed(window, 5e-3))
    assert right.clocks.residual_s is None
    assert wrong.clocks.residual_s == pytest.approx(0.1e-3, abs=0.1e-3)
    assert wrong.slowdown == pytest.approx(right.slowdown, rel=2e-3)
