import json
from dataclasses import replace

import pytest

from app.advice.fix import AdviceCase
from app.advice.move_microbatches import (
    best_counts,
    move_microbatches,
    pastes,
    torch_takes,
)
from app.advice.rebuilt_pipeline import RebuiltPipeline, rebuilt_pipeline, step_times
from app.synth.costs import OperationCosts
from app.synth.faults.slow_compute import SlowWorker
from app.synth.job import SimulatedJob
from app.synth.schedules import SCHEDULES
from app.trace.job import Parallelism
from benchmarks.advice.pipeline_fixes import without_launch_delays
from tests.advice.cases import NUM_STEPS, case_of, fix_of, refusal_of


def slow_job(
    pp: int = 4, m: int = 16, *, dp: int = 4, slowdown: float = 1.6, name: str = "1f1b"
) -> SimulatedJob:
    return SimulatedJob(
        Parallelism(dp, pp, 8, 2 if name == "interleaved" else 1),
        m,
        schedule=SCHEDULES[name],
        faults=(SlowWorker(1, pp - 1, slowdown),),
    )


def model_of(case: AdviceCase) -> RebuiltPipeline:
    model = rebuilt_pipeline(case.replay.groups)
    assert isinstance(model, RebuiltPipeline)
    return model


def achieved_s(job: SimulatedJob, counts: list[int]) -> float:
    """Mean step of other steps with these counts, so of other noise."""
    drawn = replace(job, num_microbatches=max(counts)).drawn(range(NUM_STEPS, 2 * NUM_STEPS))
    launched = without_launch_delays(drawn)
    return float(step_times(job.parallelism, job.schedule, counts, launched).mean())


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "zero-bubble", "interleaved"])
def test_prediction_is_what_the_job_takes_with_the_counts(name):
    job = slow_job(name=name)
    case = case_of(job)
    fix = fix_of(move_microbatches(case))
    counts = json.loads(fix.paste[0].text)["microbatches"]
    assert sum(counts) == 64
    assert counts[1] == min(counts) < 16
    assert fix.step_s == pytest.approx(achieved_s(job, counts), rel=0.01)
    assert fix.speed_up > 1.1
    assert fix.step_range_s[0] <= fix.step_s <= fix.step_range_s[1]


def test_one_slow_replica_of_four_without_a_pipeline():
    # Greyhound S2: 2x slow of 4 replicas; 16 each becomes 9, 18, 18, 19.
    costs = OperationCosts(noise=0.005)
    job = replace(slow_job(1, 16, slowdown=2.0), costs=costs)
    fix = fix_of(move_microbatches(case_of(job)))
    counts = json.loads(fix.paste[0].text)["microbatches"]
    assert counts[1] == 9
    assert fix.title == "Move 7 micro-batches a step off dp rank 1: 9 instead of 16"
    assert fix.speed_up == pytest.approx(32 / 19, rel=0.02)


def test_no_counts_of_a_small_job_are_faster():
    case = case_of(slow_job(2, 4, dp=3))
    model = model_of(case)
    found_s = model.with_counts(best_counts(model)).step_s().mean()
    for first in range(1, 11):
        for second in range(1, 12 - first):
            others = [first, second, 12 - first - second]
            assert found_s <= model.with_counts(others).step_s().mean() * 1.001


def test_interleaved_counts_stay_whole_rounds():
    model = model_of(case_of(slow_job(name="interleaved")))
    counts = best_counts(model)
    assert all(count % 4 == 0 for count in counts)
    assert sum(counts) == 64


def test_pasted_loop_gives_the_gradient_of_the_whole_batch():
    torch = pytest.importorskip("torch")
    counts = [3, 1, 2]
    batches = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    whole = torch.nn.Linear(4, 1, bias=False)
    (whole(batches) ** 2).mean().backward()
    means = []
    for dp_rank, first in enumerate((0, 3, 4)):
        model = torch.nn.Linear(4, 1, bias=False)
        model.load_state_dict(whole.state_dict())
        given = {
            "dp_rank": dp_rank,
            "itertools": __import__("itertools"),
            "batches": iter(batches[first:]),
            "model": model,
            "loss_fn": lambda output: (output**2).mean(),
        }
        exec(pastes(counts, None, takes=True)[1].text, given)
        means.append(model.weight.grad)
    torch.testing.assert_close(torch.stack(means).mean(0), whole.weight.grad)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["1f1b", "gpipe", "interleaved", "zero-bubble"])
def test_pasted_schedule_is_one_of_pytorch(name):
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    text = pastes([3, 1], name, takes=True)[1].text
    assert hasattr(schedules, text.split("schedule = ")[1].split("(")[0])


@pytest.mark.parametrize(
    ("schedule", "counts", "takes"),
    [
        ("1f1b", [5, 4, 5, 4], True),
        ("1f1b", [5, 2, 5, 4], False),  # fewer micro-batches than stages
        ("zero-bubble", [8, 8, 8, 8], True),
        ("zero-bubble", [9, 5, 9, 9], False),  # 9 is no multiple of 2 rounds
        ("gpipe", [1, 2, 9, 4], True),
        (None, [1, 2, 9, 4], True),
    ],
)
def test_code_is_pasted_only_where_pytorch_takes_the_counts(schedule, counts, takes):
    assert torch_takes(schedule, counts, pp_size=4) is takes
    assert len(pastes(counts, schedule, takes=takes)) == 1 + takes


def test_expert_parallel_replicas_keep_equal_counts():
    job = SimulatedJob(Parallelism(8, 4, 8, ep_size=8), 8, faults=(SlowWorker(1, 3, 1.8),))
    assert "for ever" in refusal_of(move_microbatches(case_of(job))).reason


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (SimulatedJob(Parallelism(4, 2, 8), 8), "no worker was found to be slow"),
        (slow_job(2, 2, slowdown=1.25), "no other numbers of micro-batches are faster by 1 %"),
    ],
)
def test_counts_are_not_offered_without_a_gain(job, reason):
    assert refusal_of(move_microbatches(case_of(job))).reason == reason
