"""cpu-contention: all workers of a host are held up irregularly."""

from dataclasses import replace

import pytest

from app.diagnosis.detectors.stalled_workers import LIMITS, CpuContention
from app.diagnosis.evidence.interruptions import stalls
from app.result.finding import Culprit
from app.synth.cluster import Cluster
from app.synth.costs import OperationCosts
from app.synth.faults.fault import FaultSteps
from app.synth.faults.interruptions import AllocatorStalls, DataLoading, GcPauses
from app.synth.faults.interruptions import CpuContention as BusyHost
from app.synth.faults.slow_compute import SlowHost
from app.synth.noise import HeavyTailed
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

CONTENTION = CpuContention()


def test_the_host_is_named():
    found = suspicion(CONTENTION, job(BusyHost("host-002")))
    assert found.culprits == (Culprit(host="host-002"),)
    assert found.confidence == LIMITS.confidence
    said = fact_of(found)
    assert "both workers of host-002 are held up irregularly" in said
    assert "something else uses the CPUs of this host" in said


def test_a_lone_worker_is_named_by_its_other_operations():
    alone = {"cluster": Cluster(gpus_per_host=1)}
    found = suspicion(CONTENTION, job(BusyHost("host-005"), **alone))
    assert found.culprits == (Culprit(1, 1, "host-005"),)
    assert "the only worker of host-005 is held up" in fact_of(found)
    stalled = ruled_out(CONTENTION, job(AllocatorStalls(((1, 1),), rate=0.3), **alone))
    assert stalled.insufficient
    assert "its memory allocator does the same" in stalled.reason


def test_stops_of_computations_alone_leave_more_doubt():
    # Ranks 8 and 9 are on host-004.
    found = suspicion(CONTENTION, job(AllocatorStalls(((0, 2), (1, 2)), rate=0.3)))
    assert found.culprits == (Culprit(host="host-004"),)
    assert found.confidence < LIMITS.confidence


@pytest.mark.parametrize("pp", [1, 4])
def test_cost_matches_the_counterfactual(pp):
    attributed, real = attributed_and_real_cost(CONTENTION, job(BusyHost("host-001"), pp=pp))
    assert attributed == pytest.approx(real, abs=0.02)


@pytest.mark.parametrize(
    "made",
    [
        job(),
        job(costs=OperationCosts(noise=0.05, tail=HeavyTailed(share=0.1, alpha=1.1))),
        job(AllocatorStalls(((1, 2),))),
        job(DataLoading("host-002", 0.2)),
        job(GcPauses(rate=0.3)),
        job(SlowHost("host-002", 1.5)),
    ],
)
def test_other_causes_and_noise_are_no_contention(made):
    assert ruled_out(CONTENTION, made)


def test_without_hosts_two_successive_ranks_tell_nothing():
    window = replace(job(BusyHost("host-002")).record(range(16)).window(), hosts={})
    found = denied(CONTENTION, case_of(window))
    assert found.insufficient


def test_without_hosts_successive_ranks_that_fill_one_are_named():
    # Ranks 4 to 7 are stage 1.
    made = job(BusyHost("host-001"), cluster=Cluster(gpus_per_host=4))
    found = suspected(CONTENTION, case_of(replace(made.record(range(16)).window(), hosts={})))
    assert found.culprits == (Culprit(stage=1),)
    assert found.confidence <= LIMITS.confidence
    assert "ranks 4 to 7, which would fill one host, are held up irregularly" in fact_of(found)


def test_workers_that_stop_seldom_count_with_the_others_of_their_host():
    # Each alone is hardly beyond chance: some of them are not.
    busy = BusyHost("host-001", rate=0.034)
    made = job(busy, dp=8, cluster=Cluster(gpus_per_host=8), microbatches=6)
    case = case_of(made.record(range(16)).window())
    of_host = [worker for worker, host in case.replay.window.hosts.items() if host == "host-001"]
    is_frequent = stalls(case).is_frequent
    assert 0 < sum(bool(is_frequent[worker]) for worker in of_host) < 6
    found = suspected(CONTENTION, case)
    assert found.culprits == (Culprit(host="host-001"),)


def test_contention_that_ended_has_an_end():
    found = suspicion(CONTENTION, job(BusyHost("host-002", when=FaultSteps(0, 11))), 32)
    assert found.onset.end_step is not None
    assert found.onset.end_step <= 11
