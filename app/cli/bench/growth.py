"""`paceline bench growth`: how does the time of an analysis grow with the job?"""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.bench.made import made_window
from app.cli.bench.timing import Timings
from app.errors import InvalidRequest

if TYPE_CHECKING:
    from app.trace.window import Window


def growth(
    pp: Annotated[int, typer.Option(min=1, help="Pipeline stages.")] = 16,
    microbatches: Annotated[int, typer.Option(min=1, help="Micro-batches a step.")] = 64,
    steps: Annotated[int, typer.Option(min=1, help="Steps of every job.")] = 2,
    workers: Annotated[
        str, typer.Option(help="Numbers of workers, multiples of the stages.")
    ] = "256,1024,4096,16384",
    repeats: Annotated[int, typer.Option(min=1, help="Timed runs of each size.")] = 5,
) -> None:
    """Time the full analysis of made jobs of several sizes; time = c * workers ^ exponent.

    Example: paceline bench growth --workers 256,4096
    """
    import numpy as np

    from app.engine.memory import keep_freed_memory

    keep_freed_memory()  # as the consumer does
    sizes = _sizes(workers, pp)
    seconds = [
        _analysis_s(made_window(size // pp, pp, microbatches, steps), repeats) for size in sizes
    ]
    exponent = float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])
    typer.echo(json.dumps({"workers": sizes, "total_s": seconds, "exponent": exponent}))


def _analysis_s(window: "Window", repeats: int) -> float:
    from app.engine.report import analyse
    from app.engine.result import as_json

    analyse(window)
    timings = Timings()
    for _ in range(repeats):
        timings.time("total_s", lambda: as_json(analyse(window)))
    return timings.medians()["total_s"]


def _sizes(text: str, pp: int) -> list[int]:
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
