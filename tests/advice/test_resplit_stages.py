import json
import random
from dataclasses import replace

import numpy as np
import pytest

from app.advice.change import Change
from app.advice.fix import AdviceCase, Facts, Fix, NotOffered
from app.advice.resplit_stages import (
    StageCosts,
    best_split,
    edits_of,
    megatron_layout,
    pastes,
    resplit_stages,
    stage_costs,
)
from app.synth.costs import OperationCosts
from app.synth.faults.slow_compute import SlowWorker
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from app.trace.readers.published import trace_files
from tests.advice.cases import case_of, fix_of, refusal_of, simulated_step_s
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
    costs = stage_costs(case, layers)
    assert isinstance(costs, StageCosts)
    return costs


def split_of(fix: Fix) -> list[int]:
    layout = fix.paste[0].text.split('"')[1]
    return [int(stage.strip("EL").removeprefix("t*")) for stage in layout.split("|")]


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


def test_no_other_split_of_a_small_job_is_faster(uneven):
    found = best_split(uneven, costs_of(uneven, 8, 8, 8, 8))
    step_s = simulated_step_s(with_layers(*found, noise=0.0))
    for first in range(7, 13):
        for second in range(7, 13):
            for third in range(7, 13):
                last = 32 - first - second - third
                if last >= 1:
                    others_s = simulated_step_s(with_layers(first, second, third, last, noise=0.0))
                    assert step_s <= others_s * 1.002
    assert sum(found) == 32


@needs_shared
def test_published_split_of_st_is_predicted():
    window = trace_files.read(SHARED_TRACES / "trace-ST.parquet")
    case = case_of(window, Facts(layers=36))
    costs = costs_of(case, 9, 9, 9, 9)
    by_hand_s = case.step_s_with(Change(edits=edits_of(costs, (10, 10, 10, 6), costs.layer_s)))
    assert case.step_s / by_hand_s == pytest.approx(1.107, abs=0.005)
    fix = fix_of(resplit_stages(case))
    assert fix.speed_up > 1.18


@pytest.mark.parametrize(
    ("facts", "reason", "need"),
    [
        (Facts(), "the number of layers is not known", "--layers"),
        (Facts(layers=30), "not the same number on each of 4 stages", "--layout"),
        (Facts(layers_by_stage=(8, 8, 8)), "3 numbers of layers for 4 stages", None),
        (Facts(layers_by_stage=(16, 0, 8, 8)), "an ordinary stage has no layers", None),
    ],
)
def test_unknown_layers_are_asked_for_not_guessed(uneven, facts, reason, need):
    found = refusal_of(resplit_stages(replace(uneven, facts=facts)))
    assert reason in found.reason
    assert (need is None) == (not found.needs)
    assert need is None or need in found.needs[0]


def test_slow_worker_makes_no_long_stage():
    job = SimulatedJob(Parallelism(4, 4, 8), 16, faults=(SlowWorker(1, 2, 1.8),))
    found = refusal_of(resplit_stages(case_of(job, Facts(layers=32))))
    assert found == NotOffered(
        "resplit-stages", "no stage was found to take longer than the others"
    )


def test_layouts_have_the_form_of_megatron():
    assert megatron_layout([10, 10, 10, 6]) == "Et*10|t*10|t*10|t*6L"
    assert megatron_layout([1, 2, 0]) == "Et|t*2|L"
    megatron, flags, titan = pastes([9, 10, 10, 7])
    assert megatron.text == '--pipeline-model-parallel-layout "Et*9|t*10|t*10|t*7L"'
    assert flags.text == (
        "--decoder-first-pipeline-num-layers 9 --decoder-last-pipeline-num-layers 7"
    )
    modules = json.loads(titan.text.split("'")[1])
    assert [len(each) for each in modules] == [10, 10, 10, 9]
    assert modules[3] == [*(f"layers.{layer}" for layer in range(29, 36)), "norm", "output"]


def test_every_layout_is_accepted_by_megatron_core():
    layouts = pytest.importorskip(
        "megatron.core.transformer.pipeline_parallel_layer_layout",
        reason="megatron-core is not installed",
    )
    rng = random.Random(7)
    for _ in range(10_000):
        counts = [rng.randint(0, 20) for _ in range(rng.randint(1, 16))]
        if len(counts) > 1 or counts[0]:
            parsed = layouts.PipelineParallelLayerLayout(megatron_layout(counts), len(counts))
            parsed.validate_layer_layout(num_layers=sum(counts), mtp_num_layers=0)
