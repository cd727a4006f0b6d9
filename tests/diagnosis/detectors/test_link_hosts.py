"""A host with a slow network: named by placement and by small collectives, or left undecided."""

from dataclasses import replace

import pytest

from app.diagnosis.detectors.link import SlowLink
from app.result.finding import Culprit
from app.synth.cluster import Cluster
from app.synth.costs import OperationCosts
from app.synth.faults.slow_network import SlowDpGroup, SlowNic
from app.synth.faults.slow_network import SlowLink as LinkFault
from app.synth.schedules import Interleaved
from tests.diagnosis.long_collectives import LongCollective
from tests.diagnosis.suspects import denied, fact_of, job, ruled_out, suspected, suspicion
from tests.diagnosis.windows import case_of

LINK = SlowLink()
CLIP, EMBEDDING = "optimizer-clip-main-grad", "embedding-grads-all-reduce"


def without_hosts(made):
    """The job's first steps if its hosts are unknown."""
    window = made.record(range(16)).window()
    return case_of(replace(window, hosts={}))


def slow_stages(*stages, slowdown=9.0, dp=4):
    """Slow links from these stages to the next ones, on all dp ranks."""
    return [LinkFault(rank, stage, slowdown) for rank in range(dp) for stage in stages]


def stage_hosts(*faults, pp, **about):
    """One host a stage."""
    return job(*faults, pp=pp, cluster=Cluster(gpus_per_host=4), **about)


def test_unknown_host_that_has_all_slow_links_is_named():
    found = suspected(LINK, without_hosts(job(*slow_stages(0, 1))))
    assert found.culprits == (Culprit(stage=1),)
    assert "All transfers of stage 1 take 9" in fact_of(found)


def test_slow_links_to_the_first_stage_are_between_two_stages():
    found = suspected(LINK, without_hosts(job(*slow_stages(0))))
    assert found.culprits == (Culprit(stage=0), Culprit(stage=1))
    assert "between stages 0 and 1 on all dp ranks" in fact_of(found)


def test_slow_links_that_placement_may_explain_are_not_named():
    found = denied(LINK, without_hosts(job(*slow_stages(1))))
    assert found.insufficient
    assert "slow links and links between hosts look alike" in found.reason


def test_links_between_unknown_hosts_that_cut_stages_are_not_named():
    # Ranks 0 to 7 and 8 to 11 on two hosts of 8, whose links take 9 times as long.
    faults = [LinkFault(2, 1, 9.0), LinkFault(0, 2, 9.0), LinkFault(1, 2, 9.0)]
    found = denied(LINK, without_hosts(job(*faults, dp=3)))
    assert found.insufficient
    suspected(LINK, without_hosts(job(*faults[:2], dp=3)))


def test_host_between_all_others_is_named_by_small_collectives():
    faults = slow_stages(0, 1, slowdown=20.0)
    costs = OperationCosts(stage_transfer_s=4e-3, embedding_all_reduce_s=2e-4, clip_s=2e-4)
    found = suspicion(LINK, stage_hosts(*faults, LongCollective(CLIP, 20.0), pp=3, costs=costs))
    assert found.culprits == (Culprit(host="host-001"),)


@pytest.mark.parametrize("more", [[], [CLIP, EMBEDDING]], ids=["fast", "all slow"])
def test_host_between_all_others_is_not_named_without_them(more):
    faults = slow_stages(0, 1, slowdown=20.0)
    found = ruled_out(
        LINK, stage_hosts(*faults, *(LongCollective(each, 40.0) for each in more), pp=3)
    )
    assert found.insufficient
    assert "all links between hosts end at host-001" in found.reason


def test_healthy_network_of_few_hosts_is_no_doubt():
    assert not ruled_out(LINK, job(pp=3, dp=2)).insufficient


def test_links_of_the_last_stage_to_the_first_are_compared_with_the_others():
    made = stage_hosts(*slow_stages(2, 3, slowdown=20.0), pp=4, schedule=Interleaved())
    found = suspicion(LINK, replace(made, parallelism=replace(made.parallelism, vpp_size=2)))
    assert found.culprits == (Culprit(host="host-003"),)


def test_dp_group_within_a_host_is_compared_with_those_between_hosts():
    # Stage 0's six ranks are on the first host of 8, the others' are on two.
    about = {"dp": 6, "pp": 3, "cluster": Cluster(gpus_per_host=8)}
    found = suspicion(LINK, job(SlowNic(2, 0, 15.0), **about))
    assert [(each.dp_rank, each.stage) for each in found.culprits] == [(2, 0)]


def test_only_dp_group_between_hosts_is_as_slow_as_its_card():
    about = {"dp": 6, "pp": 2, "cluster": Cluster(gpus_per_host=8)}
    found = suspicion(LINK, job(SlowNic(2, 1, 15.0), **about))
    assert [(each.dp_rank, each.stage) for each in found.culprits] == [(2, 1)]
    other = ruled_out(LINK, job(SlowDpGroup(1, 15.0), **about))
    assert "no link" in other.reason or other.insufficient
