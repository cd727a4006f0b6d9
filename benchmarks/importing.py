"""`import`: how much memory and time does a large file of another tool take?

The files are created here, by one function per format.
"""

import gzip
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import typer

from app.cli.supervisor import paceline_command
from app.errors import InvalidRequest
from tests.harness.samples.job import BEGAN_NS, SampleOp, sample_ops
from tests.harness.samples.otlp import as_json, resource, spans

_STEP_NS = 100_000_000
# What a profile has beside the operations, on the host and the GPU.
_NOISE_EVENTS = 400


def importing(
    format_: Annotated[
        str, typer.Option("--format", help="One of kineto, ndtimeline, otlp and published.")
    ],
    megabytes: Annotated[
        int, typer.Option("--mb", min=1, help="Size of the file, unpacked.")
    ] = 100,
    folder: Annotated[
        Path | None, typer.Option(help="Where to create it; default: the temporary folder.")
    ] = None,
) -> None:
    """Create a large file, import it in a separate process, and print time and memory.

    Example: python -m benchmarks import --format kineto --mb 300
    """
    if format_ not in MAKERS:
        raise InvalidRequest(f"--format {format_}: name one of {', '.join(MAKERS)}")
    with tempfile.TemporaryDirectory(prefix="paceline-large-", dir=folder) as name:
        files = MAKERS[format_](Path(name), megabytes << 20)
        out = Path(name) / "trace-out.parquet"
        command = paceline_command("import", format_, *map(str, files), "--out", str(out))
        began_s = time.monotonic()
        peak_bytes = _peak_bytes(command)
        result = {
            "format": format_,
            "file_mb": sum(path.stat().st_size for path in files) / 1e6,
            "unpacked_mb": megabytes * 1.048576,
            "seconds": time.monotonic() - began_s,
            "peak_rss_mb": peak_bytes / 1e6,
            "out_mb": out.stat().st_size / 1e6,
        }
    typer.echo(json.dumps(result))


def _peak_bytes(command: list[str]) -> int:
    """Peak memory of the process."""
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(command, stdout=output, stderr=output)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            output.seek(0)
            raise InvalidRequest(output.read().decode(errors="replace").strip()[-500:])
    return usage.ru_maxrss * 1024


def ndtimeline(folder: Path, size_bytes: int) -> list[Path]:
    """Records, a line each, step after step."""
    path = folder / "large.jsonl"
    keys = dict.fromkeys((op.rank, op.optype) for op in sample_ops())
    first = [op for op in sample_ops() if op.step == sample_ops()[0].step]

    def lines() -> Iterator[bytes]:
        step = 0
        while True:
            for rank, optype in keys:
                same = [op for op in first if (op.rank, op.optype) == (rank, optype)]
                yield msgspec.json.encode(_record(same, step)) + b"\n"
            step += 1

    _write(path, lines(), size_bytes)
    return [path]


def kineto(folder: Path, size_bytes: int) -> list[Path]:
    """One rank's profile, packed by gzip: most of its events are no operations."""
    path = folder / "rank0.json.gz"
    head = {
        "distributedInfo": {"rank": 0, "world_size": 1, "pg_config": []},
        "baseTimeNanoseconds": BEGAN_NS,
    }
    computing = [op for op in sample_ops() if op.rank == 0 and op.optype.endswith("compute")]
    first = [op for op in computing if op.step == computing[0].step]

    def pieces() -> Iterator[bytes]:
        yield msgspec.json.encode(head)[:-1] + b',"traceEvents":[{"ph":"i"}'
        step = 0
        while True:
            yield from (b",\n" + msgspec.json.encode(each) for each in _events(first, step))
            step += 1

    _write(path, pieces(), size_bytes, tail=b'],"traceName":"rank0"}')
    return [path]


def published(folder: Path, size_bytes: int) -> list[Path]:
    """A parquet file whose rows are by op type, as far from by step as they can be."""
    path = folder / "trace-large.parquet"
    first = [op for op in sample_ops() if op.step == sample_ops()[0].step]
    rng = np.random.default_rng(1)
    num_steps = max(1, size_bytes // (len(first) * 17))  # so many bytes a row
    with pq.ParquetWriter(path, _table(first[0], 0, 1, rng).schema) as writer:
        for op in first:
            for begin in range(0, num_steps, 1 << 18):
                num_rows = min(1 << 18, num_steps - begin)
                writer.write_table(_table(op, begin, num_rows, rng))
    return [path]


def otlp(folder: Path, size_bytes: int) -> list[Path]:
    """Requests of eight ranks as a collector writes them: one a line, step after step."""
    path = folder / "large.json"

    def lines() -> Iterator[bytes]:
        step = 0
        while True:
            for rank in range(8):
                step_spans = spans(rank, range(step, step + 1), microbatches=32, apart_ms=1000)
                yield as_json(resource(rank, dp=8), step_spans) + b"\n"
            step += 1

    _write(path, lines(), size_bytes)
    return [path]


MAKERS: dict[str, Callable[[Path, int], list[Path]]] = {
    "ndtimeline": ndtimeline,
    "kineto": kineto,
    "published": published,
    "otlp": otlp,
}


def _write(path: Path, pieces: Iterator[bytes], size_bytes: int, tail: bytes = b"") -> None:
    with gzip.open(path, "wb", 1) if path.suffix == ".gz" else path.open("wb") as file:
        for piece in pieces:
            file.write(piece)
            size_bytes -= len(piece)
            if size_bytes <= 0:
                break
        file.write(tail)


def _record(ops: list[SampleOp], step: int) -> dict[str, Any]:
    shift_ns = (step - ops[0].step) * _STEP_NS
    return {
        "ts": ops[0].start_ns // 10**9,
        "rank": ops[0].rank,
        "metric": ops[0].optype,
        "iteration": 0,
        "step": step,
        "value": 0.01,
        "start_ts": [(op.start_ns + shift_ns) * 1e-9 for op in ops],
        "duration": [op.duration_ns * 1e-9 for op in ops],
        "model_chunk": 0,
        "stage": ops[0].stage,
        "dp_rank": ops[0].dp_rank,
        "tp_rank": 0,
        "ip": f"10.0.0.{ops[0].rank}",
        "role": "trainer",
        "trial": "large",
        "run_id": 1,
    }


def _events(ops: list[SampleOp], step: int) -> Iterator[dict[str, Any]]:
    began_us = step * _STEP_NS / 1000
    yield _event("user_annotation", f"ProfilerStep#{step}", began_us, _STEP_NS / 1000)
    yield _event("gpu_user_annotation", f"ProfilerStep#{step}", began_us, _STEP_NS / 1000)
    for op in ops:
        start_us = began_us + (op.start_ns % _STEP_NS) / 1000
        yield _event("gpu_user_annotation", op.optype, start_us, op.duration_ns / 1000)
        for number in range(_NOISE_EVENTS):
            yield _event("cpu_op" if number % 2 else "kernel", "aten::addmm", start_us, 3.5)


def _event(category: str, name: str, ts: float, dur: float) -> dict[str, Any]:
    where = {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur}
    return where | {"args": {"External id": 1, "Record function id": 0, "Ev Idx": 4711}}


def _table(op: SampleOp, first_step: int, num_steps: int, rng: Any) -> Any:
    ints = ("dp_rank", "stage", "rank", "seq_id", "mb_id")
    columns = {name: np.full(num_steps, getattr(op, name), np.int32) for name in ints}
    duration_s = op.duration_ns * 1e-9 * (1 + 0.1 * rng.random(num_steps))
    return pa.table(
        {
            **columns,
            "mc": np.zeros(num_steps, np.int32),
            "step": np.arange(first_step, first_step + num_steps),
            "optype": pa.array([op.optype] * num_steps).dictionary_encode(),
            "start_ts": np.full(num_steps, (op.start_ns % _STEP_NS) * 1e-9),
            "duration": duration_s,
        }
    )
