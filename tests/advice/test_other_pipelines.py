from dataclasses import replace

import numpy as np
import pytest

from app.advice.other_schedule import (
    end_heavy_shares,
    with_chunks,
    with_smaller_microbatches,
    with_split_backward,
)
from app.advice.rebuilt_pipeline import Rebuilt, RebuiltPipeline, rebuilt_pipeline
from app.engine.replays import prepare
from app.synth.costs import OperationCosts
from app.synth.job import SimulatedJob
from app.synth.schedules import SCHEDULES
from app.trace.job import Parallelism

F, B = 0.02, 0.04
# Nothing but computations of exactly these durations.
FREE = OperationCosts(
    forward_s=F, backward_s=B, optimizer_s=1e-9, gc_s=0.0, stage_transfer_s=0.0,
    params_all_gather_s=0.0, grads_reduce_scatter_s=0.0, layernorm_all_reduce_s=0.0,
    embedding_all_reduce_s=0.0, clip_s=0.0, launch_delay_s=0.0, noise=0.0, transfer_noise=0.0,
)  # fmt: skip
SHAPES = [(4, 2), (8, 4), (12, 4), (8, 8)]


def free_job(m: int, p: int, name: str = "1f1b") -> Rebuilt:
    job = SimulatedJob(Parallelism(2, p), m, costs=FREE, schedule=SCHEDULES[name])
    model = rebuilt_pipeline(prepare(job.record(range(2)).window()).groups)
    assert isinstance(model, RebuiltPipeline)
    return model.as_is()


def step_s(job: Rebuilt) -> float:
    return float(job.step_s().mean())


def pipeline_s(m: int, p: int, f: float, b: float) -> float:
    """GPipe and 1F1B (Huang et al. 2019, Narayanan et al. 2021)."""
    return (m + p - 1) * (f + b)


def zero_bubble_s(m: int, p: int, f: float, b: float, w: float) -> float:
    """ZB-H1 (Qi et al. 2024, table 2), b for inputs and w for weights; w > b fills no more."""
    return m * (f + b + w) + (p - 1) * (f + b - min(b, w))


@pytest.mark.parametrize(("m", "p"), SHAPES)
@pytest.mark.parametrize("chunks", [2, 4])
def test_interleaving_divides_the_bubble_by_the_chunks(m, p, chunks):
    job = with_chunks(free_job(m, p), np.full((p, chunks), 1 / chunks))
    bubble_s = step_s(job) - m * (F + B)
    assert bubble_s == pytest.approx((p - 1) * (F + B) / chunks, rel=1e-6)


@pytest.mark.parametrize(("m", "p"), SHAPES)
@pytest.mark.parametrize("share", [0.3, 0.5, 0.6])
def test_zero_bubble_takes_as_long_as_in_qi_et_al(m, p, share):
    weight_s = share * B
    found_s = step_s(with_split_backward(free_job(m, p), share))
    if m >= 2 * p - 1:  # else too few micro-batches fill the pipeline
        assert found_s == pytest.approx(zero_bubble_s(m, p, F, B - weight_s, weight_s), rel=1e-6)
    assert found_s <= pipeline_s(m, p, F, B) + 1e-9


@pytest.mark.parametrize(("m", "p"), SHAPES)
def test_halves_of_microbatches_halve_the_bubble(m, p):
    job = with_smaller_microbatches(free_job(m, p), 2)
    assert step_s(job) == pytest.approx(pipeline_s(2 * m, p, F / 2, B / 2), rel=1e-6)
    whole = with_smaller_microbatches(free_job(m, p), 2, fixed_share=1.0)
    assert step_s(whole) == pytest.approx(pipeline_s(2 * m, p, F, B), rel=1e-6)


def test_smaller_parts_of_split_backwards_stay_split():
    job = with_smaller_microbatches(free_job(8, 4, "zero-bubble"), 2)
    assert step_s(job) == pytest.approx(zero_bubble_s(16, 4, F / 2, B / 4, B / 4), rel=1e-6)


def test_transfers_around_take_as_long_as_the_others():
    job = free_job(4, 3)
    drawn = replace(job.drawn, forward_transfer_s=job.drawn.forward_transfer_s + 0.01)
    drawn.forward_transfer_s[0] = 0.0  # nothing is received there
    found = with_chunks(replace(job, drawn=drawn), np.full((3, 2), 0.5)).drawn
    assert found.forward_transfer_s[0] == pytest.approx(0.01)
    assert found.forward_transfer_s.shape == found.forward_s.shape


def test_embedding_and_loss_stay_in_the_first_and_last_chunk():
    shares = end_heavy_shares(np.array([3.0, 2.0, 2.0, 4.0]), 2)
    assert shares * np.array([3.0, 2.0, 2.0, 4.0])[:, None] == pytest.approx(
        np.array([[2.0, 1.0], [1.0, 1.0], [1.0, 1.0], [1.0, 3.0]])
    )
