"""`paceline bench api`: how soon does the API answer what pages ask?"""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.bench.ingest import copy_s

if TYPE_CHECKING:
    from app.cli.bench.ingest_stack import Target

STEPS = 20  # of the job that is pushed: two windows are closed, a third is open


def api(
    jobs: Annotated[int, typer.Option(min=2, help="Jobs that are stored.")] = 1000,
    windows: Annotated[int, typer.Option(min=2, help="Windows that are stored, of all.")] = 10_000,
    workers: Annotated[
        int, typer.Option(min=4, help="Workers of the job whose pages are asked for.")
    ] = 1024,
    times: Annotated[int, typer.Option(min=1, help="How often each address is asked.")] = 100,
) -> None:
    """Ask every address that a page may ask, of a store with many jobs and windows.

    One job is pushed as a real one is, and its addresses are asked; the others are put into the
    store. Addresses come from the API's own description; one that is refused is listed. The
    `busy_` figures are the times for which the API had a processor: on a machine that does other
    things, too, they say more than the others.

    Example: paceline bench api --jobs 1000 --windows 10000
    """
    import asyncio

    from app.cli.bench.api import measuring
    from app.cli.bench.api.figures import figures
    from app.cli.bench.page import job as pushed

    with pushed.stack(workers) as target:
        asyncio.run(pushed.Feed.of(target, workers, microbatches=8).push(STEPS))
        _fill(target, jobs - 1, windows)
        answers, refused = measuring.asked(target, _addresses(target), times)
    found = {"jobs": jobs, "windows": windows, "workers": workers, "times": times}
    typer.echo(json.dumps(found | figures(answers, refused) | {"copy_100mb_s": copy_s()}))


def _fill(target: "Target", jobs: int, windows: int) -> None:
    import time

    from app.cli.bench.api.filling import fill
    from app.store.engine import Store

    store = Store(target.store_url)
    try:
        fill(store, num_jobs=jobs, num_windows=windows, now_s=time.time())
    finally:
        store.close()


def _addresses(target: "Target") -> dict[str, list[str]]:
    from app.cli.bench.api import addresses, measuring
    from app.cli.bench.ingest_stack import JOB

    known = {
        "job_id": [JOB],
        "window": ["latest", "1-0", "1-0..1-8"],
        "worker": ["1-1"],
        "host": ["node-0"],
        "stage": ["1"],
        "optype": ["forward-compute"],
        "seq_id": ["0"],
        "a": [f"{JOB}:1-0"],
        "b": [f"{JOB}:1-8"],
    }
    return addresses.addresses(measuring.document(target), known)
