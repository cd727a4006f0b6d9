"""A job of which some ranks are missing has the figures and findings of the others."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.diagnosis.job_history import History
from app.engine.replays import prepare
from app.monitor import analysed, observe
from app.synth.cluster import Cluster
from app.synth.costs import OperationCosts
from app.synth.faults.fault import Fault, FaultSteps
from app.synth.faults.slow_compute import LongLastStage, SlowWorker
from app.synth.faults.slow_network import SlowLink
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from app.trace.ops import OP_CODES
from tests.trace.losses import without_ranks

POINT = 0.01
STEPS = range(16)
SIZES = {8: Parallelism(4, 2), 64: Parallelism(16, 4), 512: Parallelism(128, 4)}
MISSING = {8: [2], 64: [17], 512: [3, 200, 201, 333, 511]}

P2P = ("forward-send", "forward-recv", "backward-send", "backward-recv")

Result = dict[str, Any]


def results(
    size: int, fault: Fault, from_step: int, cluster: Cluster | None = None
) -> tuple[Result, ...]:
    """Of the whole job, and without its missing ranks."""
    made = SimulatedJob(SIZES[size], 4, faults=(fault,), cluster=cluster or Cluster())
    record = made.record(STEPS)
    without = without_ranks(record, MISSING[size], from_step=from_step)
    return tuple(observe(seen.window()).result.as_json() for seen in (record, without))


def away(result: Result, whole: Result, name: str) -> float:
    """The largest difference of a figure that both know."""
    ours, theirs = (np.array(each[name], np.float64) for each in (result, whole))
    return float(np.nanmax(np.abs(ours - theirs)))


def said(result: Result) -> list[tuple[str, Any]]:
    """Causes and culprits, but for silence."""
    found = [each for each in result["findings"] if each["cause"] != "silent-worker"]
    return [(each["cause"], each["culprits"]) for each in found]


FIGURES = (
    *("slowdown", "gpu_time_wasted", "worker_slowdown", "worker_slowdown_estimate"),
    *("dp_rank_slowdown", "stage_slowdown", "step_slowdown", "launch_slowdown"),
)
FAULTS = {
    "slow-worker": SlowWorker(dp_rank=1, stage=0, slowdown=1.6),
    "stage-imbalance": LongLastStage(),
    "slow-link": SlowLink(dp_rank=0, stage=0, slowdown=20.0),
}


@pytest.mark.parametrize("from_step", [0, 10])
@pytest.mark.parametrize("size", [8, 64, pytest.param(512, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("cause", FAULTS)
def test_figures_and_findings_of_the_others_are_those_with_all_ranks(size, cause, from_step):
    whole, result = results(size, FAULTS[cause], from_step)
    assert [each["rank"] for each in result["imputed"]["workers"]] == MISSING[size]
    assert result["window"]["missing"] == MISSING[size]
    assert result["findings"][0]["cause"] == "silent-worker", "who is missing is said first"
    assert (len(result["steps"]), result["skipped_steps"]) == (len(STEPS), [])
    for name in FIGURES:
        assert away(result, whole, name) < POINT, name
    types = whole["optype_slowdown"]
    assert result["optype_slowdown"] == pytest.approx(types, abs=POINT)
    assert said(result) == said(whole)
    costs = [[each["cost"] for each in of["findings"] if each["cost"]] for of in (result, whole)]
    assert costs[0] == pytest.approx(costs[1], abs=POINT)


def test_missing_rank_has_no_figures_of_its_own():
    _, result = results(8, FAULTS["slow-worker"], 0)
    [worker] = result["imputed"]["workers"]
    place = worker["dp_rank"], worker["stage"]
    unknown = np.isnan(np.array(result["worker_slowdown"], np.float64))
    assert np.argwhere(unknown).tolist() == [list(place)]
    for name in ("by_worker", "others_waited"):
        assert result["launch_delay"][name][place[0]][place[1]] is None
    assert all(step[place[0]][place[1]] is None for step in result["per_step"]["worker_slowdown"])
    named = [each for each in result["findings"][1:] for each in each["culprits"]]
    assert all((each.get("dp_rank"), each.get("stage")) != place for each in named)


@pytest.mark.parametrize("from_step", [0, 10])
@pytest.mark.parametrize("stage", [0, 3])
def test_absent_worker_of_the_slow_replica_changes_no_figure(stage, from_step):
    """It is late to its collectives, which is no transfer of theirs."""
    made = SimulatedJob(Parallelism(4, 4), 6, faults=(SlowWorker(2, 1, slowdown=1.8),))
    record = made.record(STEPS)
    gone = Parallelism(4, 4).usual_rank(2, stage)
    whole = observe(record.window()).result.as_json()
    result = observe(without_ranks(record, [gone], from_step=from_step).window()).result.as_json()
    for name in FIGURES:
        assert away(result, whole, name) < POINT, name
    assert said(result) == said(whole)


def test_dependencies_are_those_of_recorded_operations():
    """Imputed durations of noisy peers contradict the donor's order; transfers have no numbers."""
    costs = OperationCosts(noise=0.6, transfer_noise=1.0)
    record = SimulatedJob(Parallelism(4, 4), 8, costs=costs, seed=3).record(range(6))
    window = without_ranks(record, [8]).window()
    assert window.partial is not None
    trace = window.partial.trace
    is_transfer = np.isin(trace.optype, [OP_CODES[name] for name in P2P])
    published = replace(trace, mb_id=np.where(is_transfer, -1, trace.mb_id))
    window = replace(window, partial=replace(window.partial, trace=published))
    assert prepare(window).steps == tuple(range(6))


@pytest.mark.parametrize("gone", [0, 2])
def test_clocks_are_measured_without_imputed_ends(gone):
    sizes, cluster = Parallelism(2, 4), Cluster(1, clock_offset_s=0.2, drift_ppm=30.0)
    since = SlowWorker(dp_rank=1, stage=1, slowdown=2.0, when=FaultSteps(8))
    record = SimulatedJob(sizes, 4, faults=(since,), cluster=cluster).record(STEPS)
    window = without_ranks(record, [sizes.usual_rank(0, gone)], from_step=10).window()
    clocks = prepare(window).clocks
    assert clocks.residual_s is not None
    assert clocks.residual_s < 1e-8


def test_clocks_of_hosts_apart_do_not_matter_to_the_others():
    cluster = Cluster(clock_offset_s=0.2)
    whole, result = results(64, FAULTS["slow-worker"], 0, cluster)
    assert result["clocks"]["residual_ms"] == pytest.approx(whole["clocks"]["residual_ms"], abs=0.1)
    assert away(result, whole, "worker_slowdown") < POINT
    assert said(result) == said(whole)


def test_absence_of_the_slow_worker_blames_nobody_else():
    made = SimulatedJob(SIZES[8], 4, faults=(SlowWorker(dp_rank=2, stage=0, slowdown=1.8),))
    record = made.record(STEPS)
    for from_step in (0, 10):
        window = without_ranks(record, MISSING[8], from_step=from_step).window()
        _, result, _ = analysed(window, History())
        blamed = [culprit for finding in result.findings or () for culprit in finding.culprits]
        assert {(culprit.dp_rank, culprit.stage) for culprit in blamed} == {(2, 0)}


def test_long_stage_and_slow_gpu_look_alike_where_one_dp_rank_is_left():
    sizes = Parallelism(2, 4)
    made = SimulatedJob(sizes, 4, faults=(SlowWorker(dp_rank=0, stage=2, slowdown=1.8),))
    gone = sizes.usual_rank(1, 2)
    window = without_ranks(made.record(STEPS), [gone]).window()
    _, result, _ = analysed(window, History())
    assert [finding.cause for finding in result.findings or ()] == ["silent-worker"]
    [reason] = [denied.reason for denied in result.ruled_out or () if "look alike" in denied.reason]
    assert f"as rank {gone} is missing" in reason
