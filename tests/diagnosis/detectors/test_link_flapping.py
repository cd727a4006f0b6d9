from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from app.diagnosis.detector import Suspicion
from app.diagnosis.detectors.link import FlappingLink
from app.diagnosis.network.links import network_transfers
from app.result.finding import Culprit, RuledOut
from app.synth.cluster import Cluster
from app.synth.costs import OperationCosts
from app.synth.faults.fault import FaultSteps
from app.synth.faults.interruptions import GcPauses
from app.synth.faults.slow_network import FlappingNic, SlowLink, SlowNic
from app.synth.noise import HeavyTailed, Pareto
from app.trace.readers.published.trace_files import read
from tests.diagnosis.jobs import window_of
from tests.diagnosis.suspects import (
    attributed_and_real_cost,
    denied,
    fact_of,
    job,
    recorded,
    ruled_out,
    suspected,
    suspicion,
    two_stages,
)
from tests.diagnosis.windows import case_of
from tests.shared_traces import SHARED_TRACES, needs_shared
from tests.window_factory import replicas, window

FLAP = FlappingLink()


@needs_shared
def test_the_published_flapping_link_is_one_workers_card():
    found = suspected(FLAP, case_of(read(Path(SHARED_TRACES) / "trace-flap.parquet")))
    assert found.culprits == (Culprit(3, 2),)
    assert set(found.evidence["optypes"]) == {
        "forward-send",
        "forward-recv",
        "backward-send",
        "backward-recv",
    }


@pytest.mark.parametrize("stage", range(4))
def test_flapping_link_names_the_worker(stage):
    made = job(FlappingNic(dp_rank=1, stage=stage, slowdown=20.0))
    found = suspicion(FLAP, made)
    assert found.culprits == made.faults[0].culprits(made.world)
    assert "now and then take" in fact_of(found)


def test_with_one_stage_collectives_show_a_flapping_link():
    made = job(FlappingNic(dp_rank=1, stage=0, slowdown=20.0, rate=0.8), pp=1)
    found = suspicion(FLAP, made, 40)
    assert found.culprits == (Culprit(stage=0),)


def test_bursts_are_found_among_varying_transfers():
    # So many stray that no step has five times as many slow ones as is typical.
    noisy = OperationCosts(stage_transfer_s=4e-3, transfer_noise=0.13)
    fault = FlappingNic(dp_rank=1, stage=1, slowdown=38.0, rate=0.4)
    made = job(fault, dp=2, pp=2, microbatches=6, costs=noisy)
    found = suspicion(FLAP, made, 20)
    assert Culprit(1, 1, made.world.hosts[1, 1]) in found.culprits
    plain = replace(made, faults=())
    took = [np.concatenate([b.step_s() for b in each.blocks(range(20))]) for each in (made, plain)]
    slowed = np.flatnonzero(took[0] > 1.1 * took[1])
    assert slowed.size >= 5
    assert set(slowed.tolist()) <= set(found.evidence["steps"])
    assert len(found.evidence["steps"]) < 20


def test_bursts_on_all_links_are_found_by_the_steps_between():
    found = suspicion(FLAP, job(FlappingNic(0, 1, 20.0), dp=1, pp=3))
    assert found.culprits[0].stage == 1


@pytest.mark.parametrize("seed", [1, 2, 4, 5])
@pytest.mark.parametrize("dp", [2, 3])
def test_healthy_noise_on_few_links_is_no_flapping_link(dp, seed):
    tail = HeavyTailed(share=0.05, alpha=1.2)
    costs = OperationCosts(stage_transfer_s=4e-2, transfer_noise=0.03, tail=tail)
    assert ruled_out(FLAP, job(dp=dp, pp=2, microbatches=4, costs=costs, seed=seed))


def test_reason_without_a_distinct_step_mentions_no_step(monkeypatch):
    # Of each step's 20 transfers 2 stray, on one link 6: more than chance, and in every step.
    net = network_transfers(recorded(job(pp=2), 60))
    num_slow = np.ones_like(net.num)
    num_slow[0, 1] = 3
    excess = 4.0 * num_slow.sum(axis=-1)
    spread = replace(net, num=np.full_like(net.num, 10), num_slow=num_slow, excess=excess)
    suspects = "app.diagnosis.network.suspects"
    monkeypatch.setattr(f"{suspects}.network_transfers", lambda _: spread)
    found = denied(FLAP, net.case)
    assert found.insufficient
    assert "no step has enough of them" in found.reason


def test_cost_matches_the_counterfactual():
    made = job(FlappingNic(dp_rank=2, stage=1, slowdown=15.0))
    attributed, real = attributed_and_real_cost(FLAP, made)
    assert attributed == pytest.approx(real, abs=0.005)


def test_onset_of_a_flapping_link_is_the_first_burst():
    made = job(FlappingNic(dp_rank=2, stage=1, slowdown=15.0, when=FaultSteps(20)))
    assert suspicion(FLAP, made, 40).onset.onset_step == 20


@pytest.mark.parametrize(
    "made",
    [
        job(),
        job(SlowLink(dp_rank=1, stage=1, slowdown=8.0)),
        job(SlowLink(dp_rank=1, stage=1, slowdown=8.0, when=FaultSteps(6))),
        job(SlowLink(dp_rank=1, stage=1, slowdown=8.0, when=FaultSteps(6, 4))),
        job(SlowNic(dp_rank=1, stage=1, slowdown=8.0, when=FaultSteps(6))),
        job(GcPauses(rate=0.2)),
        job(costs=OperationCosts(transfer_noise=0.1, tail=HeavyTailed(share=0.05, alpha=1.2))),
        job(costs=OperationCosts(transfer_noise=0.1, tail=Pareto())),
    ],
    ids=["healthy", "slow", "slow since", "slow for", "card", "gc", "heavy tails", "pareto"],
)
def test_steady_or_healthy_links_are_no_flapping_link(made):
    assert ruled_out(FLAP, made)


def test_bursts_from_the_first_step_on_are_no_warm_up():
    bursts = [SlowLink(0, 0, 30.0, when=FaultSteps(first, 3)) for first in (0, 8, 14)]
    plain = SlowLink(0, 0, 30.0, when=FaultSteps(0, 3))
    apart = Cluster(gpus_per_host=1)
    found = suspicion(FLAP, job(*bursts, dp=1, pp=2, cluster=apart), 24)
    assert found.evidence["steps"] == [*range(3), *range(8, 11), *range(14, 17)]
    assert ruled_out(FLAP, job(plain, dp=1, pp=2, cluster=apart), 24)


def test_one_burst_in_one_step_is_not_enough():
    assert ruled_out(
        FLAP, job(FlappingNic(dp_rank=1, stage=1, slowdown=20.0, when=FaultSteps(4, 1)))
    )


@pytest.mark.parametrize(
    ("pattern", "flaps"), [("11011011", True), ("00111111", False), ("01110000", False)]
)
def test_a_link_with_good_steps_between_flaps(pattern, flaps):
    rows = replicas(two_stages([0.1] * 8), 3)
    transfer_s = [0.5 if slow == "1" else 0.1 for slow in pattern]
    rows += [row.on(dp_rank=3) for row in two_stages(transfer_s)]
    found = FLAP.detect(case_of(window(rows, dp_size=4, pp_size=2)))
    if not flaps:
        assert isinstance(found, RuledOut)
        return
    assert isinstance(found, Suspicion)
    assert found.evidence["steps"] == [0, 1, 3, 4, 6, 7]


def longer_collectives(steps, name="grads-reduce-scatter", by_s=20.0):
    """A job of one stage in which these steps' only such collective takes so much longer."""
    made = window_of(job(pp=1, dp=4), 16)
    trace = made.trace
    hit = np.isin(trace.step, steps) & (trace.optype == made.job.op_types.codes[name])
    start_s = trace.start_s + by_s * (trace.step[:, None] > np.array(steps)).sum(axis=1)
    longer = replace(trace, start_s=start_s, duration_s=trace.duration_s + by_s * hit)
    return case_of(replace(made, trace=longer))


def test_collectives_across_an_evaluation_blame_no_network():
    against = denied(FLAP, longer_collectives([3, 6, 9, 12, 15]))
    assert against.insufficient
    assert against.reason.startswith("every 3 steps one collective takes")
    skipped = denied(FLAP, longer_collectives([3, 5, 7, 11, 13, 15]))
    assert skipped.reason.startswith("every 2 steps one collective takes")
    # Evaluations come regularly, bursts of a network do not.
    irregular = suspected(FLAP, longer_collectives([3, 5, 6, 11, 14]))
    assert irregular.evidence["steps"] == [3, 5, 6, 11, 14]
