"""Groups inside a job: is the slow GPU named, and a healthy one never? (`benchmarks groups`)

Simulated jobs (group_jobs.py) with tp 8, cp 4 or ep 16; healthy, or with one slow member, two, or a
host of eight. The engine names culprits from the tables alone; judged by rank.
"""

import argparse
import json
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from app.engine.arrivals.arrivals import arrivals_of_table
from benchmarks.group_jobs import (
    GPUS_PER_HOST,
    LAYOUTS,
    Layout,
    World,
    groups_of,
    random_world,
    simulated,
    speeds,
)

FAULTS = ("healthy", "one", "two", "host")
MIN_RIGHT, MAX_FALSE = 0.95, 0.005
# A fault that costs a smaller share of the step need not be named.
MIN_EFFECT = 0.02
# Naming a GPU without a fault is not wrong where its repair saves this share of the step: GPUs
# differ, and rule 1 of docs/arrivals.md requires as much.
MIN_TRUE_EFFECT = 0.01


@dataclass(frozen=True)
class Verdict:
    """How one job was judged."""

    family: str
    fault: str
    outcome: str  # "right", "missed", "wrong", "small" (need not be named), "quiet"
    slow: tuple[int, ...]
    named: tuple[int, ...]
    world: World


def with_fault(world: World, fault: str, rng: np.random.Generator) -> World:
    """The job with slow members."""
    num = world.layout.num_ranks
    times = float(rng.uniform(1.1, 2.0))
    if fault == "one":
        return replace(world, slow={int(rng.integers(num)): times})
    if fault == "two":
        return replace(world, slow=_two(world.layout, times, rng))
    if fault == "host":
        first = int(rng.integers(num // GPUS_PER_HOST)) * GPUS_PER_HOST
        return replace(world, slow=dict.fromkeys(range(first, first + GPUS_PER_HOST), times))
    return world


def _two(layout: Layout, times: float, rng: np.random.Generator) -> dict[int, float]:
    """Two members of one group with much the same fault, or of two groups with any."""
    groups = groups_of(layout)[layout.family[:2]]
    if rng.random() < 0.5:
        ranks = rng.choice(groups[rng.integers(len(groups))], 2, replace=False)
        return {int(ranks[0]): times, int(ranks[1]): 1 + (times - 1) * rng.uniform(0.9, 1.0)}
    first, second = rng.choice(len(groups), 2, replace=False)
    return {
        int(rng.choice(groups[first])): times,
        int(rng.choice(groups[second])): float(rng.uniform(1.1, 2.0)),
    }


def named(world: World) -> tuple[set[int], float]:
    """Ranks that the engine blames, and the job's mean step."""
    recording = simulated(world)
    found = arrivals_of_table(
        recording.table, recording.steps, recording.step_s, recording.receives
    )
    ranks = set() if found is None else {found.places[each.place].rank for each in found.culprits}
    return ranks, float(recording.step_s.mean())


def judge(task: tuple[str, str, int]) -> Verdict:
    """One job of a family with a fault."""
    family, fault, seed = task
    rng = np.random.default_rng([seed, *map(ord, family + fault)])
    layouts = LAYOUTS[family]
    layout = layouts[int(rng.integers(len(layouts)))]
    world = with_fault(random_world(rng, layout), fault, rng)
    ranks, step_s = named(world)
    slow = set(world.slow)
    extra = sorted(ranks - slow)
    outcome = "right" if slow else "quiet"
    if any(not _is_worth_naming(world, rank, ranks) for rank in extra):
        outcome = "wrong"
    elif not slow <= ranks:
        outcome = "missed" if _effect(world, step_s) >= MIN_EFFECT else "small"
    return Verdict(family, fault, outcome, tuple(sorted(slow)), tuple(sorted(ranks)), world)


def _effect(world: World, step_s: float) -> float:
    """Share of the step that all slow members cost together."""
    return 1 - float(simulated(world, healthy=list(world.slow)).step_s.mean()) / step_s


def _is_worth_naming(world: World, rank: int, ranks: set[int]) -> bool:
    """Whether a GPU without a fault is slow enough to be named: with the others repaired."""
    if speeds(world)[rank] <= float(np.median(speeds(world))):
        return False
    others = sorted((ranks | set(world.slow)) - {rank})
    before_s = float(simulated(world, healthy=others).step_s.mean())
    after_s = float(simulated(world, healthy=[*others, rank]).step_s.mean())
    return 1 - after_s / before_s >= MIN_TRUE_EFFECT


def summary(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Rates by family and fault; a fault too small to be named counts neither way."""
    scenarios = {}
    for family in LAYOUTS:
        for fault in FAULTS:
            outcomes = Counter(
                each.outcome for each in verdicts if (each.family, each.fault) == (family, fault)
            )
            judged = outcomes.total() - outcomes["small"]
            good = outcomes["quiet" if fault == "healthy" else "right"]
            scenarios[f"{family} {fault}"] = {
                **outcomes,
                "rate": round(good / judged, 4) if judged else None,
            }
    faulty = [each for each in verdicts if each.fault != "healthy" and each.outcome != "small"]
    healthy = [each for each in verdicts if each.fault == "healthy"]
    right = sum(each.outcome == "right" for each in faulty) / max(1, len(faulty))
    false = sum(each.outcome == "wrong" for each in healthy) / max(1, len(healthy))
    return {
        "scenarios": scenarios,
        "num_faulty": len(faulty),
        "num_healthy": len(healthy),
        "right": round(right, 4),
        "false": round(false, 4),
        "bars": {"right": MIN_RIGHT, "false": MAX_FALSE},
        "passed": right >= MIN_RIGHT and false <= MAX_FALSE,
    }


def main(arguments: list[str]) -> int:
    """Print JSON; 1 while a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks groups", description=__doc__)
    parser.add_argument("--jobs", type=int, default=300, help="healthy jobs, and faulty ones")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--failures", action="store_true", help="list the jobs judged wrongly")
    options = parser.parse_args(arguments)
    families = list(LAYOUTS)
    tasks = [
        (families[at % len(families)], fault, options.seed * 1_000_000 + at)
        for fault in FAULTS
        for at in range(options.jobs if fault == "healthy" else -(-options.jobs // 3))
    ]
    began_s = time.perf_counter()
    if options.processes > 1:
        with ProcessPoolExecutor(options.processes) as pool:
            verdicts = list(pool.map(judge, tasks, chunksize=4))
    else:
        verdicts = [judge(task) for task in tasks]
    report = summary(verdicts) | {"seconds": round(time.perf_counter() - began_s, 1)}
    if options.failures:
        report["failures"] = [str(each) for each in verdicts if each.outcome in ("wrong", "missed")]
    print(json.dumps(report, indent=2))
    return 0 if report["passed"] else 1
