from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from app.advice.facts import Facts
from app.advice.fix import AdviceCase, Fix
from app.advice.resplit_stages import (
    StageCosts,
    best_split,
    equal_stages,
    megatron_layout,
    pastes,
    resplit_stages,
    split_change,
    stage_costs,
)
from app.synth.costs import OperationCosts
from app.synth.job import SimulatedJob
from app.synth.schedules import SCHEDULES
from app.trace.job import Parallelism
from app.trace.readers.published import trace_files
from tests.advice.cases import case_of, fix_of, refusal_of, simulated_step_s
from tests.diagnosis.detectors.test_slow_optimizer import SlowOptimizerOfStage
from tests.shared_traces import SHARED_TRACES, needs_shared

LAYERS, LOSS_LAYERS = 8, 5.0


def with_layers(*counts: int, noise: float = 0.01, seed: int = 1) -> SimulatedJob:
    """A job whose last stage also computes a loss that costs as much as five layers."""
    work = np.array(counts, float)
    work[-1] += LOSS_LAYERS
    costs = OperationCosts(noise=noise, stage_factors=tuple((work / LAYERS).tolist()))
    return SimulatedJob(Parallelism(4, len(counts), 8), 16, costs=costs, seed=seed)


@pytest.fixture(scope="module")
def uneven():
    return case_of(with_layers(8, 8, 8, 8), Facts(layers=32))


def costs_of(case: AdviceCase, *layers: int) -> StageCosts:
    costs = stage_costs(case.replay, layers)
    assert isinstance(costs, StageCosts)
    return costs


def split_of(fix: Fix) -> list[int]:
    layout = fix.paste[0].text.split('"')[1]
    stages = [stage.strip("EL") for stage in layout.split("|")]
    return [0 if not each else int(each[2:] or 1) for each in stages]


def test_cost_of_a_layer_is_that_of_the_ordinary_stages(uneven):
    costs = costs_of(uneven, 8, 8, 8, 8)
    assert costs.names == ("forward-compute", "backward-compute")
    assert costs.layer_s == pytest.approx([0.02 / LAYERS, 0.04 / LAYERS], rel=0.01)
    factors = costs.factors((9, 9, 9, 5), costs.layer_s)
    # The last stage: 13 layers' worth of work before, 10 after.
    assert factors[0] == pytest.approx([9 / 8, 9 / 8, 9 / 8, 10 / 13], rel=0.01)


def test_prediction_is_what_the_job_takes_with_the_new_split(uneven):
    fix = fix_of(resplit_stages(uneven))
    assert sum(split_of(fix)) == 32
    achieved_s = simulated_step_s(with_layers(*split_of(fix), seed=2))
    assert fix.step_s == pytest.approx(achieved_s, rel=0.01)
    assert fix.speed_up > 1.15


@pytest.mark.parametrize(
    "layers", [range(8, 11), pytest.param(range(7, 13), marks=pytest.mark.nightly)]
)
def test_no_other_split_of_a_small_job_is_faster(uneven, layers):
    found = best_split(uneven.replay, costs_of(uneven, 8, 8, 8, 8))
    step_s = simulated_step_s(with_layers(*found, noise=0.0))
    for split in product(layers, repeat=3):
        last = 32 - sum(split)
        if last >= 1:
            assert step_s <= simulated_step_s(with_layers(*split, last, noise=0.0)) * 1.002
    assert sum(found) == 32


@needs_shared
def test_published_split_of_st_is_predicted():
    window = trace_files.read(SHARED_TRACES / "trace-ST.parquet")
    case = case_of(window, Facts(layers=36))
    costs = costs_of(case, 9, 9, 9, 9)
    by_hand_s = case.step_s_with(split_change(costs, (10, 10, 10, 6), costs.layer_s, 4))
    assert case.step_s / by_hand_s == pytest.approx(1.107, abs=0.005)
    fix = fix_of(resplit_stages(case))
    assert fix.speed_up > 1.18


@pytest.mark.parametrize(
    ("facts", "reason", "need"),
    [
        (Facts(), "the number of layers is not known", "layers"),
        (Facts(layers=30), "not the same number on each of 4 stages", "layout"),
        (Facts(layers_by_stage=(8, 8, 8)), "3 numbers of layers for 4 stages", None),
        (Facts(layers_by_stage=(16, 0, 8, 8)), "an ordinary stage has no layers", None),
    ],
)
def test_unknown_layers_are_asked_for_not_guessed(uneven, facts, reason, need):
    found = refusal_of(resplit_stages(replace(uneven, facts=facts)))
    assert reason in found.reason
    assert (need is None) == (not found.needs)
    assert need is None or need == found.needs[0].fact


def test_layouts_have_the_form_of_megatron():
    assert megatron_layout([10, 10, 10, 6]) == "Et*10|t*10|t*10|t*6L"
    assert megatron_layout([1, 2, 0]) == "Et|t*2|L"
    megatron, flags, titan = pastes([9, 10, 10, 7], 4)
    assert megatron.text == '--pipeline-model-parallel-layout "Et*9|t*10|t*10|t*7L"'
    assert flags.text == (
        "--decoder-first-pipeline-num-layers 9 --decoder-last-pipeline-num-layers 7"
    )
    modules = [stage.split(",") for stage in titan.text.split()[1:]]
    assert [len(each) for each in modules] == [10, 10, 10, 9]
    assert modules[3] == [*(f"layers.{layer}" for layer in range(29, 36)), "norm", "output"]


def interleaved(*counts: int, pp: int = 4, noise: float = 0.01, seed: int = 1) -> SimulatedJob:
    """Chunks of these layers in model order; embedding and loss cost 0.5 and 1.5 layers."""
    work = np.array(counts, float)
    work[0] += 0.5
    work[-1] += 1.5
    costs = OperationCosts(noise=noise, chunk_factors=tuple((work / 4).tolist()))
    sizes = Parallelism(4, pp, 8, len(counts) // pp)
    return SimulatedJob(sizes, 4 * pp, costs=costs, schedule=SCHEDULES["interleaved"], seed=seed)


@pytest.fixture(scope="module")
def chunks():
    return case_of(interleaved(*[4] * 8), Facts(layers=32))


def test_interleaved_prediction_is_what_the_job_takes_with_the_new_split(chunks):
    fix = fix_of(resplit_stages(chunks))
    counts = split_of(fix)
    assert (len(counts), sum(counts)) == (8, 32)
    achieved_s = simulated_step_s(interleaved(*counts, seed=2))
    assert fix.step_s == pytest.approx(achieved_s, rel=0.01)
    assert fix.speed_up > 1.05
    assert fix.title.startswith("Give the stages' chunks ")
    assert fix.title.endswith(" layers, not 4/4/4/4 | 4/4/4/4")


def test_embedding_and_loss_are_fitted_in_layers(chunks):
    costs = costs_of(chunks, *[4] * 8)
    assert costs.embedding_layers == pytest.approx(0.5, abs=0.1)
    assert costs.loss_layers == pytest.approx(1.5, abs=0.1)
    assert costs.in_words() == (
        "Fitted: the loss costs as much as 1.5 layers, the embedding as 0.5."
    )
    assert costs.in_words() in fix_of(resplit_stages(chunks)).risk


def test_no_other_split_of_a_small_interleaved_job_is_faster():
    case = case_of(interleaved(2, 2, 2, 2, pp=2, noise=0.0), Facts(layers=8))
    costs = costs_of(case, 2, 2, 2, 2)
    found_s = simulated_step_s(interleaved(*best_split(case.replay, costs), pp=2, noise=0.0))
    for split in product(range(6), repeat=3):
        last = 8 - sum(split)
        if last >= 0 and split[1] and split[2]:
            others_s = case.step_s_with(split_change(costs, (*split, last), costs.layer_s, 2))
            assert found_s <= others_s * 1.002


def test_split_of_many_virtual_stages_is_found_in_time():
    job = interleaved(*[2] * 64, pp=16)
    case = case_of(replace(job, parallelism=Parallelism(2, 16, 8, 4)), Facts(layers=128))
    fix = fix_of(resplit_stages(case))
    assert sum(split_of(fix)) == 128
    assert fix.title == "Move 2 layers between the stages' chunks"
    assert fix.speed_up > 1.01


def test_interleaved_layers_have_a_number_for_each_chunk(chunks):
    found = refusal_of(resplit_stages(replace(chunks, facts=Facts(layers_by_stage=(8,) * 4))))
    assert found.reason == "4 numbers of layers for 8 chunks (2 on each of 4 stages)"
    found = refusal_of(resplit_stages(replace(chunks, facts=Facts(layers=20))))
    assert found.reason.startswith("20 layers are not the same number on each of 8 chunks")


def random_costs(rng: np.random.Generator, stages: int) -> StageCosts:
    """Costs with random layers, embedding and loss."""
    layers = rng.integers(1, 12, stages)
    layer_s = rng.uniform(1e-4, 1e-2, 2)
    stage_s = layers * layer_s[:, None]
    stage_s[:, 0] += rng.uniform(0, 2) * layer_s
    stage_s[:, -1] += rng.uniform(0, 8) * layer_s
    return StageCosts(("forward-compute", "backward-compute"), layers, stage_s, *[layer_s] * 3)


@pytest.mark.nightly
def test_every_layout_is_accepted_by_megatron_core():
    layouts = pytest.importorskip(
        "megatron.core.transformer.pipeline_parallel_layer_layout",
        reason="megatron-core is not installed",
    )
    rng = np.random.default_rng(7)
    for number in range(10_000):
        pp_size, chunks = int(rng.integers(2, 17)), int(rng.integers(1, 5))
        costs = random_costs(rng, pp_size * chunks)
        # The search's start takes long: one in ten; any layer may be moved from there.
        counts = costs.layers.tolist() if number % 10 else equal_stages(costs, pp_size)
        assert sum(counts) == costs.layers.sum()
        source, target = rng.integers(0, len(counts), 2)
        moved = list(counts)
        if moved[source]:
            moved[source] -= 1
            moved[target] += 1
        parsed = layouts.PipelineParallelLayerLayout(megatron_layout(moved), pp_size)
        parsed.validate_layer_layout(num_layers=sum(counts), mtp_num_layers=0)
        found = [
            parsed.layout[place % pp_size][place // pp_size].count(layouts.LayerType.decoder)
            for place in range(len(moved))
        ]
        assert found == moved


def test_a_stage_that_is_slow_in_the_optimizer_keeps_its_layers():
    costs = OperationCosts(optimizer_s=2e-2)
    job = SimulatedJob(Parallelism(4, 4, 8), 8, faults=(SlowOptimizerOfStage(1, 8.0),), costs=costs)
    refusal = refusal_of(resplit_stages(case_of(job, Facts(layers=32))))
    assert refusal.reason == "the stage takes longer in the optimizer, not in its layers"
