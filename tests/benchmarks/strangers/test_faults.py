"""Faults: true costs that can be worked by hand, and answers that name whom the fault befalls."""

import numpy as np
import pytest

from app.trace.ops import OP_CODES
from benchmarks.strangers.drawn_jobs import JobNumber, draw_job
from benchmarks.strangers.faults import fault, hosts, network, stages
from benchmarks.strangers.faults.kinds import KINDS, PAIRS
from benchmarks.strangers.graph import BACKWARD, FORWARD, build_graph
from benchmarks.strangers.noise import LEVELS, Base, Noise
from benchmarks.strangers.recording import Extras
from benchmarks.strangers.shape import Shape
from benchmarks.strangers.simulation import simulate

SEED = 5
TRUTH = fault.Truth("", frozenset(), (), frozenset(), "network")


def job_underway(shape, steps=20, *, has_loader=False):
    rng = np.random.default_rng(SEED)
    graph = build_graph(shape)
    base = Base.draw(shape, rng)
    quiet = Noise(0.0).durations(shape, graph, base, steps, rng, is_continuous=True)
    return fault.JobUnderway(shape, graph, base, steps, rng, has_loader), quiet


def befallen(underway, quiet, drawn):
    """Durations and recorded extras with a fault."""
    durations, extras = quiet.copy(), Extras()
    drawn.change(durations, extras)
    return durations, extras


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


# Of stages of growing weight the lighter half is not to be named, though it is changed.
@pytest.mark.parametrize("kind", [each for each in KINDS if each != "heavier-stages"])
def test_durations_outside_the_guilty_workers_stay_as_they_are(kind):
    shape = Shape(8, 4, 8, 2, tp=2, ep=2, schedule="interleaved", gpus_per_host=8)
    underway, quiet = job_underway(shape)
    drawn = KINDS[kind].draw(underway)
    durations, _ = befallen(underway, quiet, drawn)
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
    durations, _ = befallen(underway, quiet, fault.Fault(TRUTH, change))
    ratio = durations.own / quiet.own
    of = underway.graph.of
    assert np.allclose(ratio[:, of(OP_CODES["forward-send"])], 3.0)
    assert np.allclose(ratio[:, of(OP_CODES["grads-reduce-scatter"])], 1.0)


def test_slow_card_of_a_worker_slows_both_ends_of_its_transfers():
    shape = Shape(2, 3, 4, gpus_per_host=1)
    underway, quiet = job_underway(shape)
    change = network.slow_transfers(underway, frozenset({(1, 2)}), 2.0, fault.whole(20))
    durations, _ = befallen(underway, quiet, fault.Fault(TRUTH, change))
    ratio = (durations.own / quiet.own)[0]
    of, stage = underway.graph.of, underway.graph.stage
    sends = of(OP_CODES["forward-send"])
    assert np.allclose(ratio[sends & (stage == 1)], [1.0, 2.0])
    assert np.allclose(ratio[sends & (stage == 0)], 1.0)
    gradients = of(OP_CODES["grads-reduce-scatter"])
    assert np.allclose(ratio[gradients & (stage == 2)], 2.0)
    assert np.allclose(ratio[gradients & (stage == 1)], 1.0)


def test_a_loader_notes_the_waits_that_it_causes():
    underway, quiet = job_underway(Shape(4, 2, 4), has_loader=True)
    drawn = hosts.data_loading("data-loading-one", of_all=False)(underway)
    durations, extras = befallen(underway, quiet, drawn)
    waited = (durations.launch - quiet.launch).sum()
    assert sum(each.duration_s for each in extras.interruptions) == pytest.approx(waited)
    assert {each.dp_rank for each in extras.interruptions} == {d for d, _ in drawn.truth.guilty}


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


def test_all_kinds_of_pairs_exist_and_are_in_any_job():
    assert {each for pair in PAIRS for each in pair} <= set(KINDS)


def test_annotations_are_numbered_on_their_worker():
    job = draw_job(JobNumber(SEED, "single", 1, ("gc-pauses-annotated",)))
    assert job.window is not None
    trace = job.window.trace
    pauses = np.flatnonzero(trace.optype == OP_CODES["gc-pause"])
    assert pauses.size
    keys = zip(
        trace.step[pauses].tolist(),
        trace.rank[pauses].tolist(),
        trace.seq_id[pauses].tolist(),
        strict=True,
    )
    assert len(set(keys)) == pauses.size


def test_lost_rows_are_missing_from_the_recording():
    job = draw_job(JobNumber(SEED, "single", 2, ("slow-gpu-lost-rows",)))
    assert job.window is not None
    assert len(job.window.steps) + len(job.window.skipped) == job.num_steps


def test_a_silent_rank_is_healthy_and_without_a_row():
    job = draw_job(JobNumber(SEED, "single", 2, ("slow-gpu-silent-rank",)))
    assert len(job.silent) == 1
    assert not job.silent & job.faults[0].truth.guilty
    assert job.window is not None or job.refusal


def test_more_noise_is_wider_at_every_level():
    shape = Shape(4, 2, 4)
    graph = build_graph(shape)
    widths = []
    for scale in LEVELS.values():
        rng = np.random.default_rng(SEED)
        base = Base.draw(shape, rng)
        times = Noise(scale).durations(shape, graph, base, 20, rng, is_continuous=True)
        forwards = np.log(times.own[:, graph.of(FORWARD)])
        widths.append(float((forwards - np.median(forwards, axis=0)).std()))
    assert widths == sorted(widths)
    assert widths[0] < 0.012
    assert widths[-1] > 0.05
