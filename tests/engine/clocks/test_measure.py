"""Clocks measured by what hosts record together, against clocks that are known."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.report import Report, analyse
from app.trace.ops import OP_CODES
from app.trace.readers.published import trace_files
from app.trace.window import Window
from tests import window_factory
from tests.engine.clocks.pipeline_job import simulated_pipeline
from tests.engine.clocks.shifted_windows import (
    Clock,
    Ends,
    ended_together,
    recorded,
    worker_is_host,
)
from tests.example_counts import many
from tests.job_strategies import windows
from tests.results import report_as_json
from tests.shared_traces import SHARED_TRACES, needs_shared
from tests.window_factory import Row

SECOND_NS = 10**9
JITTER = Ends(jitter_s=50e-6, late_share=0.05, late_s=0.1, seed=1)


def names_of(window: Window) -> list[str]:
    sizes = window.job.parallelism
    return [
        worker_is_host(dp_rank, stage)
        for dp_rank in range(sizes.dp_size)
        for stage in range(sizes.pp_size)
    ]


def drawn(window: Window, seed: int, *, drift_ppm: float = 0.0) -> dict[str, Clock]:
    """Clocks up to a second off."""
    chance = np.random.default_rng(seed)
    return {
        name: Clock(
            int(chance.integers(-SECOND_NS, SECOND_NS)), chance.uniform(-drift_ppm, drift_ppm)
        )
        for name in names_of(window)
    }


def figures(report: Report) -> str:
    """Everything that is told of a window but its clocks."""
    result = report_as_json(report)
    del result["clocks"]
    return json.dumps(result)


@many(150)
@given(windows(), st.integers(0, 2**32), st.sampled_from([0.0, 200.0]))
def test_constant_clock_offsets_do_not_change_a_bit(a_window, seed, drift_ppm):
    together = ended_together(a_window)
    drifting = drawn(together, seed, drift_ppm=drift_ppm)
    set_right = {name: replace(clock, offset_ns=0) for name, clock in drifting.items()}
    right = analyse(recorded(together, set_right))
    wrong = analyse(recorded(together, drifting))
    assert figures(wrong) == figures(right)
    assert wrong.clocks.residual_s == right.clocks.residual_s
    assert wrong.clocks.reason is None or together.job.parallelism.num_workers == 1


@many(50)
@given(windows(), st.integers(0, 2**32))
def test_drift_changes_figures_by_at_most_one_in_a_thousand(a_window, seed):
    together = ended_together(a_window)
    right = analyse(recorded(together, {}))
    wrong = analyse(recorded(together, drawn(together, seed, drift_ppm=200)))
    # Where a host shares too few ends to tell its drift, its residual says by how much it is off.
    off_s = 2 * max((clock.residual_s for clock in wrong.clocks.hosts.values()), default=0.0)
    exact = 1e-3 + off_s / float(right.ideal_s.mean())
    assert wrong.slowdown == pytest.approx(right.slowdown, rel=exact)
    assert wrong.worker_slowdown == pytest.approx(right.worker_slowdown, rel=exact)


def test_offsets_of_hours_change_nothing():
    job = simulated_pipeline(2, 3, num_steps=3)
    hours = {name: Clock(at * 3600 * SECOND_NS) for at, name in enumerate(names_of(job))}
    assert figures(analyse(recorded(job, hours))) == figures(analyse(recorded(job, {})))


@pytest.mark.parametrize(("dp_size", "pp_size"), [(4, 1), (1, 8), (3, 4)])
def test_offsets_and_drift_are_found_among_late_and_unsteady_ends(dp_size, pp_size):
    job = simulated_pipeline(dp_size, pp_size, num_steps=8)
    clocks = drawn(job, 7, drift_ppm=200)
    right = analyse(recorded(job, {}, ends=JITTER, step_s=2.0))
    wrong = analyse(recorded(job, clocks, ends=JITTER, step_s=2.0))
    assert wrong.clocks.residual_s is not None
    assert 0 < wrong.clocks.residual_s < 0.2e-3
    assert wrong.slowdown == pytest.approx(right.slowdown, rel=1e-3)
    assert wrong.worker_slowdown == pytest.approx(right.worker_slowdown, rel=1e-3)
    assert wrong.discrepancy == pytest.approx(right.discrepancy, abs=1e-3)
    told = wrong.clocks.hosts
    [reference] = [name for name, clock in told.items() if clock.offset_s == 0]
    for name, clock in told.items():
        drift_ppm = clocks[name].drift_ppm - clocks[reference].drift_ppm
        offset_s = (clocks[name].offset_ns - clocks[reference].offset_ns) * 1e-9
        # The middle of the window is some 8 s after its first step.
        assert clock.offset_s == pytest.approx(offset_s + 8e-6 * drift_ppm, abs=1e-3)
        assert clock.drift_ppm == pytest.approx(drift_ppm, abs=15)


def test_clocks_are_compared_along_a_chain_of_hosts():
    """Pipeline alone: the last host shares ends with the first by way of all others."""
    job = simulated_pipeline(1, 12, num_steps=4)
    clocks = {name: Clock(1_000_000 * at**2) for at, name in enumerate(names_of(job))}
    told = analyse(recorded(job, clocks)).clocks.offset_s
    first = told[worker_is_host(0, 0)]
    for at, name in enumerate(names_of(job)):
        assert told[name] - first == pytest.approx(at**2 * 1e-3, abs=1e-8)


def test_workers_of_one_host_have_one_clock():
    job = simulated_pipeline(4, 2, num_steps=4)
    shown = recorded(
        job, {"b": Clock(5_000_000)}, host_of=lambda dp_rank, _: "a" if dp_rank < 2 else "b"
    )
    clocks = analyse(shown).clocks
    assert sorted(clocks.hosts) == ["a", "b"]
    assert clocks.offset_s["b"] - clocks.offset_s["a"] == pytest.approx(5e-3, abs=1e-9)


def test_hosts_without_shared_operations_are_reported():
    """Two replicas that never meet: each one's two hosts are compared with each other."""
    job = simulated_pipeline(2, 2, num_steps=2, with_collectives=False)
    clocks = {name: Clock(1_000_000 * at) for at, name in enumerate(names_of(job))}
    report = analyse(recorded(job, clocks))
    assert report.clocks.reason is not None
    assert "2 groups of hosts share no operation" in report.clocks.reason
    found = report.clocks.offset_s
    for dp_rank in (0, 1):
        pair = [found[worker_is_host(dp_rank, stage)] for stage in (0, 1)]
        assert pair[1] - pair[0] == pytest.approx(1e-3, abs=1e-8)
    assert report.slowdown == analyse(recorded(job, {})).slowdown


def test_clocks_are_measured_over_steps_of_all_structures():
    job = simulated_pipeline(2, 2, num_steps=6, microbatches=lambda step: 2 + step % 2)
    report = analyse(recorded(job, drawn(job, 3, drift_ppm=100)))
    assert len(report.structures) == 2
    assert report.clocks.residual_s is not None
    assert report.clocks.residual_s < 1e-7
    right = analyse(recorded(job, {}))
    assert report.slowdown == pytest.approx(right.slowdown, rel=1e-6)


def not_measured(window: Window) -> str:
    clocks = analyse(window).clocks
    assert (clocks.residual_s, clocks.hosts) == (None, {})
    assert clocks.reason is not None
    return clocks.reason


def test_the_reason_for_unmeasured_clocks_is_given():
    job = simulated_pipeline(2, 2, num_steps=2)
    shown = recorded(job, {})
    assert "times of different steps" in not_measured(job)
    unknown = {worker: host for worker, host in shown.hosts.items() if worker != (1, 0)}
    assert not_measured(replace(shown, hosts=unknown)) == (
        "the host of dp rank 1, stage 0 is not known"
    )
    assert "and of 3 more workers" in not_measured(replace(shown, hosts={}))
    assert "one host" in not_measured(recorded(job, {}, host_of=lambda *_: "only"))


def test_hosts_without_peers_cannot_be_compared():
    rows = [Row("forward-compute", 0.0, 1.0), Row("optimizer", 1.0, 0.5)]
    job = window_factory.window(window_factory.replicas(rows, 2), dp_size=2)
    assert "no operation that ends at one moment" in not_measured(recorded(job, {}))


def test_a_window_too_short_for_drift_has_none():
    job = simulated_pipeline(2, 1, num_steps=1)
    clocks = analyse(recorded(job, drawn(job, 1), ends=Ends(jitter_s=50e-6))).clocks
    assert sorted(clock.drift_ppm is None for clock in clocks.hosts.values()) == [False, True]


def test_a_host_with_scattered_ends_has_a_large_residual():
    """Its clock is set by 40 ms in mid-window: no line is near all of its ends."""
    job = simulated_pipeline(4, 2, num_steps=8)
    shown = recorded(job, {})
    trace = shown.trace
    late = (trace.dp_rank == 2) & (trace.stage == 1) & (trace.step >= 4)
    jumped = window_factory.with_columns(shown, start_s=trace.start_s + 0.04 * late)
    hosts = analyse(jumped).clocks.hosts
    worst = max(hosts, key=lambda name: hosts[name].residual_s)
    assert worst == worker_is_host(2, 1)
    assert hosts[worst].residual_s > 5e-3


def test_unrelated_ends_give_no_clock():
    """A client that notes a recv as over once its data is used: no two ends are one moment."""
    job = simulated_pipeline(1, 3, num_steps=3)
    trace = job.trace
    is_recv = np.isin(trace.optype, [OP_CODES["forward-recv"], OP_CODES["backward-recv"]])
    later_s = np.random.default_rng(0).uniform(0.1, 0.5, trace.num_ops)
    used = window_factory.with_columns(job, duration_s=trace.duration_s + later_s * is_recv)
    assert "too far to tell" in not_measured(recorded(used, {}))
    assert figures(analyse(recorded(used, {}))) == figures(
        analyse(replace(recorded(used, {}), hosts={}))
    )


@needs_shared
@pytest.mark.parametrize("name", ["AR", "ST"])
def test_published_traces_are_never_corrected(name):
    report = analyse(trace_files.read(SHARED_TRACES / f"trace-{name}.parquet"))
    assert report.clocks.residual_s is None
    assert "times of different steps" in (report.clocks.reason or "")
