"""Families: what jobs do by design, worked by hand, and answers that are facts without a cause."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.result.finding import Culprit, ObservationRecord
from app.trace.ops import OP_CODES
from benchmarks.strangers.command import _of_kind
from benchmarks.strangers.drawn_jobs import draw_job
from benchmarks.strangers.faults import by_design
from benchmarks.strangers.faults.families import ALL_KINDS, FAMILIES, HEALTHY_KINDS
from benchmarks.strangers.faults.fault import JobUnderway
from benchmarks.strangers.faults.kinds import IN_TURN
from benchmarks.strangers.figures import figures_of
from benchmarks.strangers.graph import build_graph
from benchmarks.strangers.noise import Base
from benchmarks.strangers.recording import Extras, Recorder, record
from benchmarks.strangers.scoring import judge
from benchmarks.strangers.shape import Shape
from benchmarks.strangers.simulation import Simulated, simulate
from tests.benchmarks.strangers.test_simulation import durations, times
from tests.results import finding, window_result

SEED = 5
PLAIN: dict[str, Any] = {"has_clip": False, "has_small_reductions": False}


def job_underway(shape, steps=1, seed=SEED):
    rng = np.random.default_rng(seed)
    return JobUnderway(shape, build_graph(shape), Base.draw(shape, rng), steps, rng, False)


def test_a_replica_with_fewer_microbatches_ends_as_a_job_of_so_many_does():
    graph = build_graph(Shape(2, 2, 3, **PLAIN))
    all_times = durations(graph, 2)
    all_times.own[:, graph.mb == 2, 1] = np.nan
    simulated = simulate(graph, all_times)
    fewer = build_graph(Shape(1, 2, 2, gradients="none", **PLAIN))
    alone = simulate(fewer, durations(fewer, 1))
    for optype in ("forward-compute", "backward-compute", "backward-recv"):
        for stage in (0, 1):
            own = times(graph, simulated, optype, stage, 1)
            assert own[:2] == times(fewer, alone, optype, stage)
    # The other replica is as late as ever and is waited for: its last backward comes to stage 0
    # after F0 to F1, B0, B1 with transfers as before (9.5), and F2, B2 of stage 1 (7.75 to 10.75).
    assert times(graph, simulated, "grads-reduce-scatter", 0, 1) == [(9.5, 13.0)]


@pytest.mark.parametrize("pp", [1, 2])
def test_replicas_with_fewer_microbatches_record_them_with_numbers_from_0_on(pp):
    shape = Shape(2, pp, 8, **PLAIN)
    underway = job_underway(shape)
    healthy = durations(underway.graph, 2, is_continuous=True)
    by_design.uneven_counts(underway, healthy, Extras())
    recorder = Recorder(True, False, 0, (0.0,), (0.0,))
    simulated = simulate(underway.graph, healthy)
    trace = record(shape, underway.graph, simulated, recorder, Extras(), underway.rng).trace
    counts = set()
    for dp_rank in (0, 1):
        rows = (trace.optype == OP_CODES["backward-compute"]) & (trace.dp_rank == dp_rank)
        rows &= trace.stage == 0
        order = np.argsort(trace.start_s[rows])
        for numbers in (trace.seq_id[rows][order], trace.mb_id[rows][order]):
            assert numbers.tolist() == list(range(numbers.size))
        counts.add(int(rows.sum()))
    assert 8 in counts
    assert len(counts) == 2


def test_an_idle_gap_costs_its_part_of_the_step():
    underway = job_underway(Shape(2, 2, 4), steps=6)
    healthy = durations(underway.graph, 2, 6, is_continuous=True)
    without_s = simulate(underway.graph, healthy).step_s
    drawn = by_design.idle_gap(underway)
    idle = healthy.copy()
    drawn.change(idle, Extras())
    more_s = (idle.gap - healthy.gap).mean()
    assert simulate(underway.graph, idle).step_s - without_s == pytest.approx(more_s, rel=0.02)


def test_first_steps_are_left_out_of_the_mean_step():
    ends = np.array([10.0, 12.0, 14.0]).reshape(3, 1, 1)
    assert Simulated(ends, ends, is_continuous=True).step_s_after(1) == 2.0
    assert Simulated(ends, ends, is_continuous=False).step_s_after(1) == 13.0


def test_evaluations_have_numbers_of_their_own():
    shape = Shape(1, 2, 4, gradients="none")
    graph = build_graph(shape)
    simulated = simulate(graph, durations(graph, 1, 3, is_continuous=True))
    recorder = Recorder(True, False, 10, (0.0,), (0.0,))
    rng = np.random.default_rng(SEED)
    window = record(shape, graph, simulated, recorder, Extras(evaluations=(1,)), rng)
    assert window.steps == (10, 12, 13)
    assert [(skipped.step, skipped.kind) for skipped in window.skipped] == [(11, "eval")]
    assert np.unique(window.trace.step).tolist() == [10, 12, 13]


def said(job, *observations, causes=()):
    found = [finding(cause, culprits=culprits, onset_step=None) for cause, culprits in causes]
    result = replace_observations(window_result(findings=found), observations)
    return judge(job, result, 0.0)


def replace_observations(result, observations):
    fields = {name: getattr(result, name) for name in result.__struct_fields__}
    return type(result)(**fields | {"observations": tuple(observations)})


def test_a_fact_is_right_with_its_share_and_without_a_cause():
    job = draw_job(_of_kind(SEED, "idle-gap", 0))
    (truth,) = job.faults
    job = replace(job, faults=(replace(truth, cost=0.05),))
    right = ObservationRecord(kind="idle-between-steps", share=0.065, sentence="")
    far = ObservationRecord(kind="idle-between-steps", share=0.08, sentence="")
    other = ObservationRecord(kind="uneven-microbatches", share=0.05, sentence="")
    assert [said(job, each).outcome for each in (right, far, other)] == [
        "right",
        "missed",
        "missed",
    ]
    assert said(job, right, causes=[("data-loading", [])]).outcome == "wrong"
    short = replace(job, faults=(replace(truth, cost=0.025),))
    assert said(short).outcome == "right"


def test_named_replicas_of_uneven_counts_are_innocents():
    job = draw_job(_of_kind(SEED, "uneven-counts", 0))
    fact = ObservationRecord(kind="uneven-microbatches", share=None, sentence="")
    assert said(job, fact).outcome == "right"
    named = said(job, fact, causes=[("silent-worker", [Culprit(0, 0)])])
    assert (named.outcome, named.has_innocents, named.is_counted) == ("wrong", True, True)


def test_a_rank_that_goes_silent_is_the_answer():
    job = draw_job(_of_kind(SEED, "silent-since", 0))
    (fault,) = job.faults
    ((dp_rank, stage),) = fault.truth.guilty
    right = said(job, causes=[("silent-worker", [Culprit(dp_rank, stage)])])
    assert (right.outcome, right.is_counted, right.are_culprits_exact) == ("right", True, True)
    assert said(job).outcome == "missed"


def test_a_family_misses_its_bars_by_one_wrong_job_of_one():
    job = draw_job(_of_kind(SEED, "uneven-counts", 0))
    figures = figures_of([said(job, causes=[("silent-worker", [Culprit(0, 0)])])])
    assert figures["families"]["missed_bars"] == [
        "families: wrong_names",
        "families: right",
        "families: right: uneven-counts",
    ]


def test_a_healthy_kind_has_no_false_cause_where_a_long_stage_is_named():
    job = draw_job(_of_kind(SEED, "healthy-uneven-stages", 0))
    longer = sorted(job.faults[0].truth.guilty)[0][1]
    verdicts = [said(job), said(job, causes=[("stage-imbalance", [Culprit(stage=longer)])])]
    assert figures_of(verdicts)["healthy_kinds"]["false_causes"] == 0
    false = figures_of([said(job, causes=[("gc-pause", [])])] * 3)["healthy_kinds"]
    assert (false["false_causes"], false["missed_bars"]) == (3, ["healthy kinds: false causes"])


def test_families_are_no_part_of_the_final_jobs():
    assert not set(IN_TURN) & {*FAMILIES, *HEALTHY_KINDS}
    assert IN_TURN[-1] == "slow-gpu-silent-rank"
    assert len(IN_TURN) == 43
    assert set(ALL_KINDS) >= {*FAMILIES, *HEALTHY_KINDS, *IN_TURN}


@pytest.mark.nightly
@pytest.mark.parametrize("kind", [*FAMILIES, *HEALTHY_KINDS])
def test_a_family_is_drawn_the_same_again(kind):
    job, again = (draw_job(_of_kind(SEED, kind, 3)) for _ in range(2))
    assert job.faults == again.faults
    assert job.window is not None
    assert again.window is not None
    assert np.array_equal(job.window.trace.duration_s, again.window.trace.duration_s)
