"""Predicted against achieved gain of each fix (`benchmarks advice`).

Simulated jobs with a fault that a fix removes. The fix is then really applied: the job is simulated
again with it, and with another seed, so with other noise. Errors are points of the step time before
the fix: 100 * |T_new predicted - T_new achieved| / T.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from app.advice.advise import advise
from app.advice.fix import Facts, Fix
from app.advice.models.all_reduce import Network
from app.advice.resplit_stages import NAME as RESPLIT
from app.advice.stages.stage_layout import megatron_layout
from app.engine.replays import prepare
from app.monitor import advice_case
from app.synth.costs import OperationCosts
from app.synth.faults.fault import Fault
from app.synth.faults.interruptions import GcPauses
from app.synth.faults.sequence_imbalance import LptSequences, SequenceImbalance
from app.synth.faults.slow_compute import SlowWorker
from app.synth.faults.slow_network import FlappingNic, SlowDpGroup, SlowLink, SlowNic
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from app.trace.window import Window
from tests.harness.ddp_jobs import ddp_window, with_all_reduce, with_straggl_ar

STEPS = 24
SEQUENCE_SETTINGS = ("max_length", "full_share", "attention_share", "is_sent")
MAX_MEDIAN, MAX_P95, MAX_ERROR, MAX_SLOWER = 2.0, 4.0, 8.0, 1.0


def _recorded(job: SimulatedJob, steps: Sequence[int]) -> Window:
    return job.record(steps).window()


@dataclass(frozen=True)
class Trial:
    """A job, what its owner knows, and the job with a fix applied, which `steps_after` are of."""

    fix: str
    job: SimulatedJob
    facts: Facts
    applied: Callable[[Fix], SimulatedJob]
    record: Callable[[SimulatedJob, Sequence[int]], Window] = _recorded
    steps_after: range = range(STEPS, 2 * STEPS)


@dataclass(frozen=True)
class Outcome:
    """Points of the step before; `error` is None where the fix was not advised."""

    fix: str
    predicted: float | None
    achieved: float | None

    @property
    def error(self) -> float | None:
        """Points between predicted and achieved."""
        if self.predicted is None or self.achieved is None:
            return None
        return abs(self.predicted - self.achieved)


def random_trial(seed: int) -> Trial:
    """A job of 2 to 8 dp ranks and 2 to 8 stages, with one fault."""
    rng = np.random.default_rng(seed)
    dp, pp = int(rng.integers(2, 9)), int(rng.choice([2, 4, 4, 8]))
    job = SimulatedJob(
        Parallelism(dp, pp, 8),
        int(rng.integers(pp, 4 * pp + 1)),
        costs=OperationCosts(noise=float(rng.uniform(0.005, 0.03))),
        seed=int(rng.integers(1 << 30)),
    )
    makers = (_slow_worker, _long_stage, _gc_pauses, _slow_network, _late_rank, _uneven_sequences)
    return makers[seed % len(makers)](job, rng)


def _without_faults(job: SimulatedJob) -> SimulatedJob:
    return replace(job, faults=(), seed=job.seed + 1)


def _worker(job: SimulatedJob, rng: np.random.Generator) -> tuple[int, int]:
    sizes = job.parallelism
    return int(rng.integers(sizes.dp_size)), int(rng.integers(sizes.pp_size))


def _slow_worker(job: SimulatedJob, rng: np.random.Generator) -> Trial:
    sizes = job.parallelism
    fault = SlowWorker(
        int(rng.integers(sizes.dp_size)),
        int(rng.integers(sizes.pp_size)),
        float(rng.uniform(1.1, 2)),
    )
    slow = replace(job, faults=(fault,))
    return Trial("replace-worker", slow, Facts(), lambda _: _without_faults(slow))


def _slow_network(job: SimulatedJob, rng: np.random.Generator) -> Trial:
    """A slow or flapping network card, a slow link, or slow collectives of one stage."""
    dp_rank, stage = _worker(job, rng)
    slowdown = float(rng.uniform(5, 40))
    faults: tuple[Fault, ...] = (
        SlowNic(dp_rank, stage, slowdown),
        FlappingNic(dp_rank, stage, 2 * slowdown),
        SlowLink(dp_rank, min(stage, job.parallelism.pp_size - 2), 2 * slowdown),
        SlowDpGroup(stage, slowdown),
    )
    slow = replace(job, faults=(faults[int(rng.integers(len(faults)))],))
    return Trial("repair-link", slow, Facts(), lambda _: _without_faults(slow))


def _uneven_sequences(job: SimulatedJob, rng: np.random.Generator) -> Trial:
    fault = SequenceImbalance(
        max_length=int(rng.choice([8_192, 32_768, 65_536])),
        full_share=float(rng.uniform(0.005, 0.05)),
        attention_share=float(rng.uniform(0.15, 0.6)),
        is_sent=bool(rng.random() < 0.5),
    )
    settings = {name: getattr(fault, name) for name in SEQUENCE_SETTINGS}
    slow = replace(job, faults=(fault,))
    dealt = LptSequences(**settings, documents_seed=job.seed)
    balanced = replace(job, faults=(dealt,), seed=job.seed + 1)
    # The same steps, as other steps have other documents: only the noise is to be another.
    return Trial("balance-sequences", slow, Facts(), lambda _: balanced, steps_after=range(STEPS))


def _late_rank(job: SimulatedJob, rng: np.random.Generator) -> Trial:
    """DDP with a rank that is always late: gradients by a ring, then by StragglAR."""
    dp, pp = int(rng.choice([4, 8, 16])), int(rng.choice([1, 1, 2, 4]))
    network = Network(float(rng.uniform(3e-6, 5e-5)), 1 / float(rng.uniform(5e9, 50e9)))
    num_bytes, dp_rank = int(rng.integers(1 << 28, 1 << 32)), int(rng.integers(dp))
    # From too little to be worth it to more than enough.
    fault = SlowWorker(dp_rank, int(rng.integers(pp)), float(rng.uniform(1.02, 1.6)))
    changed = replace(job, parallelism=Parallelism(dp, pp, 8), faults=(fault,))
    ring = with_all_reduce(changed, num_bytes, network)

    def applied(_: Fix) -> SimulatedJob:
        other_noise, steps = replace(ring, seed=ring.seed + 1), range(STEPS, 2 * STEPS)
        return with_straggl_ar(other_noise, steps, dp_rank, num_bytes, network)

    return Trial("straggl-ar", ring, Facts(), applied, ddp_window)


def _gc_pauses(job: SimulatedJob, rng: np.random.Generator) -> Trial:
    fault = GcPauses(rate=float(rng.uniform(0.005, 0.03)), pause_s=float(rng.uniform(0.1, 0.4)))
    slow = replace(job, faults=(fault,))
    # One joint pause in 500 steps: in most windows of this length there is none.
    return Trial("planned-gc", slow, Facts(), lambda _: _without_faults(slow))


def _long_stage(job: SimulatedJob, rng: np.random.Generator) -> Trial:
    pp, layers = job.parallelism.pp_size, int(rng.integers(4, 13))
    loss_layers = float(rng.uniform(0.2, 0.9)) * layers

    def with_layers(counts: Sequence[int], seed: int) -> SimulatedJob:
        work = np.array(counts, float)
        work[-1] += loss_layers
        costs = replace(job.costs, stage_factors=tuple((work / layers).tolist()))
        return replace(job, costs=costs, seed=seed)

    def applied(fix: Fix) -> SimulatedJob:
        layout = fix.paste[0].text.split('"')[1]
        return with_layers(layers_of(layout), job.seed + 1)

    return Trial(RESPLIT, with_layers([layers] * pp, job.seed), Facts(layers=layers * pp), applied)


TOGETHER = "together"


@dataclass(frozen=True)
class CombinedTrial:
    """A job with several faults, by the fix that removes each.

    `with_layers` is the job with other layers on its stages, which re-splitting them needs.
    """

    job: SimulatedJob
    facts: Facts
    fault_of: dict[str, Fault]
    with_layers: Callable[[SimulatedJob, Sequence[int]], SimulatedJob]

    def applied(self, fixes: Sequence[Fix]) -> SimulatedJob:
        """The job with these fixes and other noise; faults without one of them stay."""
        names = {each.name for each in fixes}
        left = tuple(fault for name, fault in self.fault_of.items() if name not in names)
        job = replace(self.job, faults=left, seed=self.job.seed + 1)
        for fix in fixes:
            if fix.name == RESPLIT:
                job = self.with_layers(job, layers_of(fix.paste[0].text.split('"')[1]))
        return job


def random_combined_trial(seed: int) -> CombinedTrial:
    """A job of 2 to 8 dp ranks and 4 or 8 stages with two or three faults."""
    rng = np.random.default_rng([seed, 2])
    dp, pp = int(rng.integers(3, 9)), int(rng.choice([4, 8]))
    layers = int(rng.integers(4, 13))
    loss_layers = float(rng.uniform(0.3, 0.9)) * layers

    def with_layers(job: SimulatedJob, counts: Sequence[int]) -> SimulatedJob:
        work = np.array(counts, float)
        work[-1] += loss_layers
        costs = replace(job.costs, stage_factors=tuple((work / layers).tolist()))
        return replace(job, costs=costs)

    worker = int(rng.integers(dp)), int(rng.integers(pp))
    faults: dict[str, Fault] = {
        "replace-worker": SlowWorker(*worker, float(rng.uniform(1.3, 2.5))),
        "planned-gc": GcPauses(
            rate=float(rng.uniform(0.01, 0.03)), pause_s=float(rng.uniform(0.2, 0.4))
        ),
        "repair-link": SlowNic(int(rng.integers(dp)), int(rng.integers(pp)), 40.0),
    }
    has_long_stage = bool(rng.random() < 0.5)
    for name in rng.permutation(list(faults))[int(rng.choice([1, 2])) + (not has_long_stage) :]:
        del faults[str(name)]
    job = SimulatedJob(
        Parallelism(dp, pp, 8),
        int(rng.integers(pp, 4 * pp + 1)),
        costs=OperationCosts(noise=float(rng.uniform(0.005, 0.03))),
        faults=tuple(faults.values()),
        seed=int(rng.integers(1 << 30)),
    )
    if not has_long_stage:
        return CombinedTrial(job, Facts(), faults, lambda job, _: job)
    long = with_layers(job, [layers] * pp)
    return CombinedTrial(long, Facts(layers=layers * pp), faults, with_layers)


def layers_of(layout: str) -> list[int]:
    """Layers of each stage in a layout of Megatron-LM that `megatron_layout` made."""
    stages = [stage.strip("EL") for stage in layout.split("|")]
    found = [0 if not each else int(each[2:] or 1) for each in stages]
    if megatron_layout(found) != layout:
        raise ValueError(f"not a layout of ours: {layout}")
    return found


def outcome_of(seed: int) -> Outcome:
    """One trial, from the job with its fault to the job with the fix."""
    trial = random_trial(seed)
    window = trial.record(trial.job, range(STEPS))
    case = advice_case(prepare(window), trial.facts)
    fix = next((each for each in advise(case).fixes if each.name == trial.fix), None)
    if fix is None:
        return Outcome(trial.fix, None, None)
    after = prepare(trial.record(trial.applied(fix), trial.steps_after))
    return Outcome(
        trial.fix,
        100 * (1 - fix.step_s / case.step_s),
        100 * (1 - float(after.simulated_s.mean()) / case.step_s),
    )


def combined_outcome_of(seed: int) -> Outcome:
    """One job with several faults, against the same job with the best set of fixes."""
    trial = random_combined_trial(seed)
    window = trial.job.record(range(STEPS)).window()
    case = advice_case(prepare(window), trial.facts)
    together = advise(case).together
    if together is None:
        return Outcome(TOGETHER, None, None)
    after = prepare(trial.applied(together.fixes).record(range(STEPS, 2 * STEPS)).window())
    return Outcome(
        TOGETHER,
        100 * (1 - together.step_s / case.step_s),
        100 * (1 - float(after.simulated_s.mean()) / case.step_s),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the errors of each fix as JSON; 1 if a limit does not hold."""
    parser = argparse.ArgumentParser(prog="benchmarks advice", description=__doc__)
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    begin_s = time.perf_counter()
    seeds = range(options.seed * 100_000, options.seed * 100_000 + options.jobs)
    with ProcessPoolExecutor(2) as pool:
        outcomes = list(pool.map(outcome_of, seeds, chunksize=5))
        combined = seeds[: options.jobs // 4]
        outcomes += pool.map(combined_outcome_of, combined, chunksize=5)
    names = sorted({each.fix for each in outcomes})
    total = _summary(outcomes)
    by_fix = {name: _summary([each for each in outcomes if each.fix == name]) for name in names}
    is_good = (
        total["median"] <= MAX_MEDIAN
        and total["p95"] <= MAX_P95
        and total["max"] <= MAX_ERROR
        and total["slower"] == 0
    )
    seconds = round(time.perf_counter() - begin_s, 1)
    found = {"by_fix": by_fix, "all": total, "within_limits": is_good, "seconds": seconds}
    print(json.dumps(found, indent=2))
    return 0 if is_good else 1


def _summary(outcomes: Sequence[Outcome]) -> dict[str, float]:
    errors = [each.error for each in outcomes if each.error is not None]
    slower = sum(each.achieved is not None and each.achieved < -MAX_SLOWER for each in outcomes)
    return {
        "jobs": len(outcomes),
        "advised": len(errors),
        "median": float(np.median(errors)) if errors else 0.0,
        "p95": float(np.percentile(errors, 95)) if errors else 0.0,
        "max": max(errors, default=0.0),
        "slower": slower,
    }
