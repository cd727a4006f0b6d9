from dataclasses import replace

import numpy as np
import pytest

from app.diagnosis.detectors.stalled_workers import AllocatorStall, CpuContention
from app.result.finding import Culprit
from app.synth.cluster import Cluster
from app.synth.costs import OperationCosts
from app.synth.faults.fault import FaultSteps
from app.synth.faults.interruptions import AllocatorStalls, DataLoading, GcPauses, PlannedGc
from app.synth.faults.slow_compute import SlowWorker, ThrottlingGpu
from app.synth.noise import HeavyTailed, Pareto
from app.synth.normal_variation import SpecialSteps
from app.synth.schedules import SCHEDULES
from app.trace.job import Parallelism
from tests.diagnosis.suspects import (
    attributed_and_real_cost,
    denied,
    fact_of,
    job,
    ruled_out,
    suspected,
    suspicion,
)
from tests.diagnosis.windows import case_of

STALL = AllocatorStall()


def test_few_stalled_workers_are_named():
    found = suspicion(STALL, job(AllocatorStalls(workers=((1, 2), (3, 0)))))
    assert found.culprits == (Culprit(1, 2, "host-004"), Culprit(3, 0, "host-001"))
    assert found.evidence["workers"] == [[1, 2], [3, 0]]
    assert found.evidence["usual_share"] == 0.0
    assert "host-001, rank 3 (dp 3, stage 0) stop for a while in" in fact_of(found)
    assert "forward and backward, whatever their length" in fact_of(found)


def test_stops_before_computations_are_delays_and_stops_inside_them_durations():
    made = job(AllocatorStalls(workers=((1, 2),), stall_s=0.1))
    case = case_of(made.record(range(16)).window())
    found = suspected(STALL, case)
    assert found.repair is not None
    assert found.delays is not None
    [group] = case.replay.groups
    repaired, late = found.repair(group), found.delays(group)
    for each in (repaired, late):
        assert set(group.template.stage[each.rows].tolist()) == {2}
        assert {group.template.name(row) for row in each.rows} == {
            "forward-compute",
            "backward-compute",
        }
    own_s = group.durations.recorded_s[repaired.rows]
    lanes = np.flatnonzero((repaired.duration_s != own_s).any(axis=0))
    assert set((lanes // 16).tolist()) == {1}
    assert (repaired.duration_s <= own_s).all()
    assert set((np.flatnonzero(late.duration_s.any(axis=0)) // 16).tolist()) == {1}
    assert late.duration_s.min() >= 0.0


@pytest.mark.parametrize("pp", [1, 4])
def test_cost_matches_the_counterfactual(pp):
    made = job(AllocatorStalls(workers=((1, pp - 1),), stall_s=0.1), pp=pp)
    attributed, real = attributed_and_real_cost(STALL, made)
    assert attributed == pytest.approx(real, abs=0.01)


def test_onset_of_a_stall_is_the_first_stop():
    assert (
        suspicion(
            STALL, job(AllocatorStalls(workers=((1, 2),), when=FaultSteps(8)))
        ).onset.onset_step
        == 8
    )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("tail", [Pareto(), HeavyTailed(), HeavyTailed(share=0.1, alpha=1.1)])
def test_heavy_tails_of_all_workers_are_no_stall(tail, seed):
    assert ruled_out(STALL, job(costs=OperationCosts(noise=0.05, tail=tail), seed=seed))


@pytest.mark.parametrize(
    "made",
    [
        job(),
        job(SlowWorker(dp_rank=1, stage=1, slowdown=2.0)),
        job(SlowWorker(dp_rank=1, stage=1, slowdown=2.0, when=FaultSteps(8))),
        job(SlowWorker(dp_rank=1, stage=1, slowdown=2.0, when=FaultSteps(5, 3))),
        job(ThrottlingGpu(dp_rank=1, stage=1, slowdown=2.0)),
        job(GcPauses(rate=0.5, workers=((1, 1),))),
        job(GcPauses(rate=0.3)),
        job(DataLoading(host="host-000")),
        job(
            parallelism=Parallelism(4, 4, vpp_size=2),
            schedule=SCHEDULES["interleaved"],
            costs=OperationCosts(chunk_factors=(1.0,) * 7 + (2.2,), noise=0.03),
        ),
        job(odd_steps=SpecialSteps(num_first=2, evaluate_every=5, checkpoint_every=6)),
        job(costs=OperationCosts(launch_delay_s=5e-3)),
        job(dp=1, pp=1),
    ],
)
def test_other_causes_are_no_stall(made):
    assert ruled_out(STALL, made)


def test_two_stalled_workers_of_a_small_job_are_both_named():
    found = suspicion(STALL, job(AllocatorStalls(workers=((0, 1),), rate=0.3), dp=2, pp=2))
    assert found.culprits == (Culprit(0, 1, "host-001"),)


@pytest.mark.parametrize("seed", [25, 58])  # in which one of its backwards is long as well
def test_pauses_and_one_long_backward_are_no_stalls(seed):
    costs = OperationCosts(noise=0.03, tail=HeavyTailed(share=0.01, alpha=1.2))
    pauses = GcPauses(rate=0.9, workers=((1, 1),))
    assert ruled_out(STALL, job(pauses, dp=8, costs=costs, seed=seed), 8)


def test_stops_of_all_workers_hide_no_stalls():
    stalls = AllocatorStalls(workers=((1, 2), (3, 0)), rate=0.15)
    made = job(PlannedGc(every_steps=2, pause_s=0.2, in_forward=True), stalls)
    found = suspicion(STALL, made)
    assert found.culprits == (Culprit(1, 2, "host-004"), Culprit(3, 0, "host-001"))
    assert found.evidence["usual_share"] == 0.0


def test_several_workers_of_one_host_and_none_elsewhere_may_be_its_doing():
    hosts = {"cluster": Cluster(gpus_per_host=8)}
    stalled = AllocatorStalls(((0, 0), (2, 0), (1, 1)), rate=0.3)
    found = ruled_out(STALL, job(stalled, dp=4, pp=8, **hosts))
    assert found.insufficient
    assert "3 workers of one host stop irregularly" in found.reason
    apart = AllocatorStalls(((0, 0), (2, 3), (1, 6)), rate=0.3)
    assert len(suspicion(STALL, job(apart, dp=4, pp=8, **hosts)).culprits) == 3


@pytest.mark.parametrize("pp", [2, 4])
@pytest.mark.parametrize("are_hosts_known", [True, False])
def test_a_worker_of_the_stage_that_goes_on_is_not_named_with_those_that_stall(pp, are_hosts_known):
    # All four workers of the first stage are on one host, and it stops only three of them.
    stalled = AllocatorStalls(((0, 0), (1, 0), (2, 0)), rate=0.2, stall_s=0.15)
    made = job(stalled, dp=4, pp=pp, cluster=Cluster(gpus_per_host=4))
    window = made.record(range(16)).window()
    case = case_of(window if are_hosts_known else replace(window, hosts={}))
    found = suspected(STALL, case)
    assert [(culprit.dp_rank, culprit.stage) for culprit in found.culprits] == [*stalled.workers]
    assert denied(CpuContention(), case)
