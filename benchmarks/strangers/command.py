"""`python -m benchmarks strangers`: simulates, asks for a diagnosis, judges."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import track

from app.diagnosis.calibration import own_confidences
from app.monitor import observe
from benchmarks.measuring import logs_on_stderr, map_processes
from benchmarks.strangers.calibrate import SaidFinding, fitted, write_table
from benchmarks.strangers.drawn_jobs import Group, JobNumber, draw_job
from benchmarks.strangers.faults.families import ALL_KINDS, FAMILY_NAMES, HEALTHY_KINDS
from benchmarks.strangers.faults.kinds import IN_TURN, NETWORK_KINDS, PAIRS
from benchmarks.strangers.figures import figures_of, kind_lines
from benchmarks.strangers.injected import (
    injected_figures,
    injections,
    judged_injection,
    missed_injected_bars,
)
from benchmarks.strangers.measure import measure
from benchmarks.strangers.published import NAMES, Published
from benchmarks.strangers.scoring import Verdict, judge

A = TypeVar("A")
R = TypeVar("R")
DEVELOPMENT_SEED = 1
CALIBRATION_TABLE = Path("app/diagnosis/calibration_table.py")
# Fixed before the work on the detectors; jobs of it are never shown one by one.
FINAL_SEED = 93_710_412
FINAL_JOBS: dict[Group, int] = {"single": 800, "pair": 200, "healthy": 300, "apart": 200}


def main(arguments: Sequence[str]) -> int:
    """Print the figures as JSON; 1 while a bar is missed."""
    options = _parser().parse_args(arguments)
    if options.measure_noise:
        table = measure([Published.read(name) for name in NAMES])
        print(json.dumps(asdict(table), indent=1))
        return 0
    shown = options.show or options.kind or options.seed != DEVELOPMENT_SEED
    shown = shown or options.families or options.healthy_kinds
    if options.final and (shown or options.calibrate):
        print(
            "--final takes no --show, --kind, --seed, --families, --healthy-kinds or --calibrate: "
            "its jobs are not for eyes, "
            "and confidence is held against jobs that it was not fitted on",
            file=sys.stderr,
        )
        return 2
    numbers = numbers_of(options)
    judged = judged_with_own_confidences if options.calibrate else judged_job
    verdicts = _mapped(judged, numbers, options.processes)
    if options.calibrate:
        _calibrate(verdicts, f"--calibrate --jobs {options.jobs} --seed {options.seed}")
    found = figures_of(verdicts)
    num_injected = None if options.final else options.injected
    if num_injected != 0:
        injected = _mapped(judged_injection, injections(num_injected), options.processes)
        found["injected"] = injected_figures(injected)
        found["missed_bars"] += missed_injected_bars(found["injected"])
    if options.json:
        options.json.write_text(json.dumps(found | {"findings": _findings(verdicts)}, indent=1))
    for each in verdicts:
        if options.show and (options.show == "all" or options.show in (*each.kinds, each.group)):
            _show(each)
    print("\n".join(kind_lines(found["per_kind"])), file=sys.stderr)
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
    parser.add_argument(
        "--families", action="store_true", help="jobs of every family, beside the final kinds"
    )
    parser.add_argument("--jobs-per-kind", type=int, default=25, help="of --families")
    parser.add_argument(
        "--healthy-kinds", type=int, default=0, metavar="N", help="N jobs of all healthy kinds"
    )
    parser.add_argument(
        "--injected",
        type=int,
        default=0,
        metavar="N",
        help="also judge N faults injected into published traces (--final: all)",
    )
    parser.add_argument("--show", metavar="KIND", help="list misjudged jobs of a kind; or all")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="figures, and each finding's confidence"
    )
    parser.add_argument(
        "--measure-noise", action="store_true", help="print the noise of the published traces"
    )
    parser.add_argument(
        "--calibrate", action="store_true", help=f"write {CALIBRATION_TABLE} from these jobs"
    )
    parser.add_argument("--processes", type=int, default=2)
    return parser


def numbers_of(options: argparse.Namespace) -> list[JobNumber]:
    """The jobs to be judged."""
    seed = FINAL_SEED if options.final else options.seed
    wanted = FINAL_JOBS if options.final else shares_of(options.jobs)
    if options.families or options.healthy_kinds:
        names = [*FAMILY_NAMES] if options.families else []
        found = [_of_kind(seed, name, k) for name in names for k in range(options.jobs_per_kind)]
        return found + [
            _of_kind(seed, list(HEALTHY_KINDS)[k % len(HEALTHY_KINDS)], k // len(HEALTHY_KINDS))
            for k in range(options.healthy_kinds)
        ]
    kinds = [kind for kind in options.kind or () if kind in ALL_KINDS]
    groups = [kind for kind in options.kind or () if kind not in ALL_KINDS]
    if unknown := [each for each in groups if each not in FINAL_JOBS]:
        known = ", ".join([*FINAL_JOBS, *ALL_KINDS])
        raise SystemExit(f"no kind {unknown[0]}: choose from {known}")
    if kinds or groups:
        share = options.jobs // len(kinds + groups)
        found = [_of_kind(seed, kind, k) for kind in kinds for k in range(share)]
        return found + [job_number(seed, group, k) for group in groups for k in range(share)]
    return [job_number(seed, group, k) for group, count in wanted.items() for k in range(count)]


def _of_kind(seed: int, kind: str, index: int) -> JobNumber:
    """The job of this kind and place."""
    group: Group = "healthy-kind" if kind in HEALTHY_KINDS else "family"
    return JobNumber(seed, "single" if kind in IN_TURN else group, index, (kind,))


def shares_of(jobs: int) -> dict[Group, int]:
    """So many jobs divided among the groups as the final ones are, at least one each."""
    total = sum(FINAL_JOBS.values())
    return {name: max(1, jobs * count // total) for name, count in FINAL_JOBS.items()}


def job_number(seed: int, group: Any, index: int) -> JobNumber:
    """The job of this place in its group, with the kinds of faults that are its turn."""
    names = IN_TURN
    kinds: tuple[str, ...] = ()
    if group == "single":
        kinds = (names[index % len(names)],)
    elif group == "apart" and index % 4 == 1:
        kinds = (names[index // 4 % len(names)],)
    elif group == "apart" and index % 2:
        kinds = (NETWORK_KINDS[index // 4 % len(NETWORK_KINDS)],)  # where clocks matter most
    elif group == "pair":
        kinds = PAIRS[index % len(PAIRS)]
    return JobNumber(seed, group, index, kinds)


def _mapped(call: Callable[[A], R], items: Sequence[A], processes: int) -> list[R]:
    """What the call returns of each, with a progress bar."""
    with logs_on_stderr(), map_processes(call, items, processes) as found:
        return list(track(found, "Diagnosing", len(items), console=Console(stderr=True)))


def judged_job(number: JobNumber) -> Verdict:
    """Draw, diagnose and judge one job."""
    job = draw_job(number)
    started_s = time.perf_counter()
    result = None if job.window is None else observe(job.window).result
    return judge(job, result, round(time.perf_counter() - started_s, 4))


def judged_with_own_confidences(number: JobNumber) -> Verdict:
    """The same with the confidences that detectors have without the table."""
    with own_confidences():
        return judged_job(number)


def _calibrate(verdicts: Sequence[Verdict], options: str) -> None:
    said = [
        SaidFinding(each.cause, each.confidence, each.is_right, verdict.feed)
        for verdict in verdicts
        for each in verdict.named
    ]
    write_table(
        CALIBRATION_TABLE,
        fitted(said),
        f"{len(said):,} findings of\n`python -m benchmarks strangers {options}`.",
    )


def _findings(verdicts: Sequence[Verdict]) -> list[dict[str, str | float]]:
    """Confidence and truth of each finding, without the job that it is of."""
    findings = sorted(
        (finding.cause, finding.confidence, finding.is_right)
        for verdict in verdicts
        for finding in verdict.named
    )
    return [
        {"cause": cause, "confidence": confidence, "is_right": is_right}
        for cause, confidence, is_right in findings
    ]


def _show(verdict: Verdict) -> None:
    """One misjudged job on standard error."""
    if not verdict.is_flawless:
        print(json.dumps(asdict(verdict), indent=1), file=sys.stderr)
