"""Faults: true costs that can be worked by hand, and answers that name whom the fault befalls."""

from dataclasses import replace

import numpy as np
import pytest

from app.trace.ops import OP_CODES
from benchmarks.strangers.drawn_jobs import JobNumber, draw_job
from benchmarks.strangers.faults import (
    everybody,
    fault,
    in_time,
    network,
    placed_sequences,
    stages,
)
from benchmarks.strangers.faults.kinds import KINDS
from benchmarks.strangers.graph import BACKWARD, FORWARD, build_graph
from benchmarks.strangers.noise import Base, Noise
from benchmarks.strangers.recording import Extras
from benchmarks.strangers.scoring import judge
from benchmarks.strangers.shape import Shape
from benchmarks.strangers.simulation import simulate
from tests.results import finding, window_result

SEED = 5


def job_underway(shape, steps=20):
    rng = np.random.default_rng(SEED)
    graph = build_graph(shape)
    base = Base.draw(shape, rng)
    quiet = Noise(0.0).durations(shape, graph, base, steps, rng, is_continuous=True)
    return fault.JobUnderway(shape, graph, base, steps, rng, has_loader=False), quiet


def test_doubled_computations_of_a_lone_worker_cost_their_share_of_the_step():
    shape = Shape(1, 1, 4, gradients="none", has_clip=False, has_small_reductions=False)
    underway, quiet = job_underway(shape)
    quiet.launch[:] = 0
    quiet.gap[:] = 0
    slow = quiet.copy()
    slow.own[:, underway.graph.of(FORWARD, BACKWARD)] *= 2
    usual_s, slow_s = (simulate(underway.graph, each).step_s for each in (quiet, slow))
    computing_s = quiet.own[:, underway.graph.of(FORWARD, BACKWARD)].sum() / underway.num_steps
    assert (slow_s - usual_s) / slow_s == pytest.approx(computing_s / (usual_s + computing_s))


# Of stages of growing weight the lighter half is not to be named, though it is changed; of a run's
# first steps nobody is; and of a pause not those that wait for it.
NOT_ALL_NAMED = ("heavier-stages", "warm-up", "hidden-pause")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith(NOT_ALL_NAMED)])
def test_durations_outside_the_guilty_workers_stay_as_they_are(kind):
    shape = Shape(8, 4, 8, 2, tp=2, ep=2, schedule="interleaved", gpus_per_host=8)
    underway, quiet = job_underway(shape)
    drawn = KINDS[kind].draw(underway)
    durations = quiet.copy()
    drawn.change(durations, Extras())
    # A shared transfer is as slow for the healthy side.
    ops = ~underway.graph.is_communication
    changed = (durations.own != quiet.own) | (durations.launch != quiet.launch)
    _, at, dp_ranks = np.nonzero(changed[:, ops])
    places = set(zip(dp_ranks.tolist(), underway.graph.stage[ops][at].tolist(), strict=True))
    assert places <= drawn.truth.guilty


def test_slow_card_of_a_host_leaves_transfers_inside_the_host_alone():
    shape = Shape(8, 2, 4, gpus_per_host=8)
    underway, quiet = job_underway(shape)
    workers = shape.workers_of_host(0)
    assert workers == fault.workers_of_stage(shape, 0)
    change = network.slow_transfers(underway, workers, 3.0, fault.whole(20), host=0)
    durations = quiet.copy()
    change(durations, Extras())
    ratio = durations.own / quiet.own
    of = underway.graph.of
    assert np.allclose(ratio[:, of(OP_CODES["forward-send"])], 3.0)
    assert np.allclose(ratio[:, of(OP_CODES["grads-reduce-scatter"])], 1.0)


def test_a_host_of_all_replicas_of_a_stage_may_be_called_a_long_stage():
    underway, _ = job_underway(Shape(4, 2, 4, gpus_per_host=4))
    assert stages.slow_host("slow-host")(underway).truth.causes == {
        "slow-worker",
        "stage-imbalance",
    }
    underway, _ = job_underway(Shape(4, 2, 4, gpus_per_host=2))
    assert stages.slow_host("slow-host")(underway).truth.causes == {"slow-worker"}


@pytest.mark.parametrize("course", [fault.since, fault.recovered])
def test_onset_and_end_lie_inside_of_the_window(course):
    drawn = course(24, np.random.default_rng(SEED))
    on = np.flatnonzero(drawn.strength)
    assert drawn.onset == on[0] >= 4
    assert (drawn.end or 24) == on[-1] + 1


def test_a_silent_rank_is_healthy_and_without_a_row():
    job = draw_job(JobNumber(SEED, "single", 2, ("slow-gpu-silent-rank",)))
    assert len(job.silent) == 1
    assert not job.silent & job.faults[0].truth.guilty
    assert job.window is not None or job.refusal


LONE_STAGE = Shape(
    2, 1, 4, gradients="plain", has_gathers=False, has_clip=False, has_small_reductions=False
)


def changed_by(kind, shape, steps=24):
    """The fault of a kind, and the ratios [steps, ops, dp ranks] of durations with and without."""
    underway, quiet = job_underway(shape, steps)
    drawn = KINDS[kind].draw(underway)
    durations = quiet.copy()
    drawn.change(durations, Extras())
    return underway, quiet, durations, drawn


def test_one_document_of_a_whole_context_has_as_many_times_the_squares_as_there_are_documents():
    squares = placed_sequences._squares
    assert squares(1.0, 8) == 8 * squares(0.0, 8) == everybody.CONTEXT**2


def test_only_one_microbatch_is_long_in_its_forward_and_backward_alike():
    underway, quiet, durations, drawn = changed_by("last-microbatch", LONE_STAGE)
    graph, ratio = underway.graph, durations.own / quiet.own
    long = np.unique(np.nonzero(ratio > 1.0001)[1])
    assert sorted(graph.optype[long]) == [FORWARD, BACKWARD]
    assert np.unique(graph.mb[long]).size == 1
    assert np.allclose(ratio[:, long[0]], ratio[:, long[1]])
    # Replicas meet once a step: the longest one's time is what all lose.
    more_s = (durations.own - quiet.own)[:, long].sum(axis=1).max(axis=1).mean()
    with_s, without_s = (simulate(graph, each).step_s for each in (durations, quiet))
    assert with_s - without_s == pytest.approx(more_s, rel=1e-6)
    assert drawn.truth.causes == {"sequence-imbalance"}


def test_optimizer_of_one_stage_is_long_on_all_of_its_replicas():
    underway, quiet, durations, drawn = changed_by("stage-optimizer", Shape(3, 4, 4))
    _, ops, dp_ranks = np.nonzero(durations.own != quiet.own)
    assert {underway.graph.optype[op] for op in ops} == {OP_CODES["optimizer"]}
    (stage,) = {underway.graph.stage[op] for op in ops}
    assert set(dp_ranks) == {0, 1, 2}
    assert drawn.truth.culprits == (fault.workers_of_stage(underway.shape, stage),)


def test_hot_expert_takes_its_tokens_from_the_other_ranks_of_its_block():
    shape = Shape(8, 2, 4, ep=4)
    underway, quiet, durations, drawn = changed_by("hot-expert-stays", shape)
    ratio = durations.own / quiet.own
    forwards = underway.graph.of(FORWARD)
    of_place = {(d, p) for d, p in drawn.truth.guilty}
    (stage, *_) = {p for _, p in of_place}
    loads = ratio[:, forwards & (underway.graph.stage == stage)][:, 0]
    assert np.allclose(loads.reshape(-1, 2, 4).mean(axis=2), 1.0, atol=0.1)
    hot = loads[:, :4].argmax(axis=1)
    assert np.array_equal(hot, loads[:, 4:].argmax(axis=1))  # copies of one expert
    assert 1 <= np.count_nonzero(np.diff(hot)) < underway.num_steps / 2


def test_slow_every_k_is_slow_in_equal_distances():
    _, quiet, durations, _ = changed_by("slow-every-k", LONE_STAGE)
    steps = np.flatnonzero((durations.own > quiet.own).any(axis=(1, 2)))
    (period,) = set(np.diff(steps).tolist())
    assert 2 <= period <= 8


@pytest.mark.parametrize("stopped", sorted(set(in_time.STOPPED)))
def test_huge_stops_add_what_they_last_to_the_job(stopped, monkeypatch):
    monkeypatch.setattr(in_time, "STOPPED", (stopped,))
    underway, quiet = job_underway(LONE_STAGE)
    drawn = KINDS["few-huge-stops"].draw(underway)
    durations = quiet.copy()
    drawn.change(durations, Extras())
    more = [
        np.sum(np.max(np.atleast_3d(getattr(durations, name) - getattr(quiet, name)), axis=(1, 2)))
        for name in ("own", "launch", "gap")
    ]
    with_s, without_s = (simulate(underway.graph, each).step_s for each in (durations, quiet))
    assert (with_s - without_s) * underway.num_steps == pytest.approx(sum(more), rel=1e-6)
    steps = np.flatnonzero(
        ((durations.own != quiet.own) | (durations.launch != quiet.launch)).any(axis=(1, 2))
        | (durations.gap != quiet.gap).any(axis=(1, 2))
    )
    assert 1 <= steps.size <= 4
    assert steps[0] == drawn.truth.onset


def test_warm_up_ends_and_no_cause_is_its_right_answer():
    _, quiet, durations, drawn = changed_by("warm-up", LONE_STAGE)
    slow = np.flatnonzero((durations.own != quiet.own).any(axis=(1, 2)))
    assert slow.tolist() == list(range(int(drawn.words.split()[0])))
    assert 1 <= slow.size <= 6
    job = draw_job(JobNumber(SEED, "single", 0, ("warm-up",)))
    assert job.recorder.first_step == 0
    healthy = judge(job, window_result(findings=[]), 0.0)
    assert (healthy.outcome, healthy.is_counted) == ("right", True)
    named = judge(job, window_result(findings=[finding("gc-pause", onset_step=None)]), 0.0)
    assert named.outcome == "wrong"


def test_peers_of_a_pause_wait_in_their_own_computation_until_all_go_on():
    underway, quiet = job_underway(LONE_STAGE)
    drawn = KINDS["hidden-pause-annotated"].draw(underway)
    durations, extras = quiet.copy(), Extras()
    drawn.change(durations, extras)
    rows = extras.interruptions
    assert {row.name for row in rows} == {"gc-pause"}
    assert {(row.dp_rank, 0) for row in rows} == drawn.truth.guilty
    more_s = durations.own - quiet.own
    for row in rows:
        assert more_s[row.step, row.op].min() > 0.9 * row.duration_s
        assert more_s[row.step, row.op, row.dp_rank] == pytest.approx(row.duration_s)
    with_s, without_s = (simulate(underway.graph, each).step_s for each in (durations, quiet))
    paused_s = sum(row.duration_s for row in rows)
    assert (with_s - without_s) * underway.num_steps == pytest.approx(paused_s, rel=0.05)


@pytest.mark.parametrize("seed", range(4))
def test_pauses_after_a_step_delay_the_next_one_and_are_noted_in_either(seed):
    underway, quiet = job_underway(LONE_STAGE)
    underway = replace(underway, rng=np.random.default_rng(seed))
    drawn = KINDS["hidden-pause-after-step"].draw(underway)
    durations, extras = quiet.copy(), Extras()
    drawn.change(durations, extras)
    usual, late = (simulate(underway.graph, each) for each in (quiet, durations))
    paused_s = sum(row.duration_s for row in extras.interruptions)
    assert late.end_s.max() - usual.end_s.max() == pytest.approx(paused_s, rel=0.05)
    assert np.array_equal(durations.own, quiet.own)
    steps = np.flatnonzero((durations.gap > quiet.gap).any(axis=(1, 2)))
    for row in extras.interruptions:
        start_s = late.start_s[row.step, row.op, row.dp_rank] + row.after_s
        end_s = start_s + row.duration_s
        if row.after_s < 0:
            assert row.step in steps
            begun_s = late.start_s[row.step, :, row.dp_rank].min()
            assert end_s == pytest.approx(begun_s, abs=1e-3 * underway.base.forward_s + 1e-3)
        else:
            assert row.step + 1 in steps
            assert start_s == pytest.approx(late.end_s[row.step, :, row.dp_rank].max())


def test_a_host_that_stops_once_begins_late_and_computes_as_fast_as_ever():
    _, quiet, durations, drawn = changed_by("hidden-pause-single", LONE_STAGE)
    (step,), (op,), (dp_rank,) = np.nonzero(durations.launch != quiet.launch)
    assert {(dp_rank, 0)} == drawn.truth.guilty
    assert step == drawn.truth.onset
    steps, ops, waiting = np.nonzero(durations.own != quiet.own)
    assert (set(steps), set(ops), set(waiting)) == ({step}, {op}, {1 - dp_rank})


def test_a_misbound_host_launches_late_and_computes_a_little_longer():
    shape = Shape(4, 2, 4, gpus_per_host=4)
    underway, quiet, durations, drawn = changed_by("numa-misbinding", shape)
    forwards = underway.graph.of(FORWARD)
    for dp_rank, stage in drawn.truth.guilty:
        ops = forwards & (underway.graph.stage == stage)
        ratio = (durations.own / quiet.own)[-1, ops, dp_rank]
        assert np.all((ratio > 1.02) & (ratio < 1.12))
        assert np.all(durations.launch[-1, ops, dp_rank] > quiet.launch[-1, ops, dp_rank])
    assert drawn.truth.causes == {"slow-worker", "late-host", "stage-imbalance"}


def test_three_of_four_ranks_of_a_host_stall():
    shape = Shape(8, 2, 8, gpus_per_host=4)
    drawn = changed_by("part-of-host-stalls", shape)[-1]
    (host,) = {shape.host(*worker) for worker in drawn.truth.guilty}
    assert len(drawn.truth.guilty) == len(shape.workers_of_host(host)) - 1 == 3


@pytest.mark.parametrize("seed", range(5))
def test_each_stop_of_a_loader_is_longer_than_a_step_and_recorded(seed):
    underway, quiet = job_underway(LONE_STAGE)
    underway = replace(underway, rng=np.random.default_rng(seed))
    drawn = KINDS["loader-stop"].draw(underway)
    durations, extras = quiet.copy(), Extras()
    drawn.change(durations, extras)
    usual, late = (simulate(underway.graph, each) for each in (quiet, durations))
    waits_s = [row.duration_s for row in extras.interruptions if row.name == "data-wait"]
    assert min(waits_s) > usual.step_s
    assert late.end_s.max() - usual.end_s.max() == pytest.approx(sum(waits_s), rel=0.01)


def test_a_sample_with_one_pause_has_three_steps_at_most_and_one_row_at_most():
    for index in range(4):
        job = draw_job(JobNumber(SEED, "family", index, ("hidden-pause-sampled",)))
        assert 1 <= job.num_steps <= 3
        assert job.window is not None
        is_noted = np.count_nonzero(job.window.trace.optype == OP_CODES["gc-pause"]) == 1
        (fault_truth,) = job.faults
        assert fault_truth.truth.may_abstain is not is_noted
        assert ("job-stop" in fault_truth.truth.causes) is not is_noted
