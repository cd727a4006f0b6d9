"""Whose network is slow: by worker, by host, by clocks that are unknown, or not to be told."""

import dataclasses
import re

import numpy as np
import pytest

from app.diagnosis.detectors.link import FlappingLink, SlowLink
from app.engine.clocks.measure import Clocks
from app.result.finding import Culprit, RuledOut
from app.synth.cluster import Cluster
from app.synth.costs import OperationCosts
from app.synth.faults.fault import FaultSteps
from app.synth.faults.slow_network import FlappingNic, SlowDpGroup, SlowNic
from app.synth.faults.slow_network import SlowLink as LinkFault
from app.synth.noise import HeavyTailed
from tests.diagnosis.jobs import diagnosed, made, only_finding, window_of
from tests.diagnosis.suspects import denied, job, recorded, ruled_out, suspected, suspicion
from tests.diagnosis.windows import case_of
from tests.engine.clocks.skewed_windows import skewed

LINK, FLAP = SlowLink(), FlappingLink()
NUM_STEPS = 24
NOISY = OperationCosts(
    stage_transfer_s=4e-3, transfer_noise=0.15, tail=HeavyTailed(share=0.08, alpha=1.3, cap=None)
)


def of_unknown_hosts(made, skew_s):
    """The case of workers whose clocks are apart, without host names and absolute times."""
    shown = made.record(range(NUM_STEPS)).window()
    nameless = dataclasses.replace(shown, hosts={}, origin_ns=None)
    return case_of(skewed(nameless, skew_s))


@pytest.mark.parametrize("skew_s", [0.5e-3, 10e-3])
def test_with_skewed_clocks_the_slow_link_alone_is_named(skew_s):
    found = suspected(LINK, of_unknown_hosts(job(LinkFault(1, 1, 6.0)), skew_s))
    assert found.culprits == (Culprit(1, 1), Culprit(1, 2))
    assert found.evidence["times_as_long"] == pytest.approx(6.0, rel=0.05)


@pytest.mark.parametrize("detector", [LINK, FLAP])
@pytest.mark.parametrize("skew_s", [0.5e-3, 10e-3])
def test_healthy_jobs_with_skewed_clocks_have_no_slow_link(detector, skew_s):
    assert isinstance(detector.detect(of_unknown_hosts(job(), skew_s)), RuledOut)


def test_an_effect_below_the_distance_of_ends_cannot_be_told():
    case = recorded(job(LinkFault(dp_rank=1, stage=1, slowdown=6.0)))
    unsure = dataclasses.replace(case.replay, clocks=Clocks(apart_s=0.1))
    found = denied(LINK, dataclasses.replace(case, replay=unsure))
    assert found.insufficient
    assert found.reason.endswith(
        "the workers' clocks are unknown: ends that belong together are 200 ms apart"
    )


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("skew_s", [0.0, 5e-3])
def test_two_bad_links_of_the_only_replica_mean_their_shared_end(stage, skew_s):
    made = job(FlappingNic(0, stage, 20.0), dp=1, pp=4)
    found = suspected(FLAP, of_unknown_hosts(made, skew_s))
    assert found.culprits == (Culprit(0, stage),)


def test_a_link_slow_since_its_onset_does_not_flap_among_noise():
    made = job(LinkFault(1, 1, 8.0, when=FaultSteps(13)), dp=2, pp=3, costs=NOISY)
    found = suspicion(LINK, made, NUM_STEPS)
    assert found.onset.onset_step == 13
    assert ruled_out(FLAP, made, NUM_STEPS)


def test_with_one_stage_a_large_share_of_collectives_cannot_be_attributed():
    found = ruled_out(LINK, job(SlowNic(3, 0, 600.0), pp=1, dp=8))
    assert found.insufficient
    assert found.figures["network_share"] > 0.8
    assert (
        "of the step; with one stage the data do not show whether a worker's network is slow"
        in found.reason
    )
    assert "the only dp group is as fast" in ruled_out(LINK, job(pp=1, dp=8)).reason


def one_stage_a_host(*faults, pp):
    return job(*faults, dp=4, pp=pp, cluster=Cluster(gpus_per_host=4))


@pytest.mark.parametrize("first_step", [0, 8])
def test_a_host_of_a_whole_stage_is_named_by_the_links_that_it_has_alone(first_step):
    when = FaultSteps(first_step)
    faults = [LinkFault(dp, stage, 8.0, when=when) for dp in range(4) for stage in (0, 1)]
    found = suspicion(LINK, one_stage_a_host(*faults, pp=4))
    assert found.culprits == (Culprit(host="host-001"),)


def test_of_two_hosts_the_slow_network_is_not_known():
    faults = [LinkFault(dp, 0, 8.0, when=FaultSteps(8)) for dp in range(4)]
    found = ruled_out(LINK, one_stage_a_host(*faults, pp=2))
    assert found.insufficient
    assert "which of the two hosts' networks is slow is not known" in found.reason
    always = [dataclasses.replace(each, slowdown=90.0, when=FaultSteps()) for each in faults]
    same = ruled_out(LINK, one_stage_a_host(*always, pp=2))
    assert same.insufficient
    assert "all links between hosts end at host-000 and host-001" in same.reason


@pytest.mark.parametrize(
    "faults",
    [
        [LinkFault(1, 1, 80.0, when=FaultSteps(0, 3))],
        [SlowDpGroup(stage, 90.0, when=FaultSteps(0, 2)) for stage in range(4)],
    ],
    ids=["link", "every dp group"],
)
@pytest.mark.parametrize("detector", [LINK, FLAP])
def test_slow_first_steps_of_a_run_set_up_connections(faults, detector):
    assert isinstance(detector.detect(recorded(job(*faults), NUM_STEPS)), RuledOut)


def test_a_culprit_whose_repair_wins_nothing_is_not_named_beside_another():
    costly, cheap = FlappingNic(1, 1, 60.0), FlappingNic(3, 3, 2.0)
    alone = suspicion(FLAP, job(costly), 40)
    assert suspicion(FLAP, job(costly, cheap), 40).culprits == alone.culprits
    both = suspicion(FLAP, job(costly, dataclasses.replace(cheap, slowdown=50.0)), 40)
    assert {(each.dp_rank, each.stage) for each in both.culprits} == {(1, 1), (3, 3)}


def test_slow_transfers_are_repaired_in_counted_steps_only():
    warm_up = [SlowDpGroup(stage, 90.0, when=FaultSteps(0, 2)) for stage in range(4)]
    case = recorded(job(LinkFault(1, 1, 6.0), *warm_up), NUM_STEPS)
    found = suspected(LINK, case)
    assert found.culprits[0].stage == 1
    assert found.repair is not None
    [group] = case.replay.groups
    repaired = found.repair(group)
    changed = repaired.duration_s != group.durations.recorded_s[repaired.rows]
    assert not changed.reshape(len(changed), -1, NUM_STEPS)[..., :2].any()
    assert np.isin(range(2, NUM_STEPS), found.evidence["steps"]).all()


def test_each_slow_link_has_a_clause_and_a_ratio_of_its_own():
    window = window_of(made(LinkFault(0, 1, 30.0), LinkFault(2, 1, 15.0)))
    sentence = only_finding(diagnosed(window)).sentence
    one, other, _ = sentence.split("; ")
    assert "(dp 0, stage 1)" in one
    assert "(dp 0, stage 2)" in one
    assert "dp 2" not in one
    assert "(dp 2, stage 1)" in other
    ratios = [float(re.findall(r"take ([\d.]+)x", each)[0]) for each in (one, other)]
    assert ratios == pytest.approx([30, 15], rel=0.05)
