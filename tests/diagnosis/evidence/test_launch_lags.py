"""Launches tell a late host from a slow GPU, as the client records both on the fake GPU."""

import dataclasses

import numpy as np
from paceline_client.recording import cuda

from app.diagnosis.diagnose import diagnosis_of
from app.diagnosis.evidence.launch_lags import is_held_up_by_host, late_launch_shares
from tests import window_factory
from tests.client.recording.cuda.fake_ranks import ranks
from tests.diagnosis.jobs import case_of, findings_of
from tests.window_factory import Row

US = 1_000
KERNELS, KERNEL_US, LAUNCH_US = 10, 300, 20
SLEEP_US = 8_000  # longer than a micro-batch, so that the host falls behind in each
NUM_STEPS, NUM_MICROBATCHES, DP_SIZE = 3, 4, 4


def rows_of(monkeypatch, dp_rank, *, factor=1.0, sleep_us=0, syncs=False):
    """Operations of a rank and their lags, as the client records them.

    `factor` slows its kernels; `sleep_us` is the host's, within each forward; `syncs`: the host
    waits for the GPU after each computation.
    """
    [rank] = ranks(1)
    monkeypatch.setattr(cuda, "perf_counter_ns", rank.clock.now_ns)
    for step in range(NUM_STEPS):
        for microbatch in range(NUM_MICROBATCHES):
            for name in ("forward-compute", "backward-compute"):
                with rank.recorder.op(name, step=step, microbatch=microbatch, chunk=0):
                    for kernel in range(KERNELS):
                        if kernel == KERNELS // 2 and name == "forward-compute":
                            rank.clock.at_ns += sleep_us * US
                        rank.cuda.work(round(factor * KERNEL_US) * US)
                        rank.clock.at_ns += LAUNCH_US * US
                if syncs:
                    rank.clock.at_ns = max(rank.clock.at_ns, ended(rank)) + LAUNCH_US * US
        rank.clock.at_ns += 10**9
    rows, lags_us = [], []
    for op in rank.buffer.take().ops:
        step, name, start_ns, took_ns, seq_id, _, microbatch, about = op
        place = {"dp_rank": dp_rank, "step": step, "seq_id": seq_id, "mb_id": microbatch}
        rows.append(Row(name, start_ns / 1e9, took_ns / 1e9, **place))
        lags_us.append(about["launch_lag_us"])
    return rows, lags_us


def ended(rank):
    """When its GPU has done all that was launched."""
    event = rank.cuda.Event()
    event.record()
    return event._at_ns


def case_with(monkeypatch, *, syncs=False, **of_second):
    """Four ranks, of which the second differs."""
    rows, lags_us = [], []
    for dp_rank in range(DP_SIZE):
        differs = of_second if dp_rank == 1 else {}
        made, lags = rows_of(monkeypatch, dp_rank, syncs=syncs, **differs)
        rows += made
        lags_us += lags
    window = window_factory.window(rows, dp_size=DP_SIZE)
    return case_of(window_factory.with_columns(window, launch_lag_us=np.array(lags_us)))


def test_a_gpu_runs_at_the_pace_of_a_host_that_sleeps_within_forwards(monkeypatch):
    case = case_with(monkeypatch, sleep_us=SLEEP_US)
    assert is_held_up_by_host(case, (1, 0), "forward-compute") is True
    assert is_held_up_by_host(case, (2, 0), "forward-compute") is False


def test_the_host_of_a_slow_gpu_is_ahead_of_it(monkeypatch):
    case = case_with(monkeypatch, factor=2.0)
    assert is_held_up_by_host(case, (1, 0), "forward-compute") is False


def test_hosts_that_all_wait_for_their_gpus_tell_nothing(monkeypatch):
    case = case_with(monkeypatch, factor=2.0, syncs=True)
    assert is_held_up_by_host(case, (1, 0), "forward-compute") is None


def test_what_was_not_sent_is_not_known(monkeypatch):
    case = case_with(monkeypatch, sleep_us=SLEEP_US)
    trace = case.replay.window.trace
    lag_us = np.where(trace.optype == trace.optype[0], -1, trace.launch_lag_us)
    window = window_factory.with_columns(case.replay.window, launch_lag_us=lag_us)
    shares = late_launch_shares(case_of(window))
    assert shares is not None
    codes = case.replay.window.job.op_types.codes
    assert np.isnan(shares[codes["backward-compute"]]).all()
    assert not np.isnan(shares[codes["forward-compute"]]).any()


def test_without_launches_nothing_is_known(monkeypatch):
    case = case_with(monkeypatch, factor=2.0)
    window = case.replay.window
    trace = dataclasses.replace(window.trace, launch_lag_us=None)
    without = case_of(dataclasses.replace(window, trace=trace))
    assert late_launch_shares(without) is None
    assert is_held_up_by_host(without, (1, 0), "forward-compute") is None


def test_a_slow_worker_that_no_collective_shows_waits_for_its_host(monkeypatch):
    case = case_with(monkeypatch, sleep_us=SLEEP_US)
    (found,) = (
        finding for finding in findings_of(diagnosis_of(case)) if finding.cause == "slow-worker"
    )
    assert found.evidence["host_sets_pace"] is True
    assert "its GPU waits for its host, as recorded launches show" in found.sentence
