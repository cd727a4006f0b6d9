"""Benchmarks, as commands: each prints JSON with medians from one warm process."""

import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import track

from app.errors import InvalidRequest
from app.trace.window import Window

app = typer.Typer(no_args_is_help=True, help="Measure Paceline on this machine; prints JSON.")


@app.callback()
def bench() -> None:
    """Measure Paceline on this machine; prints JSON."""


@app.command()
def analyze(
    traces: Annotated[list[Path] | None, typer.Argument(help="Published parquet traces.")] = None,
    synthetic: Annotated[
        str | None,
        typer.Option(help="A made job instead: dp=1024,pp=16,microbatches=64,steps=2."),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Timed runs after one warm-up.")] = 15,
) -> None:
    """Time load and full analysis: every figure, exact S_w, per step.

    Example: paceline bench analyze trace-AR.parquet
    """
    if bool(traces) == bool(synthetic):
        raise InvalidRequest("bench analyze wants either TRACE files or --synthetic")
    for name, load in _sources(traces or [], synthetic):
        typer.echo(json.dumps({"trace": name, **_measure(load, repeats)}))


def _sources(traces: list[Path], synthetic: str | None) -> list[tuple[str, Callable[[], Window]]]:
    from app.trace.readers import published

    if synthetic is None:
        return [(path.name, partial(published.read, path)) for path in traces]
    window = _made_window(synthetic)
    return [(synthetic, lambda: window)]


def _made_window(sizes: str) -> Window:
    from app.synth.run import MadeJob
    from app.trace.job import Job, Parallelism

    wanted = {"dp": 8, "pp": 4, "microbatches": 8, "steps": 2}
    for part in sizes.split(","):
        key, _, value = part.partition("=")
        if key not in wanted or not value.isdigit() or int(value) < 1:
            raise InvalidRequest(f"--synthetic: {part!r} is not one of {', '.join(wanted)}=NUMBER")
        wanted[key] = int(value)
    parallelism = Parallelism(wanted["dp"], wanted["pp"])
    made = MadeJob(parallelism, wanted["microbatches"])
    steps = tuple(range(wanted["steps"]))
    return Window(Job.of("made", parallelism), 1, 0, steps, made.make(steps), state="complete")


def _measure(load: Callable[[], Window], repeats: int) -> dict[str, Any]:
    import numpy as np

    from app.engine.grid import lay_out
    from app.engine.report import analyse
    from app.engine.what_if import replayer

    analyse(load())
    source = np.ones(12_500_000)  # 100 MB: what the machine's memory can do at this moment
    timings: dict[str, list[float]] = {}

    def timed(name: str, call: Callable[[], Any]) -> Any:
        started_s = time.perf_counter()
        value = call()
        timings.setdefault(name, []).append(time.perf_counter() - started_s)
        return value

    for _ in track(range(repeats), "measuring", console=_stderr(), transient=True):
        window = timed("load_s", load)
        timed("analyse_s", partial(analyse, window))
        timed("total_s", lambda: analyse(load()))
        grid = lay_out(window)
        ready = timed("graph_s", partial(replayer, grid))
        timed("simulate_s", partial(ready.step_times, ready.keep()))
        timed("copy_100mb_s", source.copy)
    medians = {name: statistics.median(seconds) for name, seconds in timings.items()}
    return {
        **medians,
        "ops": window.trace.num_ops,
        "simulated_ops_per_s": window.trace.num_ops / medians["simulate_s"],
        "total_to_copy": medians["total_s"] / medians["copy_100mb_s"],
        "peak_rss_bytes": _peak_rss_bytes(),
        "repeats": repeats,
    }


def _peak_rss_bytes() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _stderr() -> Any:
    from rich.console import Console

    return Console(stderr=True)
