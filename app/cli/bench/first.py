"""`paceline bench first`: how long does the first analysis take in a process of its own?"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from app.cli.bench.timing import Timings, to_copy
from app.errors import InvalidRequest


def first(
    trace: Annotated[Path, typer.Argument(help="Published parquet trace.")],
    repeats: Annotated[int, typer.Option(min=1, help="Processes started.")] = 5,
) -> None:
    """Time `paceline analyze` from the start of the process to its end, kernels on disk.

    Example: paceline bench first trace-AR.parquet
    """
    timings, source = Timings(), to_copy()
    command = [sys.executable, "-m", "app.cli", "analyze", str(trace), "--json", "-"]
    _run(command)
    for _ in range(repeats):
        timings.time("first_analysis_s", lambda: _run(command))
        timings.time("copy_100mb_s", source.copy)
    typer.echo(json.dumps({"trace": trace.name, **timings.medians(), "repeats": repeats}))


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603, ours
    if done.returncode:
        raise InvalidRequest(done.stderr.strip().removeprefix("paceline: "))
