"""`diagnosis`: is the cause right, and has a healthy job no findings?"""

import json
from typing import Annotated, Literal

import typer
from rich.progress import track

from app.cli.terminal import stderr_console
from app.errors import InvalidRequest
from benchmarks.diagnosis import scoring
from benchmarks.diagnosis.drawn_jobs import JobNumber, job_numbers
from benchmarks.diagnosis.examination import examine, job_report
from benchmarks.diagnosis.truth import DiagnosisOutcome
from benchmarks.diagnosis.verdict import misses
from benchmarks.measuring import logs_on_stderr, map_processes


def diagnosis(
    jobs: Annotated[
        int, typer.Option(min=1, help="Simulated jobs, the healthy ones included.")
    ] = 90,
    seed: Annotated[
        int, typer.Option(min=0, help="Below 1000 for tuning, from 1000 on for reports.")
    ] = 1,
    family: Annotated[
        Literal["tune", "held-out", "all"],
        typer.Option(help="Which noises, costs and shapes; a third of `all` is held out."),
    ] = "all",
    healthy: Annotated[
        int | None, typer.Option(min=0, help="How many of them are healthy; default: a third.")
    ] = None,
    processes: Annotated[int, typer.Option(min=1, help="Cores to use.")] = 2,
    only: Annotated[
        int | None, typer.Option(help="Print a full report of one job of a list of misses.")
    ] = None,
) -> None:
    """Diagnose simulated jobs like the consumer, and compare the findings with the truth.

    docs/diagnosis-bench.md defines every figure. In short: a job counts if its fault really costs
    at least 5 % (the same job without it, same seed); top1 is the first finding's cause of a
    single fault; the culprit is right if exactly the workers to blame are named; an onset if it
    is within 2 recorded steps. The same seed prints the same figures, times excepted.

    Example: python -m benchmarks diagnosis --jobs 90 --seed 7 --family tune
    """
    if only is not None:
        with logs_on_stderr():
            report = job_report(JobNumber.of(only))
        typer.echo(json.dumps(report, indent=2))
        return
    num_healthy = jobs // 3 if healthy is None else healthy
    if num_healthy > jobs:
        raise InvalidRequest(f"{num_healthy} healthy ones of {jobs} jobs: ask for more jobs")
    outcomes = _outcomes(job_numbers(seed, family, jobs - num_healthy, num_healthy), processes)
    typer.echo(json.dumps({"seed": seed, "family": family, **_printed(outcomes)}))


def _outcomes(wanted: list[JobNumber], processes: int) -> list[DiagnosisOutcome]:
    with logs_on_stderr(), map_processes(examine, wanted, processes) as found:
        total = len(wanted)
        return list(
            track(found, "diagnosing", total=total, console=stderr_console(), transient=True)
        )


def _printed(outcomes: list[DiagnosisOutcome]) -> dict[str, object]:
    families = sorted({each.family for each in outcomes})
    return {
        **scoring.figures(outcomes),
        "per_cause": scoring.per_cause(outcomes),
        "per_kind": scoring.per_kind(outcomes),
        "per_family": {
            name: scoring.figures([each for each in outcomes if each.family == name])
            for name in families
        },
        "calibration": scoring.calibration(outcomes),
        "misses": misses(outcomes),
    }
