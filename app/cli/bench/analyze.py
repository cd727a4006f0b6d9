"""`paceline bench analyze`: load, full analysis, one simulation and a user's question."""

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.bench.made import made_window, sizes
from app.cli.bench.timing import Timings, peak_rss_bytes_of, to_copy
from app.errors import InvalidRequest

if TYPE_CHECKING:
    from app.engine.questions.edits import Edit
    from app.trace.window import Window


def analyze(
    traces: Annotated[list[Path] | None, typer.Argument(help="Published parquet traces.")] = None,
    synthetic: Annotated[
        str | None,
        typer.Option(help="A made job instead: dp=1024,pp=16,microbatches=64,steps=2."),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Timed runs after one warm-up.")] = 15,
) -> None:
    """Time load and full analysis in one warm process: every figure, exact S_w, per step.

    Example: paceline bench analyze trace-AR.parquet
    """
    if bool(traces) == bool(synthetic):
        raise InvalidRequest("bench analyze wants either TRACE files or --synthetic")
    for name, load in _sources(traces or [], synthetic):
        typer.echo(json.dumps({"trace": name, **_measure(load, repeats)}))


def _sources(traces: list[Path], synthetic: str | None) -> "list[tuple[str, Callable[[], Window]]]":
    from app.trace.readers import published

    if synthetic is None:
        return [(path.name, partial(published.read, path)) for path in traces]
    window = made_window(**sizes(synthetic))
    return [(synthetic, lambda: window)]


def _measure(load: "Callable[[], Window]", repeats: int) -> dict[str, Any]:
    from app.engine.memory import keep_freed_memory
    from app.engine.report import analyse
    from app.engine.result import as_json

    keep_freed_memory()  # as the consumer does
    analyse(load())
    peak_bytes = peak_rss_bytes_of(lambda: as_json(analyse(load())))
    timings, source = Timings(), to_copy()
    for _ in _watched(repeats):
        timings.time("load_s", load)
        timings.time("total_s", lambda: as_json(analyse(load())))
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


def _measure_parts(window: "Window", timings: Timings, repeats: int) -> int:
    """Time the parts of an analysis; returns the number of operations of one simulation."""
    from app.engine.graph import build
    from app.engine.questions.answer import Questions
    from app.engine.replays import prepare

    replay = prepare(window)
    group, questions = replay.groups[0], Questions(replay)
    questions.answer([])
    for _ in _watched(repeats):
        # A template remembers what was looked up in it, so each graph gets one of its own.
        template = replace(group.template)
        timings.time("graph_s", lambda: build(template).slots)  # noqa: B023, called at once
        timings.time("simulate_s", lambda: group.step_times(group.keep()))
        for name, edits in _usual_questions().items():
            timings.time(f"question_{name}_s", partial(questions.answer, edits))
    return group.grid.start_s.size


def _watched(repeats: int) -> Iterable[int]:
    from rich.progress import track

    from app.cli.console import notes

    return track(range(repeats), "measuring", console=notes(), transient=True)


def _usual_questions() -> "dict[str, list[Edit]]":
    """From one that changes few durations to one that changes them all."""
    from app.engine.questions.edits import Edit, Factor, FromWorker, Selection, Set

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
