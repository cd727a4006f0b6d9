import dataclasses

import numpy as np
import pytest

from app.diagnosis.detectors.link import SlowLink
from app.result.finding import Culprit, RuledOut
from app.synth.cluster import Cluster
from app.synth.costs import OperationCosts
from app.synth.faults.fault import FaultSteps
from app.synth.faults.slow_compute import SlowWorker
from app.synth.faults.slow_network import FlappingNic, SlowDpGroup, SlowNic
from app.synth.faults.slow_network import SlowLink as LinkFault
from app.synth.noise import HeavyTailed, Pareto
from tests.diagnosis.suspects import (
    attributed_and_real_cost,
    fact_of,
    job,
    ruled_out,
    suspected,
    suspicion,
    two_stages,
)
from tests.diagnosis.windows import case_of
from tests.window_factory import replicas, window

LINK = SlowLink()


def test_repair_of_one_slow_link_by_hand():
    # Three replicas of 0.1 s, a fourth one of 0.5 s, in each of eight steps.
    rows = replicas(two_stages([0.1] * 8), 3)
    rows += [row.on(dp_rank=3) for row in two_stages([0.5] * 8)]
    case = case_of(window(rows, dp_size=4, pp_size=2))
    found = suspected(LINK, case)
    assert found.culprits == (Culprit(3, 0), Culprit(3, 1))
    assert found.evidence["times_as_long"] == pytest.approx(5.0)
    assert found.evidence["share_slow"] == 1.0  # of those in the worse direction
    assert found.repair is not None
    [group] = case.replay.groups
    repaired = found.repair(group)
    assert [group.template.name(row) for row in repaired.rows] == ["forward-send", "forward-recv"]
    assert repaired.duration_s == pytest.approx(np.full((2, 32), 0.1))
    # Blame transfer, never wait: the recv is posted 1 s before.
    assert group.grid.duration_s[repaired.rows[1], 0] == pytest.approx(1.1)


def test_a_slow_pair_has_both_ends_as_culprits():
    found = suspicion(LINK, job(LinkFault(dp_rank=1, stage=1, slowdown=6.0)))
    assert found.culprits == (Culprit(1, 1, "host-002"), Culprit(1, 2, "host-004"))
    assert found.evidence["workers"] == [[1, 1], [1, 2]]
    assert fact_of(found) == (
        "Transfers between host-002, rank 5 (dp 1, stage 1) and host-004, rank 9 (dp 1, "
        "stage 2) take 6.0x as long as those of other links, in both directions"
    )


def test_workers_of_one_host_have_no_network_to_blame():
    made = job(LinkFault(dp_rank=1, stage=1, slowdown=6.0))
    on_one = dataclasses.replace(made, cluster=Cluster(gpus_per_host=64))
    assert "all workers are on host-000" in ruled_out(LINK, on_one).reason


@pytest.mark.parametrize("stage", range(4))
def test_a_worker_with_all_transfers_slow_is_the_culprit(stage):
    made = job(SlowNic(dp_rank=1, stage=stage, slowdown=6.0))
    found = suspicion(LINK, made)
    assert found.culprits == made.faults[0].culprits(made.world)
    assert {"forward-send", "grads-reduce-scatter"} <= set(found.evidence["optypes"])


def test_a_host_with_all_links_slow_is_one_culprit():
    slow = [SlowNic(dp_rank=dp, stage=1, slowdown=6.0) for dp in (0, 1)]
    found = suspicion(LINK, job(*slow))
    assert found.culprits == (Culprit(host="host-002"),)


def test_slow_collectives_alone_name_the_stage():
    found = suspicion(LINK, job(SlowDpGroup(stage=1, slowdown=12.0)))
    assert found.culprits == (Culprit(stage=1),)
    assert found.evidence["only_collectives"]
    assert "no single worker can be named" in fact_of(found)


def test_with_one_stage_a_collective_is_compared_with_other_steps():
    late = SlowNic(dp_rank=1, stage=0, slowdown=12.0, when=FaultSteps(8))
    found = suspicion(LINK, job(late, pp=1))
    assert found.culprits == (Culprit(stage=0),)
    assert found.onset.onset_step == 8
    assert "do not show whose network is slow" in fact_of(found)
    always = ruled_out(LINK, job(dataclasses.replace(late, when=FaultSteps()), pp=1))
    assert always.insufficient


NOISY = OperationCosts(stage_transfer_s=4e-3, transfer_noise=0.14)


def test_of_two_links_the_slow_one_is_found():
    # With itself among those it is compared with, half of all transfers would be slow by chance.
    made = job(LinkFault(0, 0, 40.0), dp=2, pp=2, microbatches=1, costs=NOISY)
    found = suspicion(LINK, made, 8)
    assert [(each.dp_rank, each.stage) for each in found.culprits] == [(0, 0), (0, 1)]
    assert ruled_out(LINK, dataclasses.replace(made, faults=()), 8)


def test_a_worker_with_all_links_gives_insufficient_evidence():
    found = ruled_out(LINK, job(SlowNic(0, 1, 90.0), dp=1, pp=3, costs=NOISY))
    assert found.insufficient
    assert "all links of a kind end at one worker" in found.reason
    assert not ruled_out(LINK, job(dp=2, pp=3)).insufficient


@pytest.mark.parametrize("first", [6, 10])
def test_a_worker_with_all_links_is_named_when_they_slow_down(first):
    found = suspicion(
        LINK, job(SlowNic(0, 1, 3.0, when=FaultSteps(first)), dp=1, pp=3, microbatches=2)
    )
    assert found.culprits[0].stage == 1
    assert found.onset.onset_step == first


def test_a_dp_group_with_more_data_is_dropped_beside_a_slow_link():
    link = LinkFault(dp_rank=0, stage=2, slowdown=40.0)
    alone = suspicion(LINK, job(link))
    assert suspicion(LINK, job(link, SlowDpGroup(1, 1.8))).culprits == alone.culprits
    both = suspicion(LINK, job(link, SlowDpGroup(1, 200.0)))
    assert set(both.culprits) == {*alone.culprits, Culprit(stage=1)}


@pytest.mark.parametrize(
    "fault",
    [
        LinkFault(dp_rank=1, stage=1, slowdown=6.0),
        LinkFault(dp_rank=2, stage=0, slowdown=4.0, when=FaultSteps(6)),
        SlowNic(dp_rank=1, stage=0, slowdown=6.0),
        SlowDpGroup(stage=1, slowdown=12.0),
    ],
    ids=["link", "late link", "card", "dp group"],
)
def test_cost_matches_the_counterfactual(fault):
    attributed, real = attributed_and_real_cost(LINK, job(fault))
    assert attributed == pytest.approx(real, abs=0.005)


def test_onset_is_the_first_slow_step_and_the_end_is_found():
    late = suspicion(LINK, job(LinkFault(dp_rank=1, stage=1, slowdown=6.0, when=FaultSteps(6))))
    assert (late.onset.onset_step, late.onset.persistence) == (6, "chronic")
    over = suspicion(LINK, job(LinkFault(dp_rank=1, stage=1, slowdown=6.0, when=FaultSteps(4, 5))))
    assert (over.onset.onset_step, over.onset.persistence) == (4, "transient")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("tail", [Pareto(), HeavyTailed(share=0.05, alpha=1.2)])
def test_healthy_transfer_noise_is_no_slow_link(tail, seed):
    costs = OperationCosts(stage_transfer_s=4e-3, transfer_noise=0.1, tail=tail)
    assert ruled_out(LINK, job(costs=costs, seed=seed))


@pytest.mark.parametrize(
    "made",
    [
        job(SlowWorker(dp_rank=1, stage=1, slowdown=3.0)),
        job(FlappingNic(dp_rank=1, stage=1, slowdown=20.0)),
        job(cluster=Cluster(gpus_per_host=2, clock_offset_s=1.0, drift_ppm=200, jitter_s=50e-6)),
        job(dp=1, pp=1),
        job(dp=1, pp=2),
    ],
    ids=["slow worker", "flapping", "clocks", "alone", "one link"],
)
def test_other_causes_are_no_slow_link(made):
    assert ruled_out(LINK, made)


def test_a_uniformly_slow_network_has_no_slow_link():
    every = [LinkFault(dp_rank=dp, stage=p, slowdown=6.0) for dp in range(4) for p in range(3)]
    assert ruled_out(LINK, job(*every))


def test_links_between_hosts_are_not_compared_with_those_within():
    # Stages 0 and 1 share a host, and exchange what they have in a tenth of the time.
    base = job(dp=2, cluster=Cluster(gpus_per_host=4)).record(range(8)).window()
    hosts = {(dp, stage): f"host-{dp}-{stage // 2}" for dp in range(2) for stage in range(4)}
    near = (base.trace.stage < 2) & np.isin(base.trace.optype, [4, 5, 6, 7])
    assert near.any()
    known = dataclasses.replace(base, hosts=hosts)
    assert isinstance(LINK.detect(case_of(known)), RuledOut)
