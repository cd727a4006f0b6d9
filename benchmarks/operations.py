"""`operations`: how many bytes stored operations take, by size of the job, and how fast that is.

Beside them the same with every column compressed by itself, without loss.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
import zstandard
from numpy.typing import NDArray

from app.ingest.assembly.op_table import OpTable
from app.ingest.assembly.window_codec import pack_remainders, pack_window, unpack_window
from app.synth.cluster import Cluster
from app.synth.costs import OperationCosts
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from app.trace.readers.published import trace_files
from app.trace.window import NS_PER_S, TABLE_DTYPES, Window
from benchmarks.measuring import BenchmarkFailed

MAX_BYTES_PER_OP = 5.0
MIN_WORKERS = 32  # of jobs that the bar is for
_STEPS = 8
_REPEATS = 5
# dp, pp, micro-batches
_SIZES = ((2, 2, 4), (32, 1, 4), (8, 4, 8), (32, 8, 16), (128, 8, 32), (64, 16, 64))
_CLOCKS = Cluster(clock_offset_s=5e-4, drift_ppm=2.0, jitter_s=2e-6)
_NOISES = {"healthy": 0.015, "noisy": 0.1}
_STARTED_NS = 1_790_000_000 * NS_PER_S


def operations(
    traces: Annotated[list[Path] | None, typer.Argument(help="Parquet traces, too.")] = None,
) -> None:
    """Print bytes an operation and millions of operations a second, encoded and decoded.

    Exits with an error if a simulated job of 32 workers or more takes over 5 bytes an operation.

    Example: python -m benchmarks operations trace-AR.parquet
    """
    too_large = []
    for name, workers, table in _tables(traces or []):
        figures = _measure(table)
        typer.echo(json.dumps({"job": name, "workers": workers, "ops": table.num_ops, **figures}))
        if workers >= MIN_WORKERS and figures["bytes_per_op"] > MAX_BYTES_PER_OP:
            too_large.append(name)
    if too_large:
        raise BenchmarkFailed(f"over {MAX_BYTES_PER_OP} bytes an operation: {', '.join(too_large)}")


def _tables(traces: list[Path]) -> Iterator[tuple[str, int, OpTable]]:
    for dp_size, pp_size, num_microbatches in _SIZES:
        for noise, spread in _NOISES.items():
            job = SimulatedJob(
                Parallelism(dp_size, pp_size),
                num_microbatches,
                cluster=_CLOCKS,
                costs=OperationCosts(noise=spread),
            )
            columns = job.record(range(_STEPS)).columns()
            name = f"dp {dp_size}, pp {pp_size}, {num_microbatches} micro-batches, {noise}"
            yield name, dp_size * pp_size, _op_table(columns)
    for path in traces:
        window = trace_files.read(path)
        sizes = window.job.parallelism
        yield path.name, sizes.dp_size * sizes.pp_size, _recorded_table(window)


def _op_table(columns: Mapping[str, NDArray[Any]]) -> OpTable:
    return OpTable(
        **{
            name: np.require(columns[name], dtype, ["C"])
            for name, dtype in TABLE_DTYPES.items()
            if name in columns
        }
    )


def _recorded_table(window: Window) -> OpTable:
    """The operations as workers would send them, one step a minute."""
    trace = window.trace
    order = np.lexsort((trace.seq_id, trace.optype, trace.stage, trace.dp_rank, trace.step))
    columns = trace.select(order).columns()
    start_s, duration_s = columns.pop("start_s"), columns.pop("duration_s")
    start_ns = np.rint(start_s * NS_PER_S).astype(np.int64)
    columns["start_ns"] = start_ns + _STARTED_NS + columns["step"] * 60 * NS_PER_S
    columns["duration_ns"] = np.rint(duration_s * NS_PER_S).astype(np.int64)
    return _op_table(columns)


def _measure(table: OpTable) -> dict[str, Any]:
    blob, num_ops = pack_window(table), table.num_ops
    by_column = sum(map(_bytes_of_column, table.columns().values()))
    rates = {
        "encoded_mops_per_s": lambda: pack_window(table),
        "decoded_mops_per_s": lambda: unpack_window(blob),
    }
    return {
        "bytes_per_op": round(len(blob) / num_ops, 2),
        "by_column_bytes_per_op": round(by_column / num_ops, 2),
        "remainders_bytes_per_op": round(len(pack_remainders(table)) / num_ops, 2),
        **{name: round(num_ops / _least_s(call) / 1e6, 1) for name, call in rates.items()},
    }


def _least_s(call: Callable[[], object]) -> float:
    """The least seconds of the CPU of several calls: others on the machine only add."""
    seconds = []
    for _ in range(_REPEATS):
        began_s = time.process_time()
        call()
        seconds.append(time.process_time() - began_s)
    return min(seconds)


def _bytes_of_column(values: NDArray[Any]) -> int:
    """How many bytes the differences to the least value take, compressed."""
    least, most = int(values.min()), int(values.max())
    unsigned = f"u{values.itemsize}"
    offsets = values.view(unsigned) - np.array(least, values.dtype).view(unsigned)
    narrow = offsets.astype(np.min_scalar_type(most - least), copy=False)
    return len(zstandard.compress(narrow.data, 1))
