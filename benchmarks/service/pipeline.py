"""`pipeline`: from a worker's batch to a stored result that the API gives."""

import asyncio
import json
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
import uvloop

from benchmarks.measuring import job_sizes
from benchmarks.service.ingest import copy_s
from benchmarks.service.pushing import (
    BatchConnection,
    WorkerBatches,
    batches_of_workers,
    in_turn,
    push_all,
    wait_for_result,
)
from benchmarks.service.stack import StackUnderTest, running_stack

QUEUE_BYTES = 2 << 30
CONNECTIONS = 32
RESULT_WITHIN_S = 120.0


def pipeline(
    synthetic: Annotated[
        str, typer.Option(help="dp, pp, microbatches and steps of the simulated job.")
    ] = "dp=64,pp=16,microbatches=64,steps=64",
    steps_per_batch: Annotated[
        int, typer.Option(min=1, help="Steps that a worker sends at once, flat out.")
    ] = 8,
    paced_steps: Annotated[
        int, typer.Option(min=0, help="Steps that are sent as they would be recorded.")
    ] = 12,
) -> None:
    """Push a simulated job to a stack of its own: flat out, then at the job's own pace.

    Flat out, the rate is that of all operations from the first request on until the last step's
    result is on the API. At the job's own pace every worker sends each step when the step is over;
    what counts is the time from the last worker's request to the step's result.

    Example: python -m benchmarks pipeline --synthetic dp=64,pp=16,microbatches=64,steps=32
    """
    job = job_sizes(synthetic)
    dp, pp, microbatches = job["dp"], job["pp"], job["microbatches"]
    steps_per_batch = min(steps_per_batch, job["steps"])
    num_batches = job["steps"] // steps_per_batch
    workers = batches_of_workers(dp, pp, microbatches, steps_per_batch)
    with running_stack(
        workers=dp * pp, stages=pp, queue_bytes=QUEUE_BYTES, consumes=True
    ) as target:
        figures = uvloop.run(_flat_out(target, workers, num_batches))
    figures |= {"workers": dp * pp, "steps": num_batches * steps_per_batch}
    if paced_steps:
        single_steps = batches_of_workers(dp, pp, microbatches, 1)
        with running_stack(
            workers=dp * pp, stages=pp, queue_bytes=QUEUE_BYTES, consumes=True
        ) as target:
            figures |= uvloop.run(_paced(target, single_steps, paced_steps))
    figures["copy_100mb_s"] = copy_s()
    typer.echo(json.dumps(figures))


async def _flat_out(
    target: StackUnderTest, workers: list[WorkerBatches], num_batches: int
) -> dict[str, Any]:
    connections = [await BatchConnection.open(target) for _ in range(CONNECTIONS)]
    num_steps = workers[0].num_steps
    if num_batches > 1:  # until everything has been used once
        await push_all(connections, in_turn(workers, range(1)))
        await wait_for_result(connections[0], num_steps - 1, RESULT_WITHIN_S)
    numbers = range(min(1, num_batches - 1), num_batches)
    began_s = time.perf_counter()
    await push_all(connections, in_turn(workers, numbers))
    sent_s = time.perf_counter()
    done_s = await wait_for_result(connections[0], num_batches * num_steps - 1, RESULT_WITHIN_S)
    num_rows = len(numbers) * sum(worker.batch.columns.num_ops for worker in workers)
    _close(connections)
    return {
        "rows": num_rows,
        "rows_per_s": num_rows / (done_s - began_s),
        "batch_rows": workers[0].batch.columns.num_ops,
        "sending_s": sent_s - began_s,
        "last_row_to_result_s": done_s - sent_s,
        "consumer_peak_rss_bytes": _peak_rss_bytes(target.consumer_pid),
    }


async def _paced(
    target: StackUnderTest, workers: list[WorkerBatches], num_steps: int
) -> dict[str, Any]:
    step_s = workers[0].step_ns / 1e9
    connections = [await BatchConnection.open(target) for _ in range(CONNECTIONS)]
    query_connection = await BatchConnection.open(target)
    waits_s = []
    began_s = time.perf_counter()
    for step in range(num_steps):
        await asyncio.sleep(max(0.0, began_s + (step + 1) * step_s - time.perf_counter()))
        await push_all(connections, (worker.body(step) for worker in workers))
        sent_s = time.perf_counter()
        waits_s.append(await wait_for_result(query_connection, step, RESULT_WITHIN_S) - sent_s)
    _close([*connections, query_connection])
    p50_s, p99_s = np.percentile(waits_s, [50, 99]).tolist()
    return {
        "step_s": step_s,
        "paced_steps": num_steps,
        "step_to_result_p50_s": p50_s,
        "step_to_result_p99_s": p99_s,
    }


def _close(connections: list[BatchConnection]) -> None:
    for connection in connections:
        connection.close()


def _peak_rss_bytes(pid: int | None) -> int | None:
    """The most memory that a process has held; None where the system does not tell."""
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        return None
    fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return int(fields["VmHWM"].split()[0]) * 1024
