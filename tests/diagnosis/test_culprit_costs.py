"""Culprits beside a far slower one: kept where waiting for them alone would cost, else dropped."""

from dataclasses import replace

from app.diagnosis.detectors.slow_worker import SlowWorker
from app.diagnosis.suspicions import MAX_CULPRITS, drop_cheap_culprits
from app.result.finding import Culprit
from app.synth.cluster import Cluster
from app.synth.costs import OperationCosts
from app.synth.faults.slow_compute import SlowHost
from app.synth.faults.slow_compute import SlowWorker as SlowWorkerFault
from tests.diagnosis import suspects
from tests.diagnosis.jobs import case_of, diagnosed, findings_of, made, window_of


def suspect(*faults, **about):
    """The case, and the slow workers that its detector suspects."""
    case = case_of(window_of(made(*faults, **about)))
    suspicion = suspects.suspected(SlowWorker(), case)
    return case, suspicion


def workers_of(suspicion):
    return [tuple(worker) for worker in suspicion.evidence["workers"]]


def test_two_equally_slow_workers_are_both_kept():
    # Repairing one of them alone would win nothing: everybody still waits for the other.
    case, suspicion = suspect(SlowWorkerFault(2, 1, 1.5), SlowWorkerFault(0, 1, 1.5))
    assert sorted(workers_of(drop_cheap_culprits(case, suspicion))) == [(0, 1), (2, 1)]


def test_worker_with_time_to_spare_is_dropped_beside_one_that_all_wait_for():
    # Stage 0 takes four times as long as the others, which mostly wait for it.
    costs = OperationCosts(stage_factors=(4.0, 1.0, 1.0, 1.0))
    faults = SlowWorkerFault(0, 0, 1.5), SlowWorkerFault(2, 3, 1.15)
    case, suspicion = suspect(*faults, costs=costs, microbatches=16)
    assert sorted(workers_of(suspicion)) == [(0, 0), (2, 3)]
    left = drop_cheap_culprits(case, suspicion)
    assert left.culprits == (Culprit(0, 0, "host-000"),)
    assert workers_of(left) == [(0, 0)]
    assert "dp 2" not in left.fact
    window = window_of(made(*faults, costs=costs, microbatches=16))
    [found] = [each for each in findings_of(diagnosed(window)) if each.cause == "slow-worker"]
    assert found.culprits == (Culprit(0, 0, "host-000"),)


def test_workers_of_a_slow_host_stand_or_fall_together():
    cluster = Cluster(gpus_per_host=4)
    case, suspicion = suspect(SlowHost("host-001", 1.3), dp=8, tp=1, cluster=cluster)
    assert suspicion.parts is not None
    assert suspicion.parts.number == 1
    assert drop_cheap_culprits(case, suspicion) is suspicion


def test_suspicion_with_too_many_culprits_is_left_as_it_is():
    case, suspicion = suspect(SlowWorkerFault(0, 0, 1.5), SlowWorkerFault(2, 3, 1.5))
    assert suspicion.parts is not None
    many = replace(suspicion, parts=replace(suspicion.parts, number=MAX_CULPRITS + 1))
    assert drop_cheap_culprits(case, many) is many
