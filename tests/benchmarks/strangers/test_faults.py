"""Faults: true costs that can be worked by hand, and answers that name whom the fault befalls."""

import numpy as np
import pytest

from app.trace.ops import OP_CODES
from benchmarks.strangers.drawn_jobs import JobNumber, draw_job
from benchmarks.strangers.faults import fault, network, stages
from benchmarks.strangers.faults.kinds import KINDS
from benchmarks.strangers.graph import BACKWARD, FORWARD, build_graph
from benchmarks.strangers.noise import Base, Noise
from benchmarks.strangers.recording import Extras
from benchmarks.strangers.shape import Shape
from benchmarks.strangers.simulation import simulate

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


# Of stages of growing weight the lighter half is not to be named, though it is changed.
@pytest.mark.parametrize("kind", [each for each in KINDS if each != "heavier-stages"])
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
