"""`paceline analyze`: how slow a recorded job is, and why, without a server."""

from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from rich.console import Console

from app.cli.options import MetaFile, json_option
from app.cli.output import STANDARD_OUTPUT, printable, refuse_to_overwrite, write_json
from app.cli.terminal import show, stderr_console
from app.cli.trace_input import analyse_profiles, are_profiles, errors_naming, read_trace
from app.errors import InvalidRequest

if TYPE_CHECKING:
    from app.trace.window import Window


def analyze(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="A published parquet trace, or torch.profiler files of one job's ranks.",
            metavar="TRACE.parquet | RANK.json.gz...",
        ),
    ],
    meta: MetaFile = None,
    steps: Annotated[
        str | None, typer.Option(help="Analyse only these steps, as in 3,5-9.", metavar="STEPS")
    ] = None,
    json_out: Annotated[Path | None, json_option("the whole result")] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write a report here: one HTML file with all charts.")
    ] = None,
) -> None:
    """Show how slow a recorded job is, why, and which workers, stages and operations cause it.

    Example: paceline analyze trace-AR.parquet --steps 100-200 --html report.html

    Example: paceline analyze rank*.pt.trace.json.gz --json result.json
    """
    from app.cli.html_report import write_report
    from app.cli.terminal.result import summary
    from app.monitor import analysed, observe
    from app.result.clock_times import in_clock_words
    from app.trace.readers.published.meta import beside
    from app.trace.uneven_counts import uneven_counts

    if are_profiles(files):
        _analyze_profiles(files, meta, steps, json_out, html)
        return
    trace = files[0]
    if json_out != STANDARD_OUTPUT:
        refuse_to_overwrite("--json", json_out, trace, meta)
    refuse_to_overwrite("--html", html, trace, meta)
    with stderr_console().status("analysing"):
        window = read_trace(trace, meta, steps)
        with errors_naming(trace, "record the step again, or choose other steps with --steps"):
            # Dp ranks that differ by design leave facts, and not always figures to draw.
            has_facts = html is None and uneven_counts(window) is not None
            figures = observe(window).result if has_facts else analysed(window)[1]
            result = in_clock_words(figures, time())
    if json_out is not None:
        write_json(result, json_out)
    if html is not None:
        write_report(result, window, html)
    if meta is None and beside(trace) is None:
        name = printable(trace.name)
        typer.echo(f"No meta file for {name}: sizes are from the trace, tp_size is 1.", err=True)
    if json_out != STANDARD_OUTPUT:
        Console().print(summary(result, _ranks(window)))


def _analyze_profiles(
    files: list[Path],
    meta: Path | None,
    steps: str | None,
    json_out: Path | None,
    html: Path | None,
) -> None:
    from app.cli.terminal.profiles import profile_summary

    for option, given in (("--meta", meta), ("--html", html)):
        if given is not None:
            raise InvalidRequest(
                f"{option} is for parquet traces, and these are torch.profiler files: leave it out"
            )
    if json_out is not None and json_out != STANDARD_OUTPUT:
        refuse_to_overwrite("--json", json_out, files[0], None, *files[1:])
    with stderr_console().status("analysing"):
        result = analyse_profiles(files, steps)
    show(json_out, lambda: result, lambda: profile_summary(result))


def _ranks(window: "Window") -> list[list[int]]:
    """Global ranks, [dp ranks][stages]."""
    sizes, trace = window.job.parallelism, window.trace
    by_worker = np.zeros((sizes.dp_size, sizes.pp_size), np.int64)
    by_worker[trace.dp_rank, trace.stage] = trace.rank
    ranks: list[list[int]] = by_worker.tolist()
    return ranks
