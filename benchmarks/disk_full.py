"""`disk-full`: is every acknowledged batch kept when the disk fills, and does it all go on?"""

import json
import time
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Annotated, Any, Literal

import typer

from benchmarks.full_disk import disk_trial, on_small_disk, run_rounds


def disk_full(
    rounds: Annotated[int, typer.Option(min=1, help="How often the disk is filled.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Draws how full, and for how long.")] = 1,
    backend: Annotated[
        Literal["embedded", "postgresql"], typer.Option(help="What is on the disk.")
    ] = "embedded",
) -> None:
    """Fill a disk of 12 MB under load and free it again; exit status 1 if anything was lost.

    Needs root, to mount a tmpfs. Every round has to go on within 10 s of there being space.

    Example: python -m benchmarks disk-full --backend postgresql
    """
    began_s = time.monotonic()
    directory = Path(mkdtemp(prefix="paceline-disk-"))
    with on_small_disk(backend, directory) as (stack, disk):
        with disk_trial(stack, "disk", seed) as trial:
            seen = run_rounds(stack, disk, trial, rounds, seed)
            verdict: dict[str, Any] = trial.finish()
        if seen.violations or verdict["violations"]:
            typer.echo(stack.log_tails(), err=True)
    violations = [*seen.violations, *verdict.pop("violations")]
    took_s = round(time.monotonic() - began_s, 1)
    shown = {"backend": backend, "seed": seed, "took_s": took_s, **seen.as_json(), **verdict}
    typer.echo(json.dumps(shown | {"violations": violations}))
    if violations:
        raise typer.Exit(1)
    rmtree(directory)
