"""`python -m benchmarks strangers`: simulates, asks for a diagnosis, judges."""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from app.monitor import observe
from benchmarks.measuring import logs_on_stderr, map_processes
from benchmarks.strangers.drawn_jobs import Group, JobNumber, draw_job
from benchmarks.strangers.faults.kinds import KINDS, PAIRS
from benchmarks.strangers.figures import figures_of
from benchmarks.strangers.scoring import Verdict, judge

DEVELOPMENT_SEED = 1
# Fixed before the work on the detectors; jobs of it are never shown one by one.
FINAL_SEED = 77_231_120
FINAL_JOBS: dict[Group, int] = {"single": 800, "pair": 200, "healthy": 300, "apart": 200}


def main(arguments: Sequence[str]) -> int:
    """Print the figures as JSON; 1 while a bar is missed."""
    options = _parser().parse_args(arguments)
    if options.final and (options.show or options.kind or options.seed != DEVELOPMENT_SEED):
        print(
            "--final takes no --show, --kind or --seed: its jobs are not for eyes", file=sys.stderr
        )
        return 2
    numbers = numbers_of(options)
    verdicts = _judged(numbers, options.processes)
    found = figures_of(verdicts)
    if options.json:
        options.json.write_text(json.dumps(found | {"findings": _findings(verdicts)}, indent=1))
    for each in verdicts:
        if options.show and (options.show == "all" or options.show in (*each.kinds, each.group)):
            _show(each)
    print(json.dumps(found, indent=1))
    return 1 if found["missed_bars"] else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks strangers", description=__doc__)
    seeds = parser.add_mutually_exclusive_group()
    seeds.add_argument("--dev", action="store_true", help="seeds for development (default)")
    seeds.add_argument("--final", action="store_true", help="the fixed seeds; totals only")
    parser.add_argument("--jobs", type=int, default=300, help="jobs of all groups together")
    parser.add_argument("--seed", type=int, default=DEVELOPMENT_SEED)
    parser.add_argument("--kind", action="append", help="only this kind of fault, or group")
    parser.add_argument("--show", metavar="KIND", help="list misjudged jobs of a kind; or all")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="figures, and each finding's confidence"
    )
    parser.add_argument("--processes", type=int, default=2)
    return parser


def numbers_of(options: argparse.Namespace) -> list[JobNumber]:
    """The jobs to be judged."""
    seed = FINAL_SEED if options.final else options.seed
    wanted = FINAL_JOBS
    if not options.final:
        total = sum(FINAL_JOBS.values())
        wanted = {name: max(1, options.jobs * count // total) for name, count in FINAL_JOBS.items()}
    kinds = [kind for kind in options.kind or () if kind in KINDS]
    groups = [kind for kind in options.kind or () if kind not in KINDS]
    if unknown := [each for each in groups if each not in FINAL_JOBS]:
        raise SystemExit(f"no kind {unknown[0]}: choose from {', '.join([*FINAL_JOBS, *KINDS])}")
    if kinds or groups:
        share = options.jobs // len(kinds + groups)
        found = [JobNumber(seed, "single", k, (kind,)) for kind in kinds for k in range(share)]
        return found + [_number(seed, group, k) for group in groups for k in range(share)]
    return [_number(seed, group, k) for group, count in wanted.items() for k in range(count)]


def _number(seed: int, group: Any, index: int) -> JobNumber:
    names = list(KINDS)
    kinds: tuple[str, ...] = ()
    if group == "single" or (group == "apart" and index % 2):
        kinds = (names[(index if group == "single" else index // 2) % len(names)],)
    elif group == "pair":
        kinds = PAIRS[index % len(PAIRS)]
    return JobNumber(seed, group, index, kinds)


def _judged(numbers: list[JobNumber], processes: int) -> list[Verdict]:
    with logs_on_stderr(), map_processes(judged_job, numbers, processes) as verdicts:
        console = Console(stderr=True)
        return list(track(verdicts, "Diagnosing", len(numbers), console=console))


def judged_job(number: JobNumber) -> Verdict:
    """Draw, diagnose and judge one job."""
    job = draw_job(number)
    started_s = time.perf_counter()
    result = observe(job.window).result
    return judge(job, result, round(time.perf_counter() - started_s, 4))


def _findings(verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """Confidence and truth of each finding, without the job that it is of."""
    found = [
        {"cause": each.cause, "confidence": each.confidence, "is_right": each.is_right}
        for verdict in verdicts
        for each in verdict.named
    ]
    return sorted(found, key=lambda each: (each["cause"], each["confidence"], each["is_right"]))


def _show(verdict: Verdict) -> None:
    """One misjudged job on standard error."""
    exact = verdict.are_culprits_exact is not False and verdict.is_onset_right is not False
    far = any(abs(each) > 0.02 for each in verdict.cost_errors)
    is_good = verdict.outcome == "right" and exact and not far and not verdict.false_beside
    if is_good and verdict.both_named is not False:
        return
    print(json.dumps(asdict(verdict), indent=1), file=sys.stderr)
