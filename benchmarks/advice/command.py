"""The command line: all kinds of trials, and how long advice takes."""

import argparse
import json
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

from app.advice.advise import advise
from app.advice.facts import Facts
from app.engine.replays import prepare
from app.monitor import advice_case
from app.synth.faults.sequence_imbalance import SequenceImbalance
from app.synth.faults.slow_compute import SlowWorker
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from benchmarks.advice.fix_sets import fix_set_trial
from benchmarks.advice.pipeline_fixes import pipeline_trial
from benchmarks.advice.single_fixes import single_fix_trial
from benchmarks.advice.trial import Outcome, is_within_limits, summary

ORDINARY = SimulatedJob(Parallelism(8, 4, 8), 16, faults=(SlowWorker(2, 1, 1.6),))
LARGEST = replace(ORDINARY, parallelism=Parallelism(512, 16, 1), num_microbatches=64)
# Steps: 44,288 and 12.26 million operations. Seconds: the longest that advice may take.
SEQUENCES = (SequenceImbalance(is_sent=True),)
SPEEDS = {
    "ordinary": (ORDINARY, 16, 0.1),
    "ordinary, sequences": (replace(ORDINARY, faults=SEQUENCES), 16, 0.1),
    "largest": (LARGEST, 4, 1.0),
    "largest, sequences": (replace(LARGEST, faults=SEQUENCES), 4, 1.0),
}
REPEATS = 5


def outcome_of(seed: int) -> Outcome:
    """One trial: two of four are of one fault, one of a pipeline, one of several faults."""
    kind = seed % 4
    if kind == 3:
        return fix_set_trial(seed).outcome()
    return (pipeline_trial if kind == 2 else single_fix_trial)(seed // 4 * 2 + kind % 2).outcome()


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the errors of each kind as JSON; 1 if a limit does not hold."""
    parser = argparse.ArgumentParser(prog="benchmarks advice", description=__doc__)
    parser.add_argument("--jobs", type=int, default=300, help="simulated jobs, of all kinds")
    parser.add_argument("--seed", type=int, default=0, help="other jobs")
    parser.add_argument("--speed", action="store_true", help="only how long advice takes")
    options = parser.parse_args(arguments)
    if options.speed:
        return _speed()
    begin_s, first = time.perf_counter(), options.seed * 100_000
    with ProcessPoolExecutor(2) as pool:
        outcomes = list(pool.map(outcome_of, range(first, first + options.jobs), chunksize=5))
    names = sorted({each.kind for each in outcomes})
    by_kind = {name: summary([each for each in outcomes if each.kind == name]) for name in names}
    total = summary(outcomes)
    is_good = is_within_limits(total) and all(
        is_within_limits(each) for each in by_kind.values() if each["advised"] >= MIN_TO_JUDGE
    )
    seconds = round(time.perf_counter() - begin_s, 1)
    found = {"by_kind": by_kind, "all": total, "within_limits": is_good, "seconds": seconds}
    print(json.dumps(found, indent=2))
    return 0 if is_good else 1


# Fewer jobs show no 95th percentile.
MIN_TO_JUDGE = 20


def _speed() -> int:
    """Print the best of some runs for an ordinary and for the largest job."""
    found, is_good = {}, True
    for name, (job, steps, limit_s) in SPEEDS.items():
        window = job.record(range(steps)).window()
        case = advice_case(prepare(window), Facts(layers=4 * job.parallelism.pp_size))
        took_s = []
        for _ in range(REPEATS):
            fresh = replace(case)  # nothing of an earlier run is known
            begin_s = time.perf_counter()
            advise(fresh)
            took_s.append(time.perf_counter() - begin_s)
        found[name] = {
            "operations": window.trace.num_ops,
            "seconds": round(min(took_s[1:]), 4),
            "first_s": round(took_s[0], 4),
            "limit_s": limit_s,
        }
        is_good = is_good and min(took_s[1:]) <= limit_s
    print(json.dumps(found, indent=2))
    return 0 if is_good else 1
