"""`paceline bench ingest`: how many operations a second come to lie on disk in the queue?"""

import json
import os
from collections.abc import Awaitable, Callable
from functools import partial
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.bench.timing import Timings, to_copy
from app.errors import DeliveryFailed

if TYPE_CHECKING:
    from app.cli.bench.ingest_load import Answers, Worker

    Send = Callable[[list[Worker], Answers, float], Awaitable[float]]

USUAL_ROWS = (10_000, 200)
QUEUE_BYTES = 8 << 30  # nobody takes anything out
WARM_UP_S = 1.0
_COPIES = 5
_FSYNCS = 30


def ingest(
    batch_rows: Annotated[
        list[int] | None, typer.Option(min=1, max=100_000, help="Operations in a batch.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="Length of each phase.")] = 5.0,
    connections: Annotated[int, typer.Option(min=1, max=200, help="Workers that send.")] = 16,
    paced_rows_per_s: Annotated[
        float | None, typer.Option(min=1, help="Rate of the second phase; half of the first's.")
    ] = None,
) -> None:
    """Send batches to an API and queue of its own: flat out, then at half the rate reached.

    Every answer is checked, and so is that the queue has all that was acknowledged.

    Example: paceline bench ingest --batch-rows 200
    """
    for rows in batch_rows or USUAL_ROWS:
        typer.echo(json.dumps(_measured(rows, seconds, connections, paced_rows_per_s)))


def _measured(
    rows: int, seconds: float, connections: int, paced_rows_per_s: float | None
) -> dict[str, Any]:
    from app.cli.bench.ingest_load import flat_out, paced

    took_s, flat_s = _phase(rows, seconds, connections, flat_out)
    requests_per_s = len(flat_s) / took_s
    calm_per_s = paced_rows_per_s / rows if paced_rows_per_s else 0.5 * requests_per_s
    _, calm_s = _phase(rows, seconds, connections, partial(paced, requests_per_s=calm_per_s))
    yardstick_s = copy_s()
    return {
        "batch_rows": rows,
        "rows_per_s": rows * requests_per_s,
        "requests_per_s": requests_per_s,
        "ack_p50_ms": _percentile_ms(flat_s, 50),
        "ack_p99_ms": _percentile_ms(flat_s, 99),
        "paced_rows_per_s": rows * calm_per_s,
        "paced_ack_p50_ms": _percentile_ms(calm_s, 50),
        "paced_ack_p99_ms": _percentile_ms(calm_s, 99),
        "copy_100mb_s": yardstick_s,
        "fsync_ms": _fsync_ms(rows),
        "rows_per_copy": rows * requests_per_s * yardstick_s,
        "connections": connections,
    }


def _phase(rows: int, seconds: float, connections: int, send: "Send") -> tuple[float, list[float]]:
    """Seconds that the sending took, and the seconds until each answer."""
    import uvloop

    from app.cli.bench import ingest_load, ingest_stack
    from app.cli.bench.ingest_batch import body_of

    async def sent() -> tuple[float, list[float]]:
        answers = ingest_load.Answers(rows)
        workers = await ingest_load.connect(target, body_of(rows), connections, answers)
        await ingest_load.flat_out(workers, answers, WARM_UP_S)
        num_early = len(answers.latency_s)
        took_s = await send(workers, answers, seconds)
        for worker in workers:
            worker.close()
        num_kept = target.backlog()
        if num_kept != len(answers.latency_s):
            raise DeliveryFailed(
                f"{len(answers.latency_s)} batches were acknowledged and the queue has {num_kept}",
                retryable=False,
            )
        return took_s, answers.latency_s[num_early:]

    with ingest_stack.running(workers=connections, queue_bytes=QUEUE_BYTES) as target:
        return uvloop.run(sent())


def _percentile_ms(seconds: list[float], percent: float) -> float:
    import numpy as np

    return 1e3 * float(np.percentile(seconds, percent))


def copy_s() -> float:
    """Seconds that a copy of 100 MB takes now."""
    timings, source = Timings(), to_copy()
    for _ in range(_COPIES):
        timings.time("copy_100mb_s", source.copy)
    return timings.medians()["copy_100mb_s"]


def _fsync_ms(rows: int) -> float:
    """Milliseconds until one batch that is written lies on disk now, without a queue."""
    from app.cli.bench.ingest_batch import body_of

    timings, body = Timings(), body_of(rows)
    with TemporaryFile(buffering=0) as file:

        def write() -> None:
            file.write(body)
            os.fsync(file.fileno())

        for _ in range(_FSYNCS):
            timings.time("fsync_s", write)
    return 1e3 * timings.medians()["fsync_s"]
