"""`client`: what does recording cost training, and how many bytes does it send?"""

import gc
import json
import statistics
import sys
import time
import urllib.request
from array import array
from typing import Annotated, Any

import paceline_client
import typer
from paceline_client.recording.buffer import ROUNDING_NS

from app.errors import Unavailable
from app.trace.ops import OP_NAMES
from benchmarks.recording.counting_server import counting_server
from benchmarks.service.pushing import batches_of_workers

OPS_PER_STEP = 100
SETTLED_STEPS = 50
STEP_S = 0.002  # time outside the recorder, for the sender, as in training
DELIVERED_WITHIN_S = 60.0


def client(
    ops: Annotated[int, typer.Option(min=2_000, help="Operations that are timed.")] = 50_000,
    microbatches: Annotated[int, typer.Option(min=1, help="Of the job whose bytes count.")] = 16,
    steps: Annotated[int, typer.Option(min=1, help="Steps of that job.")] = 8,
) -> None:
    """Time `with recorder.op(...)` on the training thread, and count the bytes of a simulated job.

    The recorder sends as it does in training, to a server in another process that accepts
    everything. The job's workers, 4 x 4 of them, send each step when it is over. `growing_blocks`
    is by how many blocks Python's memory has grown between two moments with nothing to send.

    Example: python -m benchmarks client --ops 200000
    """
    with counting_server() as url:
        figures = _cost(url, ops)
        figures |= _size(url, microbatches, steps)
    typer.echo(json.dumps(figures))


def _recorder(url: str, worker: int = 0) -> paceline_client.Recorder:
    return paceline_client.start(
        "bench", url, "none", rank=worker, dp_rank=worker // 4, stage=worker % 4, dp_size=4,
        pp_size=4, run_key="bench", host="node-0.cluster.example",
    )  # fmt: skip


def _cost(url: str, num_ops: int) -> dict[str, Any]:
    recorder = _recorder(url)
    num_steps = max(2, num_ops // OPS_PER_STEP)
    _timed_ns(recorder, range(SETTLED_STEPS))
    before = _blocks(recorder)
    recording_ns = _timed_ns(recorder, range(SETTLED_STEPS, SETTLED_STEPS + num_steps))
    growing = _blocks(recorder) - before
    recorder.close()
    cuts = statistics.quantiles(recording_ns, n=100)
    return {
        "record_p50_us": cuts[49] / 1e3,
        "record_p99_us": cuts[98] / 1e3,
        "ops": num_steps * OPS_PER_STEP,
        "growing_blocks": growing,
        "dropped": recorder.dropped,
    }


def _timed_ns(recorder: paceline_client.Recorder, steps: range) -> "array[int]":
    """Time of recording each operation, clock reads included."""
    clock, recording_ns = time.perf_counter_ns, array("q", [])
    for step in steps:
        with recorder.step(step):
            for microbatch in range(OPS_PER_STEP):
                began_ns = clock()
                with recorder.op("forward-compute", microbatch=microbatch, chunk=0):
                    pass
                recording_ns.append(clock() - began_ns)
        time.sleep(STEP_S)
    return recording_ns


def _blocks(recorder: paceline_client.Recorder) -> int:
    """Blocks of memory that Python uses with nothing to send."""
    if not recorder.flush(DELIVERED_WITHIN_S):
        raise Unavailable(f"not everything was delivered in {DELIVERED_WITHIN_S:.0f} s")
    gc.collect()
    return sys.getallocatedblocks()


def _size(url: str, microbatches: int, steps: int) -> dict[str, Any]:
    before, num_ops = _counted(url), 0
    for number, worker in enumerate(batches_of_workers(4, 4, microbatches, steps)):
        num_ops += _send(_recorder(url, number), worker.batch.columns)
    after = _counted(url)
    return {
        "microbatches": microbatches,
        "bytes_per_op": (after["bytes"] - before["bytes"]) / num_ops,
        "http_bytes_per_op": (after["http_bytes"] - before["http_bytes"]) / num_ops,
    }


def _send(recorder: paceline_client.Recorder, columns: Any) -> int:
    """Number of the worker's operations, all of which are sent, step by step."""
    names = ("step", "optype", "start_ns", "duration_ns", "seq_id", "mc", "mb_id")
    rows = list(zip(*(getattr(columns, name).tolist() for name in names), strict=True))
    last = {row[0]: at for at, row in enumerate(rows)}
    for at, (step, code, start_ns, duration_ns, *rest) in enumerate(rows):
        # As the recorder rounds times that it has taken itself.
        rounded_ns = start_ns & -ROUNDING_NS
        end_ns = (start_ns + duration_ns) & -ROUNDING_NS
        recorder.record(OP_NAMES[code], step, rounded_ns, end_ns - rounded_ns, *rest)
        if last[step] == at:
            recorder.step_done(step)
            _blocks(recorder)
    recorder.close()
    return len(rows)


def _counted(url: str) -> dict[str, int]:
    with urllib.request.urlopen(url, timeout=DELIVERED_WITHIN_S) as answer:  # noqa: S310, ours
        counted: dict[str, int] = json.load(answer)
        return counted
