"""Predicted against achieved gain of fixes that change the pipeline.

Run it as `python -m benchmarks.advice_pipelines`.

As in `advice.py`: the fix is really applied in the generator, with other noise. Replicas with
different numbers of micro-batches cannot be replayed, so their step is the generator's own, without
launch delays, which no replay has.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from app.advice.fix import AdviceCase, Facts, Fix, NotOffered
from app.advice.move_microbatches import move_microbatches
from app.advice.other_schedule import fix_of_option, options
from app.advice.pipeline.rebuilt_pipeline import rebuilt_pipeline
from app.advice.pipeline.recorded_pipeline import NotRebuilt
from app.advice.resplit_stages import resplit_stages
from app.engine.replays import prepare
from app.monitor import advice_case
from app.synth.costs import OperationCosts
from app.synth.faults.fault import Fault
from app.synth.faults.sequence_imbalance import SequenceImbalance
from app.synth.faults.slow_compute import SlowWorker
from app.synth.job import SimulatedJob
from app.synth.schedules import SCHEDULES
from app.synth.uneven_replicas import step_times, without_launch_delays
from app.trace.job import Parallelism
from benchmarks.advice import MAX_ERROR, MAX_MEDIAN, MAX_P95, STEPS, Outcome, _summary, layers_of

AFTER = range(STEPS, 2 * STEPS)


@dataclass(frozen=True)
class PipelineTrial:
    """A job, what its owner knows, the fix to ask for, and the step it takes with it."""

    kind: str
    job: SimulatedJob
    facts: Facts
    fix: Callable[[AdviceCase], Fix | NotOffered]
    achieved_s: Callable[[Fix], float]


def uneven_step_s(job: SimulatedJob, counts: Sequence[int]) -> float:
    """Seconds: mean step of later steps with these micro-batches on each dp rank."""
    drawn = replace(job, num_microbatches=max(counts), seed=job.seed + 1).drawn(AFTER)
    return float(
        step_times(job.parallelism, job.schedule, counts, without_launch_delays(drawn)).mean()
    )


def simulated_step_s(job: SimulatedJob) -> float:
    """Seconds: mean simulated step of later steps, with other noise."""
    window = replace(job, seed=job.seed + 1).record(AFTER).window()
    return float(prepare(window).simulated_s.mean())


def move_trial(rng: np.random.Generator) -> PipelineTrial:
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

    return PipelineTrial("move-microbatches", job, Facts(), move_microbatches, achieved_s)


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


def _option(kind: str) -> Callable[[AdviceCase], Fix | NotOffered]:
    """That option of the other schedules, whether or not another one is faster."""

    def fix(case: AdviceCase) -> Fix | NotOffered:
        model = rebuilt_pipeline(case.replay.groups)
        if isinstance(model, NotRebuilt):
            return NotOffered(kind, model.reason)
        found = next((each for each in options(case, model) if each.kind == kind), None)
        if found is None:
            return NotOffered(kind, "not possible")
        return fix_of_option(case, model, found)

    return fix


def interleaved_trial(rng: np.random.Generator) -> PipelineTrial:
    """Four chunks on a stage; a loss that costs up to two layers stays in the last chunk."""
    loss_layers = float(rng.choice([0.0, rng.uniform(0, 2)]))
    job, layers = _bubbly_job(rng, loss_layers)
    pp = job.parallelism.pp_size

    def achieved_s(_: Fix) -> float:
        work = np.full(4 * pp, layers / (4 * pp))
        work[-1] += loss_layers
        costs = replace(
            job.costs,
            stage_factors=(),
            chunk_factors=tuple((work / (layers / (4 * pp))).tolist()),
            params_all_gather_s=job.costs.params_all_gather_s / 4,
            grads_reduce_scatter_s=job.costs.grads_reduce_scatter_s / 4,
        )
        sizes = replace(job.parallelism, vpp_size=4)
        return simulated_step_s(
            replace(job, parallelism=sizes, costs=costs, schedule=SCHEDULES["interleaved"])
        )

    return PipelineTrial(
        "interleaved", job, Facts(layers=layers), _option("interleaved"), achieved_s
    )


def zero_bubble_trial(rng: np.random.Generator) -> PipelineTrial:
    """ZB-H1, where half of a backward computes weights' gradients, as the fix assumes."""
    job, layers = _bubbly_job(rng, float(rng.choice([0.0, rng.uniform(0, 2)])))
    applied = replace(job, schedule=SCHEDULES["zero-bubble"])
    return PipelineTrial(
        "zero-bubble",
        job,
        Facts(layers=layers),
        _option("zero-bubble"),
        lambda _: simulated_step_s(applied),
    )


def smaller_microbatches_trial(rng: np.random.Generator) -> PipelineTrial:
    """Twice as many micro-batches of half the work and bytes."""
    job, layers = _bubbly_job(rng, float(rng.choice([0.0, rng.uniform(0, 2)])))
    costs = replace(
        job.costs,
        forward_s=job.costs.forward_s / 2,
        backward_s=job.costs.backward_s / 2,
        stage_transfer_s=job.costs.stage_transfer_s / 2,
    )
    applied = replace(job, costs=costs, num_microbatches=2 * job.num_microbatches)
    return PipelineTrial(
        "micro-batches",
        job,
        Facts(layers=layers),
        _option("micro-batches"),
        lambda _: simulated_step_s(applied),
    )


def interleaved_split_trial(rng: np.random.Generator) -> PipelineTrial:
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
        return simulated_step_s(with_layers(layers_of(fix.paste[0].text.split('"')[1])))

    number = pp * chunks
    return PipelineTrial(
        "interleaved-split",
        with_layers([layers] * number),
        Facts(layers=layers * number),
        resplit_stages,
        achieved_s,
    )


TRIALS = (
    move_trial,
    interleaved_trial,
    zero_bubble_trial,
    smaller_microbatches_trial,
    interleaved_split_trial,
)


def outcome_of(seed: int) -> Outcome:
    """One trial, from the job as it is to the job with the fix; the kind goes by the seed."""
    trial = TRIALS[seed % len(TRIALS)](np.random.default_rng([seed, 5]))
    case = advice_case(prepare(trial.job.record(range(STEPS)).window()), trial.facts)
    fix = trial.fix(case)
    if isinstance(fix, NotOffered):
        return Outcome(trial.kind, None, None)
    return Outcome(
        trial.kind,
        100 * (1 - fix.step_s / case.step_s),
        100 * (1 - trial.achieved_s(fix) / case.step_s),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the errors of each kind as JSON; 1 if a limit does not hold."""
    parser = argparse.ArgumentParser(prog="benchmarks.advice_pipelines", description=__doc__)
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    options_given = parser.parse_args(arguments)
    begin_s, first = time.perf_counter(), options_given.seed * 100_000
    with ProcessPoolExecutor(2) as pool:
        outcomes = list(pool.map(outcome_of, range(first, first + options_given.jobs), chunksize=5))
    names = sorted({each.fix for each in outcomes})
    by_kind = {name: _summary([each for each in outcomes if each.fix == name]) for name in names}
    is_good = all(
        each["median"] <= MAX_MEDIAN
        and each["p95"] <= MAX_P95
        and each["max"] <= MAX_ERROR
        and each["slower"] == 0
        for each in by_kind.values()
    )
    seconds = round(time.perf_counter() - begin_s, 1)
    print(json.dumps({"by_kind": by_kind, "within_limits": is_good, "seconds": seconds}, indent=2))
    return 0 if is_good else 1


if __name__ == "__main__":
    raise SystemExit(main())
