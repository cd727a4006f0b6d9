"""`analyze`, `growth`, `first`: how long does an analysis take, warm, by size, and from nothing?"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.progress import track

from app.cli.terminal import stderr_console
from app.engine.graph import RowSlots, build_graph
from app.engine.grid import Grid
from app.engine.memory import keep_freed_memory
from app.engine.questions.answer import Questions
from app.engine.questions.edits import Edit, Factor, FromWorker, Selection, Set
from app.engine.replays import prepare
from app.engine.report import analyse, report_result
from app.errors import InvalidRequest
from app.trace.readers.published import trace_files
from app.trace.window import Window
from benchmarks.measuring import (
    Timings,
    array_to_copy,
    job_sizes,
    peak_rss_bytes_of,
    simulated_window,
)


def analyze(
    traces: Annotated[list[Path] | None, typer.Argument(help="Published parquet traces.")] = None,
    synthetic: Annotated[
        str | None,
        typer.Option(help="A simulated job instead: dp=1024,pp=16,microbatches=64,steps=2."),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Timed runs after one warm-up.")] = 15,
) -> None:
    """Time load and full analysis in one warm process: every figure, exact S_w, per step.

    Example: python -m benchmarks analyze trace-AR.parquet
    """
    if bool(traces) == bool(synthetic):
        raise InvalidRequest("give either TRACE files or --synthetic")
    for name, load in _sources(traces or [], synthetic):
        typer.echo(json.dumps({"trace": name, **_measure(load, repeats)}))


def _sources(traces: list[Path], synthetic: str | None) -> list[tuple[str, Callable[[], Window]]]:
    if synthetic is None:
        return [(path.name, partial(trace_files.read, path)) for path in traces]
    window = simulated_window(**job_sizes(synthetic))
    return [(synthetic, lambda: window)]


def _measure(load: Callable[[], Window], repeats: int) -> dict[str, Any]:
    keep_freed_memory()  # as the consumer does
    analyse(load())
    peak_bytes = peak_rss_bytes_of(lambda: report_result(analyse(load())))
    timings, source = Timings(), array_to_copy()
    for _ in _progress(repeats):
        timings.time("load_s", load)
        timings.time("total_s", lambda: report_result(analyse(load())))
        timings.time("copy_100mb_s", source.copy)
    del source
    window = load()
    num_simulated = _measure_parts(window, timings, repeats)
    medians = timings.medians()
    # The slowest kind of question counts.
    questions = {name: medians.pop(name) for name in list(medians) if name.startswith("question")}
    return {
        **medians,
        "question_s": max(questions.values()),
        "ops": window.trace.num_ops,
        "simulated_ops_per_s": num_simulated / medians["simulate_s"],
        "total_to_copy": medians["total_s"] / medians["copy_100mb_s"],
        "peak_rss_bytes": peak_bytes,
        "repeats": repeats,
        **questions,
    }


def _measure_parts(window: Window, timings: Timings, repeats: int) -> int:
    """Time the parts of an analysis; returns the number of operations of one simulation."""
    replay = prepare(window)
    group, questions = replay.groups[0], Questions(replay)
    questions.answer([])
    for _ in _progress(repeats):
        # A template caches its lookups, so each graph gets its own.
        grid = replace(group.grid, template=replace(group.template))
        timings.time("graph_s", partial(_graph_slots, grid))
        timings.time("simulate_s", lambda: group.step_times(group.keep()))
        for name, edits in _questions().items():
            timings.time(f"question_{name}_s", partial(questions.answer, edits))
    return group.grid.start_s.size


def _graph_slots(grid: Grid) -> RowSlots:
    return build_graph(grid).slots


def _progress(repeats: int) -> Iterable[int]:
    return track(range(repeats), "measuring", console=stderr_console(), transient=True)


def _questions() -> dict[str, list[Edit]]:
    """From one that changes few durations to one that changes them all."""
    no_communication = Edit(Set(0.0), Selection(op_types=("pp-comm",)))
    return {
        "no_pp_comm": [no_communication],
        "faster_compute": [Edit(Factor(0.9), Selection(op_types=("compute",)))],
        "faster": [Edit(Factor(0.9))],
        "as_one_worker": [Edit(FromWorker(0, 0))],
        "three_edits": [
            no_communication,
            Edit(Factor(0.9), Selection(op_types=("compute",))),
            Edit(FromWorker(0, 0), Selection(dp_ranks=(0,))),
        ],
    }


def growth(
    pp: Annotated[int, typer.Option(min=1, help="Pipeline stages.")] = 16,
    microbatches: Annotated[int, typer.Option(min=1, help="Micro-batches a step.")] = 64,
    steps: Annotated[int, typer.Option(min=1, help="Steps of every job.")] = 2,
    workers: Annotated[
        str, typer.Option(help="Numbers of workers, multiples of the stages.")
    ] = "256,1024,4096,16384",
    repeats: Annotated[int, typer.Option(min=1, help="Timed runs of each size.")] = 5,
) -> None:
    """Time the full analysis of simulated jobs of several sizes; time = c * workers ^ exponent.

    Example: python -m benchmarks growth --workers 256,4096
    """
    keep_freed_memory()  # as the consumer does
    sizes = _worker_counts(workers, pp)
    seconds = [
        _analysis_s(simulated_window(size // pp, pp, microbatches, steps), repeats)
        for size in sizes
    ]
    exponent = float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])
    typer.echo(json.dumps({"workers": sizes, "total_s": seconds, "exponent": exponent}))


def _analysis_s(window: Window, repeats: int) -> float:
    analyse(window)
    timings = Timings()
    for _ in range(repeats):
        timings.time("total_s", lambda: report_result(analyse(window)))
    return timings.medians()["total_s"]


def _worker_counts(text: str, pp: int) -> list[int]:
    parts = text.split(",")
    if not all(part.isdigit() and len(part) < 10 and int(part) for part in parts):
        raise InvalidRequest(f"--workers: {text!r} is no list of numbers such as 256,4096")
    sizes = sorted({int(part) for part in parts})
    if len(sizes) < 2:
        raise InvalidRequest(f"--workers: growth from {text} to what? Give two sizes or more")
    for size in sizes:
        if size % pp:
            raise InvalidRequest(f"--workers: {size} is no multiple of {pp} stages")
    return sizes


def first(
    trace: Annotated[Path, typer.Argument(help="Published parquet trace.")],
    repeats: Annotated[int, typer.Option(min=1, help="Processes started.")] = 5,
) -> None:
    """Time `paceline analyze` from the start of the process to its end, kernels on disk.

    Example: python -m benchmarks first trace-AR.parquet
    """
    timings, source = Timings(), array_to_copy()
    command = [sys.executable, "-m", "app.cli", "analyze", str(trace), "--json", "-"]
    _run_analyze(command)
    for _ in range(repeats):
        timings.time("first_analysis_s", lambda: _run_analyze(command))
        timings.time("copy_100mb_s", source.copy)
    typer.echo(json.dumps({"trace": trace.name, **timings.medians(), "repeats": repeats}))


def _run_analyze(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InvalidRequest(done.stderr.strip().removeprefix("paceline: "))
