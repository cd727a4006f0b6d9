from dataclasses import replace

import pytest

from app.advice.facts import Facts
from app.advice.fix import Fix, NotOffered
from app.advice.other_schedule import fix_of_option, idle_share, options, other_schedule
from app.advice.rebuilt_pipeline import RebuiltPipeline, rebuilt_pipeline
from app.synth.costs import OperationCosts
from app.synth.job import SimulatedJob
from app.synth.schedules import SCHEDULES
from app.trace.job import Parallelism
from tests.advice.cases import case_of, fix_of, refusal_of, simulated_step_s

JOB = SimulatedJob(Parallelism(4, 4, 8), 8, costs=OperationCosts(noise=0.01))


@pytest.fixture(scope="module")
def case():
    return case_of(JOB, Facts(layers=32))


@pytest.fixture(scope="module")
def model(case):
    found = rebuilt_pipeline(case.replay.groups)
    assert isinstance(found, RebuiltPipeline)
    return found


def fix_of_kind(case, model, kind: str) -> Fix:
    option = next(each for each in options(case, model) if each.kind == kind)
    return fix_of_option(case, model, option)


def test_interleaved_prediction_is_what_the_job_takes(case, model):
    fix = fix_of_kind(case, model, "interleaved")
    assert fix.title == "Interleave 4 model chunks of 2 layers on a stage"
    assert fix.paste[0].text == "--num-layers-per-virtual-pipeline-stage 2"
    costs = replace(JOB.costs, params_all_gather_s=3e-3 / 4, grads_reduce_scatter_s=1e-3)
    job = replace(
        JOB, parallelism=Parallelism(4, 4, 8, 4), schedule=SCHEDULES["interleaved"], costs=costs
    )
    assert fix.step_s == pytest.approx(simulated_step_s(job), rel=0.01)
    assert fix.speed_up > 1.2


def test_zero_bubble_prediction_is_what_the_job_takes(case, model):
    fix = fix_of_kind(case, model, "zero-bubble")
    achieved = [
        simulated_step_s(
            replace(
                JOB, schedule=SCHEDULES["zero-bubble"], costs=replace(JOB.costs, weight_share=share)
            )
        )
        for share in (0.3, 0.5, 0.6)
    ]
    assert fix.step_s == pytest.approx(achieved[1], rel=0.01)
    assert fix.step_range_s == pytest.approx((min(achieved), max(achieved)), rel=0.01)


def test_smaller_microbatches_prediction_is_what_the_job_takes(case, model):
    fix = fix_of_kind(case, model, "micro-batches")
    costs = replace(JOB.costs, forward_s=0.01, backward_s=0.02, stage_transfer_s=1e-4)
    achieved_s = simulated_step_s(replace(JOB, num_microbatches=16, costs=costs))
    assert fix.step_s == pytest.approx(achieved_s, rel=0.01)
    assert "at least 2" in fix.needs[0].text


def test_no_option_wins_more_than_the_idle_time(case, model):
    share = idle_share(model)
    assert share == pytest.approx(3 / 11, abs=0.03)
    for option in options(case, model):
        fix = fix_of_option(case, model, option)
        assert 1 - fix.step_s / case.step_s < share
        assert case.step_s_with(fix.change) == pytest.approx(fix.step_s)


def test_unknown_layers_are_asked_for_not_guessed():
    unknown = case_of(JOB)
    fix = fix_of(other_schedule(unknown))
    assert not fix.title.startswith("Interleave")
    assert any(need.fact == "layers" for need in fix.needs)


@pytest.mark.parametrize("facts", [Facts(layers=30), Facts(layers_by_stage=(9, 8, 8, 7))])
def test_layers_that_cannot_be_dealt_out_are_not_interleaved(case, model, facts):
    kinds = [each.kind for each in options(replace(case, facts=facts), model)]
    assert kinds == ["zero-bubble", "micro-batches"]


def test_odd_microbatches_are_not_interleaved():
    odd = case_of(replace(JOB, num_microbatches=9), Facts(layers=32))
    found = rebuilt_pipeline(odd.replay.groups)
    assert isinstance(found, RebuiltPipeline)
    assert [each.kind for each in options(odd, found)] == ["zero-bubble", "micro-batches"]


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (replace(JOB, parallelism=Parallelism(4, 1, 8)), "the job has one stage"),
        (SimulatedJob(Parallelism(1, 2, 8), 60), "the busiest worker idles for"),
    ],
)
def test_jobs_without_a_bubble_keep_their_schedule(job, reason):
    found = refusal_of(other_schedule(case_of(job, Facts(layers=32))))
    assert isinstance(found, NotOffered)
    assert found.reason.startswith(reason)
