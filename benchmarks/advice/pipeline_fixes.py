"""Trials of fixes that change the pipeline.

Replicas with different numbers of micro-batches cannot be replayed, so their step is the
generator's own, without launch delays, which no replay has.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from app.advice.facts import Facts
from app.advice.fix import AdviceCase, Fix
from app.advice.other_schedule import fix_of_option, options
from app.advice.rebuilt_pipeline import step_times
from app.advice.recorded_pipeline import NotRebuilt
from app.synth.costs import OperationCosts
from app.synth.drawing import DrawnSteps
from app.synth.faults.fault import Fault
from app.synth.faults.sequence_imbalance import SequenceImbalance
from app.synth.faults.slow_compute import SlowWorker
from app.synth.job import SimulatedJob
from app.synth.schedules import SCHEDULES
from app.trace.job import Parallelism
from benchmarks.advice.trial import (
    AFTER,
    Trial,
    advised,
    pasted_layers,
    recorded,
    simulated_step_s,
)


def pipeline_trial(seed: int) -> Trial[Fix]:
    """A job whose pipeline is changed; its kind goes by the seed."""
    return MAKERS[seed % len(MAKERS)](np.random.default_rng([seed, 5]))


def without_launch_delays(drawn: DrawnSteps) -> DrawnSteps:
    """The same durations with every operation launched as soon as it can be."""
    none = np.zeros((*drawn.forward_s.shape[:3], 1, 1))
    once = {name: np.zeros(delay_s.shape) for name, delay_s in drawn.once_delay_s.items()}
    return replace(
        drawn,
        forward_delay_s=none,
        backward_delay_s=none,
        weight_delay_s=None if drawn.weight_share is None else none,
        once_delay_s=once,
        p2p_delay_s={},
    )


def uneven_step_s(job: SimulatedJob, counts: Sequence[int]) -> float:
    """Seconds: mean step of later steps with these micro-batches on each dp rank."""
    drawn = replace(job, num_microbatches=max(counts), seed=job.seed + 1).drawn(AFTER)
    return float(
        step_times(job.parallelism, job.schedule, counts, without_launch_delays(drawn)).mean()
    )


def move_trial(rng: np.random.Generator) -> Trial[Fix]:
    """A slow worker in 2 to 8 replicas of 1 to 8 stages, of any schedule.

    In one of five, sequences of different lengths besides.
    """
    dp, pp = int(rng.integers(2, 9)), int(rng.choice([1, 2, 4, 8]))
    name = str(rng.choice(list(SCHEDULES)))
    rounds = int(rng.integers(3, 7))
    is_interleaved = name == "interleaved" and pp > 1
    m = pp * rounds if is_interleaved else int(rng.integers(max(4, pp), 4 * pp + 8))
    fault = SlowWorker(int(rng.integers(dp)), int(rng.integers(pp)), float(rng.uniform(1.2, 2.5)))
    others: tuple[Fault, ...] = (SequenceImbalance(),) if rng.random() < 0.2 else ()
    job = SimulatedJob(
        Parallelism(dp, pp, 8, 2 if is_interleaved else 1),
        m,
        schedule=SCHEDULES[name],
        costs=OperationCosts(noise=float(rng.uniform(0.005, 0.03))),
        faults=(fault, *others),
        seed=int(rng.integers(1 << 30)),
    )

    def achieved_s(fix: Fix) -> float:
        return uneven_step_s(job, json.loads(fix.paste[0].text)["microbatches"])

    return Trial(
        "move-microbatches", recorded(job), Facts(), advised("move-microbatches"), achieved_s
    )


def _bubbly_job(rng: np.random.Generator, loss_layers: float) -> tuple[SimulatedJob, int]:
    """A job with a large bubble, and its layers; the loss costs as much as some layers."""
    dp, pp = int(rng.integers(1, 6)), int(rng.choice([4, 8]))
    layers = 4 * int(rng.integers(1, 4))
    work = np.full(pp, float(layers))
    work[-1] += loss_layers
    return SimulatedJob(
        Parallelism(dp, pp, 8),
        pp * int(rng.integers(1, 5)),
        costs=OperationCosts(
            noise=float(rng.uniform(0.005, 0.03)), stage_factors=tuple((work / layers).tolist())
        ),
        seed=int(rng.integers(1 << 30)),
    ), layers * pp


def _option(kind: str) -> Callable[[AdviceCase], Fix | None]:
    """That option of the other schedules, whether or not another one is faster."""

    def fix(case: AdviceCase) -> Fix | None:
        model = case.pipeline
        if isinstance(model, NotRebuilt):
            return None
        found = next((each for each in options(case, model) if each.kind == kind), None)
        return None if found is None else fix_of_option(case, model, found)

    return fix


def interleaved(
    job: SimulatedJob, chunks: int, layers: int, loss_layers: float = 0.0
) -> SimulatedJob:
    """The job with several chunks on a stage; the loss is in the last one."""
    pp = job.parallelism.pp_size
    work = np.full(chunks * pp, layers / (chunks * pp))
    work[-1] += loss_layers
    costs = replace(
        job.costs,
        stage_factors=(),
        chunk_factors=tuple((work / (layers / (chunks * pp))).tolist()),
        params_all_gather_s=job.costs.params_all_gather_s / chunks,
        grads_reduce_scatter_s=job.costs.grads_reduce_scatter_s / chunks,
    )
    sizes = replace(job.parallelism, vpp_size=chunks)
    return replace(job, parallelism=sizes, costs=costs, schedule=SCHEDULES["interleaved"])


def zero_bubble(job: SimulatedJob) -> SimulatedJob:
    """The job with ZB-H1, where half of a backward computes weights' gradients."""
    return replace(job, schedule=SCHEDULES["zero-bubble"])


def smaller_microbatches(job: SimulatedJob) -> SimulatedJob:
    """The job with twice as many micro-batches of half the work and bytes."""
    costs = replace(
        job.costs,
        forward_s=job.costs.forward_s / 2,
        backward_s=job.costs.backward_s / 2,
        stage_transfer_s=job.costs.stage_transfer_s / 2,
    )
    return replace(job, costs=costs, num_microbatches=2 * job.num_microbatches)


def interleaved_trial(rng: np.random.Generator) -> Trial[Fix]:
    """Four chunks on a stage; a loss that costs up to two layers stays in the last chunk."""
    loss_layers = float(rng.choice([0.0, rng.uniform(0, 2)]))
    job, layers = _bubbly_job(rng, loss_layers)
    applied = interleaved(job, 4, layers, loss_layers)
    return _trial_of_option("interleaved", job, layers, applied)


def zero_bubble_trial(rng: np.random.Generator) -> Trial[Fix]:
    """ZB-H1 as the fix assumes it."""
    job, layers = _bubbly_job(rng, float(rng.choice([0.0, rng.uniform(0, 2)])))
    return _trial_of_option("zero-bubble", job, layers, zero_bubble(job))


def smaller_microbatches_trial(rng: np.random.Generator) -> Trial[Fix]:
    """Twice as many micro-batches."""
    job, layers = _bubbly_job(rng, float(rng.choice([0.0, rng.uniform(0, 2)])))
    return _trial_of_option("micro-batches", job, layers, smaller_microbatches(job))


def _trial_of_option(
    kind: str, job: SimulatedJob, layers: int, applied: SimulatedJob
) -> Trial[Fix]:
    facts = Facts(layers=layers)
    return Trial(kind, recorded(job), facts, _option(kind), lambda _: simulated_step_s(applied))


def interleaved_split_trial(rng: np.random.Generator) -> Trial[Fix]:
    """A loss of 1 to 3 layers in the last chunk of interleaved stages."""
    pp, chunks = int(rng.choice([2, 4, 8])), int(rng.choice([2, 3, 4]))
    layers, loss_layers = int(rng.integers(2, 5)), float(rng.uniform(1, 3))
    embedding_layers = float(rng.uniform(0, 0.5))
    plain = SimulatedJob(
        Parallelism(int(rng.integers(2, 7)), pp, 8, chunks),
        pp * int(rng.integers(1, 5)),
        costs=OperationCosts(noise=float(rng.uniform(0.005, 0.03))),
        schedule=SCHEDULES["interleaved"],
        seed=int(rng.integers(1 << 30)),
    )

    def with_layers(counts: Sequence[int]) -> SimulatedJob:
        work = np.array(counts, float)
        work[0] += embedding_layers
        work[-1] += loss_layers
        factors = tuple((np.maximum(work, 1e-3) / layers).tolist())
        return replace(plain, costs=replace(plain.costs, chunk_factors=factors))

    def achieved_s(fix: Fix) -> float:
        return simulated_step_s(with_layers(pasted_layers(fix)))

    number = pp * chunks
    return Trial(
        "interleaved-split",
        recorded(with_layers([layers] * number)),
        Facts(layers=layers * number),
        advised("resplit-stages"),
        achieved_s,
    )


MAKERS = (
    move_trial,
    interleaved_trial,
    zero_bubble_trial,
    smaller_microbatches_trial,
    interleaved_split_trial,
)
