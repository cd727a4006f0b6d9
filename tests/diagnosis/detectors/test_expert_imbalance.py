"""expert-imbalance: loads of experts, told apart from sequence lengths."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from typing_extensions import override

from app.diagnosis.detector import Suspicion
from app.diagnosis.detectors.expert_imbalance import ExpertImbalance
from app.diagnosis.evidence import expert_load
from app.diagnosis.evidence.expert_load import NOT_TOLD_APART
from app.result.finding import RuledOut
from app.synth.cluster import RngOf, World
from app.synth.costs import OperationCosts
from app.synth.drawing import DrawnSteps
from app.synth.faults.fault import FaultSteps, scale_worker
from app.synth.faults.sequence_imbalance import SequenceImbalance
from app.synth.faults.slow_compute import LongLastStage, SlowWorker
from app.synth.noise import HeavyTailed
from app.trace.job import Parallelism
from app.trace.ops import OP_CODES
from app.trace.window import Floats, Window
from tests.diagnosis.detectors.test_slow_worker_over_time import InTurn
from tests.diagnosis.jobs import diagnosed, findings_of
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
from tests.synth.uneven_experts import UnevenExperts

EXPERTS = ExpertImbalance()
MOE = {"parallelism": Parallelism(4, 4, ep_size=4)}
ONE_STAGE = {"parallelism": Parallelism(8, 1, ep_size=4)}


@pytest.mark.parametrize("sizes", [MOE, ONE_STAGE, {"parallelism": Parallelism(4, 4, ep_size=2)}])
def test_uneven_experts_are_named_and_no_host(sizes):
    found = suspicion(EXPERTS, job(UnevenExperts(0.3), **sizes))
    assert found.culprits == ()
    assert "loads of the experts are uneven" in fact_of(found)
    seen = diagnosed(job(UnevenExperts(0.3), **sizes).record(range(16)).window())
    assert [each.cause for each in findings_of(seen)] == ["expert-imbalance"]


@pytest.mark.parametrize("sizes", [MOE, ONE_STAGE])
def test_of_steps_with_very_many_computations_few_are_sampled(monkeypatch, sizes):
    monkeypatch.setattr(expert_load, "MAX_SAMPLED_COMPUTATIONS", 1)
    monkeypatch.setattr(expert_load, "MIN_BLOCK_COMPUTATIONS", 32)
    few = suspicion(EXPERTS, job(UnevenExperts(0.3), **sizes)).evidence
    monkeypatch.undo()
    of_all = suspicion(EXPERTS, job(UnevenExperts(0.3), **sizes)).evidence
    assert few["load_spread"] != of_all["load_spread"]
    assert few["load_spread"] == pytest.approx(of_all["load_spread"], rel=0.15)


def test_noise_of_one_of_many_blocks_is_no_load_where_few_steps_are_sampled(monkeypatch):
    monkeypatch.setattr(expert_load, "MAX_SAMPLED_COMPUTATIONS", 1)
    noisy = replace(OperationCosts(), noise=0.1)
    sizes = {"parallelism": Parallelism(1024, 2, ep_size=2)}
    window = job(costs=noisy, **sizes).record(range(32)).window()
    found = expert_load.expert_load(case_of(window))
    assert found is not None
    assert not found.varies
    monkeypatch.setattr(expert_load, "MIN_BLOCK_COMPUTATIONS", 1)
    few = expert_load.expert_load(case_of(window))
    assert few is not None
    assert few.varies, "the test needs noise that fewer steps do not outweigh"


@pytest.mark.parametrize("sizes", [MOE, ONE_STAGE])
def test_cost_matches_the_counterfactual(sizes):
    attributed, real = attributed_and_real_cost(EXPERTS, job(UnevenExperts(0.3), **sizes))
    assert attributed == pytest.approx(real, abs=0.02)


def test_sequences_of_a_job_with_experts_stay_sequences():
    seen = diagnosed(job(SequenceImbalance(), **MOE).record(range(16)).window())
    assert [each.cause for each in findings_of(seen)] == ["sequence-imbalance"]


def test_sequences_and_experts_of_one_stage_are_not_told_apart_without_tokens():
    window = job(SequenceImbalance(attention_share=0.6), **ONE_STAGE).record(range(16)).window()
    found = denied(EXPERTS, case_of(window))
    assert (found.insufficient, found.reason) == (True, NOT_TOLD_APART)
    assert findings_of(diagnosed(window)) == ()


def test_tokens_that_times_go_with_show_experts():
    window = job(SequenceImbalance(attention_share=0.6), **ONE_STAGE).record(range(16)).window()
    found = EXPERTS.detect(case_of(_with_tokens(window)))
    assert found.score >= 0.5
    assert isinstance(found, Suspicion)
    assert "follow the number of tokens" in fact_of(found)


def _with_tokens(window: Window) -> Window:
    """Tokens in proportion to the time of each forward computation."""
    trace = window.trace
    forward = trace.optype == OP_CODES["forward-compute"]
    tokens = np.where(forward, np.rint(trace.duration_s * 1e5), -1).astype(np.int64)
    columns: dict[str, Any] = {**trace.columns(), "tokens": tokens}
    return replace(window, trace=type(trace)(**columns))


def test_a_job_without_experts_is_told_that_it_names_none():
    window = job(UnevenExperts(0.3), **MOE).record(range(16)).window()
    dense = replace(window.job, parallelism=Parallelism(4, 4))
    found = denied(EXPERTS, case_of(replace(window, job=dense)))
    assert found.insufficient
    assert "ep_size is 1" in found.reason


@pytest.mark.parametrize(
    "made",
    [
        job(**MOE),
        job(SlowWorker(1, 2, 1.5), **MOE),
        job(LongLastStage(), **MOE),
        job(costs=OperationCosts(noise=0.1, tail=HeavyTailed()), **MOE),
        job(SequenceImbalance()),
        job(dp=1, pp=1),
    ],
)
def test_other_causes_and_noise_are_no_experts(made):
    assert ruled_out(EXPERTS, made)


def test_a_slow_worker_beside_uneven_experts_is_named_too():
    seen = diagnosed(
        job(UnevenExperts(0.3), SlowWorker(1, 2, 1.5), **MOE).record(range(16)).window()
    )
    assert {each.cause for each in findings_of(seen)} == {"expert-imbalance", "slow-worker"}


def test_the_same_place_of_every_block_is_slow_by_its_experts():
    """Blocks of dp ranks 0 to 3 and 4 to 7 hold the same experts."""
    sizes = {"parallelism": Parallelism(8, 4, ep_size=4)}
    hot = (SlowWorker(1, 2, 1.6), SlowWorker(5, 2, 1.6))
    seen = diagnosed(job(*hot, **sizes).record(range(16)).window())
    assert [each.cause for each in findings_of(seen)] == ["expert-imbalance"]
    one = diagnosed(job(hot[0], **sizes).record(range(16)).window())
    assert [each.cause for each in findings_of(one)] == ["slow-worker"]


def test_several_ranks_of_one_block_that_stay_slow_are_not_blamed_without_tokens():
    hot = tuple(SlowWorker(*place) for place in ((0, 1, 1.5), (1, 2, 1.4), (2, 0, 1.3)))
    seen = diagnosed(job(*hot, **MOE).record(range(16)).window())
    (reason,) = [each for each in seen.ruled_out if each.cause == "slow-worker"]
    assert reason.insufficient
    assert "busy experts and slow GPUs or hosts look alike" in reason.reason
    dense = diagnosed(job(*hot).record(range(16)).window())
    assert [each.cause for each in findings_of(dense)] == ["slow-worker"]


BLOCKS = Parallelism(8, 4, ep_size=4)


def _with_factor(window: Window, factor: Any) -> Window:
    """Forward and backward times multiplied by `factor` [steps, stages, micro-batches, dp]."""
    trace = window.trace
    computes = np.isin(
        trace.optype, [OP_CODES[f"{direction}-compute"] for direction in ("forward", "backward")]
    )
    at = np.unique(trace.step, return_inverse=True)[1][computes], trace.stage[computes]
    longer = trace.duration_s.copy()
    longer[computes] *= factor[(*at, trace.mb_id[computes], trace.dp_rank[computes])]
    columns: dict[str, Any] = {**trace.columns(), "duration_s": longer}
    return replace(window, trace=type(trace)(**columns))


def _excess(window: Window, *shape: int) -> Any:
    """Loads of a fullest expert above an even share, different for every micro-batch."""
    sizes = len(window.steps), BLOCKS.pp_size, int(window.trace.mb_id.max()) + 1, *shape
    return np.random.default_rng(5).gamma(2.0, 0.2, sizes)


def test_a_block_that_waits_for_its_fullest_expert_is_named_by_dp_ranks():
    window = job(parallelism=BLOCKS).record(range(16)).window()
    excess = _excess(window, 1)
    factor = 1 + excess * (np.arange(8) >= 4)
    found = suspected(EXPERTS, case_of(_with_factor(window, factor)))
    assert [each.as_json() for each in found.culprits] == [{"dp_rank": d} for d in range(4, 8)]
    assert "block of dp 4, dp 5, dp 6 and 1 more" in fact_of(found)
    assert found.evidence["dp_ranks"] == [4, 5, 6, 7]


def test_a_block_that_is_slow_by_one_factor_is_no_uneven_load():
    window = job(parallelism=BLOCKS).record(range(16)).window()
    factor = np.broadcast_to(
        np.where(np.arange(8) >= 4, 1.5, 1.0), (*_excess(window, 1).shape[:3], 8)
    )
    assert isinstance(EXPERTS.detect(case_of(_with_factor(window, factor))), RuledOut)


def test_lengths_that_are_alike_on_all_dp_ranks_are_no_uneven_load():
    """A sampler that groups sequences by length, with one stage."""
    one_stage = Parallelism(8, 1, ep_size=4)
    window = job(parallelism=one_stage).record(range(16)).window()
    factor = 1 + np.broadcast_to(_excess(window, 1)[:, :1], (16, 1, _excess(window).shape[2], 8))
    found = denied(EXPERTS, case_of(_with_factor(window, factor)))
    assert found.reason == NOT_TOLD_APART


def test_variation_that_neighbouring_micro_batches_share_is_no_load():
    """A host that is busy for a while lengthens what runs one after the other."""
    window = job(parallelism=BLOCKS).record(range(16)).window()
    excess = np.cumsum(np.random.default_rng(3).normal(0, 0.2, (16, 4, 16, 1)), axis=2)
    excess = excess[:, :, : _excess(window).shape[2]]
    factor = np.exp(excess * (np.arange(8) >= 4))
    denied(EXPERTS, case_of(_with_factor(window, factor)))


def _hot(places: list[list[tuple[int, int]]], stay: int = 4) -> list[SlowWorker]:
    """One place after the other computes 1.5 times as long, `stay` steps each."""
    return [
        SlowWorker(dp_rank, stage, 1.5, when=FaultSteps(stay * at, stay))
        for at, workers in enumerate(places)
        for dp_rank, stage in workers
    ]


HOT = {
    "one rank": [[(0, 1)], [(3, 2)], [(1, 1)], [(6, 0)]],
    "a rank of every block": [
        [(0, 1), (4, 1)],
        [(3, 2), (7, 2)],
        [(1, 1), (5, 1)],
        [(2, 0), (6, 0)],
    ],
    "a block": [[(rank, 1) for rank in range(4)], [(rank, 2) for rank in range(4, 8)]] * 2,
    "a stage": [[(rank, stage) for rank in range(8)] for stage in (1, 2, 0, 1)],
    "all stages of a rank": [[(rank, stage) for stage in range(3)] for rank in (0, 5, 3, 6)],
}


@pytest.mark.parametrize("places", HOT.values(), ids=HOT)
def test_experts_that_stay_popular_for_some_steps_are_named(places):
    seen = diagnosed(job(*_hot(places), parallelism=Parallelism(8, 3, ep_size=4)).record(
        range(16)).window())  # fmt: skip
    found = findings_of(seen)
    assert [finding.cause for finding in found] == ["expert-imbalance"]
    assert (found[0].culprits, found[0].persistence) == ((), "rotating")


def test_cost_of_experts_that_stay_matches_the_counterfactual():
    made = job(*_hot(HOT["one rank"][:1]), parallelism=Parallelism(8, 3, ep_size=4))
    attributed, real = attributed_and_real_cost(
        EXPERTS, replace(made, faults=(InTurn(0, 1, 1.5, dwell=4),))
    )
    assert attributed == pytest.approx(real, abs=0.01)


@pytest.mark.parametrize(
    ("faults", "ep_size"),
    [
        (_hot(HOT["one rank"][:1], stay=16), 4),  # one place is a slow GPU
        ([*_hot(HOT["one rank"][:1]), SlowWorker(3, 2, 1.5, when=FaultSteps(10))], 4),
        (_hot(HOT["a stage"][:2], stay=8), 1),
    ],
    ids=["one place", "one after the other with a gap", "no experts"],
)  # fmt: skip
def test_slow_workers_and_stages_that_do_not_take_over_are_no_experts(faults, ep_size):
    sizes = Parallelism(8, 3, ep_size=ep_size)
    seen = diagnosed(job(*faults, parallelism=sizes).record(range(16)).window())
    assert "expert-imbalance" not in [finding.cause for finding in findings_of(seen)]


@dataclass(frozen=True, slots=True)
class Moved(InTurn):
    """A rank of a stage has more tokens, which its peer in each block of two lacks."""

    @override
    def change(self, drawn: DrawnSteps, world: World, lasts: Floats, rng_of: RngOf) -> None:
        for dp_rank in range(drawn.forward_s.shape[-1]):
            turn = (drawn.steps // self.dwell) % 2
            factor = np.where(turn == dp_rank % 2, self.slowdown, 2 - self.slowdown)
            scale_worker(drawn, dp_rank, self.stage, factor)


def test_tokens_that_move_leave_a_stage_as_long_as_it_is():
    made = job(Moved(0, 1, 1.3, dwell=4), parallelism=Parallelism(4, 3, ep_size=2))
    [found] = findings_of(diagnosed(made.record(range(16)).window()))
    assert found.cause == "expert-imbalance"
    assert found.evidence["slowdown_of_hot"] == pytest.approx(1.3, abs=0.02)
    attributed, real = attributed_and_real_cost(EXPERTS, made)
    assert attributed == pytest.approx(real, abs=0.01)
