"""`paceline bench page`: how soon is a job's page drawn, and what does it hold on to?"""

import json
from pathlib import Path
from typing import Annotated

import typer

from app.cli.bench.ingest import copy_s

USUAL_WORKERS = (1_024, 16_384)


def page(
    workers: Annotated[
        list[int] | None, typer.Option(min=4, help="Workers of the job; several times for more.")
    ] = None,
    clicks: Annotated[int, typer.Option(min=1, help="How often each opening is measured.")] = 5,
    minutes: Annotated[
        float, typer.Option(min=0, help="How long new steps come with the page open.")
    ] = 1.0,
    microbatches: Annotated[int, typer.Option(min=1, help="Of each step of the job.")] = 8,
    chromium: Annotated[
        Path | None, typer.Option(exists=True, help="Where Chromium is; left out: looked for.")
    ] = None,
) -> None:
    """Open a made job's page in headless Chromium: by a click in the fleet, and from nothing.

    Then new steps come, and what is measured is the time from the server's event to the last
    chart's repaint, how far anything moved, and JavaScript's heap. Starts a stack of its own for
    each size. Wants Playwright and Chromium.

    Example: paceline bench page --workers 1024 --minutes 30
    """
    import asyncio

    from app.cli.bench.page.chromium import refuse_without_playwright
    from app.cli.bench.page.job import stack, stages_of
    from app.cli.bench.page.measuring import figures

    refuse_without_playwright()
    sizes = workers or list(USUAL_WORKERS)
    for num_workers in sizes:
        stages_of(num_workers)
    for num_workers in sizes:
        with stack(num_workers) as target:
            measured = asyncio.run(
                figures(target, num_workers, microbatches, clicks, minutes, chromium)
            )
        typer.echo(json.dumps(measured | {"copy_100mb_s": copy_s()}))
