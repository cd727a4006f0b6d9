from dataclasses import replace

import numpy as np
import pytest

from app.advice.all_reduce import Network
from app.advice.fix import AdviceCase
from app.advice.replace_worker import replace_worker
from app.advice.straggl_ar import arrivals_s, delays_s, gradient_all_reduces, last_ranks, straggl_ar
from app.engine.replays import prepare
from app.synth.cluster import Cluster
from app.synth.costs import OperationCosts
from app.synth.faults.slow_compute import SlowWorker
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from tests.advice.cases import NUM_STEPS, case_of, fix_of, refusal_of
from tests.harness.ddp_jobs import ddp_window, with_all_reduce, with_straggl_ar

GIB = 1 << 30
# 10 us and 20 GiB/s: a ring of 8 takes 87.6 ms for 1 GiB.
SERVER = Cluster(gpus_per_host=64)
NETWORK = Network(1e-5, 1 / (20 * GIB))


def ddp_job(dp: int = 8, pp: int = 1, slowdown: float = 1.3, noise: float = 0.015) -> SimulatedJob:
    """A job whose dp rank 2 computes more slowly on stage 0, so comes last at its all-reduce."""
    costs = OperationCosts(noise=noise)
    job = SimulatedJob(
        Parallelism(dp, pp, 1), 8, costs=costs, faults=(SlowWorker(2, 0, slowdown),), cluster=SERVER
    )
    return with_all_reduce(job, GIB, NETWORK)


def ddp_case(dp: int = 8, pp: int = 1, slowdown: float = 1.3, noise: float = 0.015) -> AdviceCase:
    return case_of(ddp_window(ddp_job(dp, pp, slowdown, noise), range(NUM_STEPS)))


@pytest.fixture(scope="module")
def late():
    return ddp_case()


@pytest.mark.parametrize(("dp", "pp"), [(8, 1), (4, 2), (8, 4), (16, 2)])
def test_prediction_is_what_the_job_takes_with_straggl_ar(dp, pp):
    case = ddp_case(dp, pp)
    fix = fix_of(straggl_ar(case))
    steps = range(NUM_STEPS, 2 * NUM_STEPS)
    after = with_straggl_ar(replace(ddp_job(dp, pp), seed=9), steps, 2, GIB, NETWORK)
    achieved_s = float(prepare(ddp_window(after, steps)).simulated_s.mean())
    assert fix.step_s == pytest.approx(achieved_s, rel=0.005)
    # The same prediction is wrong for the job as it is.
    assert fix.step_s < 0.99 * case.step_s
    assert fix.step_range_s[0] == fix.step_s < fix.step_range_s[1] < case.step_s


def test_delay_that_nearly_pays_is_not_paid_for():
    reason = refusal_of(straggl_ar(ddp_case(slowdown=1.02, noise=0.002))).reason
    limit_s = Network(0.0, NETWORK.beta_s_per_byte).break_even_delay_s(8, GIB)
    assert limit_s is not None
    assert "dp 2 is 9.27 ms behind the others" in reason
    assert reason.endswith(f"pays from {1e3 * limit_s:.0f} ms")


def test_partly_covered_delay_is_predicted(late):
    """Behind by more than the break-even, but by less than the others' reduce-scatter takes."""
    case = ddp_case(slowdown=1.08, noise=0.002)
    fix = fix_of(straggl_ar(case))
    job = replace(ddp_job(slowdown=1.08, noise=0.002), seed=9)
    steps = range(NUM_STEPS, 2 * NUM_STEPS)
    after = with_straggl_ar(job, steps, 2, GIB, NETWORK)
    achieved_s = float(prepare(ddp_window(after, steps)).simulated_s.mean())
    assert fix.step_s == pytest.approx(achieved_s, rel=0.005)
    assert case.step_s - fix.step_s < 0.8 * (late.step_s - fix_of(straggl_ar(late)).step_s)


def test_nothing_is_won_beside_a_fix_that_removes_the_delay(late):
    replaced, reduced = fix_of(replace_worker(late)), fix_of(straggl_ar(late))
    both_s = late.step_s_with(replaced.change, reduced.change)
    assert both_s > replaced.step_s
    assert both_s == pytest.approx(late.step_s_with(reduced.change, replaced.change))


def test_arrivals_are_those_of_the_simulated_step(late):
    (group,) = late.replay.groups
    rows = gradient_all_reduces(group.template)
    arrival_s = arrivals_s(group, rows)
    assert arrival_s.shape == (1, 8, NUM_STEPS)
    # Beside launch delays, the recorded starts say the same.
    start_s = group.grid.start_s[rows].reshape(arrival_s.shape)
    recorded_s = start_s[:, 2] - np.delete(start_s, 2, axis=1).max(axis=1)
    assert delays_s(arrival_s, 2) == pytest.approx(recorded_s, abs=2e-3)
    (last,) = last_ranks(late.replay)
    assert (last.dp_rank, last.share) == (2, 1.0)
    assert last.delay_s == pytest.approx(float(np.median(recorded_s)), abs=1e-3)


def test_without_sizes_they_are_asked_for(late):
    window = late.replay.window
    case = case_of(replace(window, trace=replace(window.trace, bytes=None)))
    found = refusal_of(straggl_ar(case))
    assert "is not known" in found.reason
    assert "bytes=" in found.needs[0].text


def test_sharded_gradients_are_no_all_reduce():
    window = ddp_job().record(range(NUM_STEPS)).window()
    assert "reduce-scattered" in refusal_of(straggl_ar(case_of(window))).reason


def test_changing_last_ranks_cannot_be_planned_for():
    job = with_all_reduce(SimulatedJob(Parallelism(8, 1, 1), 8, cluster=SERVER), GIB, NETWORK)
    found = refusal_of(straggl_ar(case_of(ddp_window(job, range(NUM_STEPS)))))
    assert "no dp rank is always the last" in found.reason
    assert "%" in found.reason


@pytest.mark.parametrize(
    ("dp", "reason"), [(1, "one dp rank"), (2, "two dp ranks"), (6, "powers of two")]
)
def test_numbers_of_ranks_without_a_schedule_are_refused(dp, reason):
    job = with_all_reduce(SimulatedJob(Parallelism(dp, 2, 1), 8, cluster=SERVER), GIB, NETWORK)
    found = refusal_of(straggl_ar(case_of(ddp_window(job, range(NUM_STEPS)))))
    assert reason in found.reason
    assert bool(found.needs) == (dp == 6)


def test_ranks_on_several_hosts_are_refused(late):
    window = late.replay.window
    hosts = {(dp_rank, 0): f"host-{dp_rank // 2}" for dp_rank in range(8)}
    found = refusal_of(straggl_ar(case_of(replace(window, hosts=hosts))))
    assert "on 4 hosts" in found.reason


def test_unknown_hosts_are_asked_for(late):
    found = refusal_of(straggl_ar(case_of(replace(late.replay.window, hosts={}))))
    assert "host=" in found.needs[0].text
