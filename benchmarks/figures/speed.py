"""Rows of speed: ours, others on the same work in the same run, and what the machine allows."""

import gzip
import statistics
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from app.result.window_result import WindowResult
from app.trace.window import TRACE_DTYPES
from benchmarks.figures.measurement import (
    ABSENT,
    NONE,
    Measured,
    Options,
    benchmark,
    count,
    duration,
    peer,
)
from benchmarks.figures.tables import Table
from benchmarks.measuring import COPIED_BYTES, BenchmarkFailed
from benchmarks.service.ingest import copy_s

JOB_SIZES = "dp=1024,pp=16,microbatches=64,steps=2"
BATCH_ROWS = 10_000
# The published analyser (note 1 of docs/benchmarks.md) is not run: its figure is as old as this.
PUBLISHED = "published analyser: 2.7 s, as of 2026-11-28 (note 1)"
MAX_APART = 1e-6  # between the step times of two replays, relative
PROFILE = "hta-ns-resolution-rank0.pt.trace.json.gz"
BYTES_PER_OP = sum(np.dtype(dtype).itemsize for dtype in TRACE_DTYPES.values())
_REPEATS = 7
_EMPTY_SPANS = 50_000
_BREAKDOWN = ("computing", "exposed", "idle")


def published_trace(options: Options) -> Measured:
    """The production trace AR, from its file to the full result."""
    path = options.shared / "traces" / "trace-AR.parquet"
    (ours,) = benchmark("analyze", str(path))
    script = Path(__file__).parents[1] / "pandas_replay.py"
    theirs = peer(options, "pandas, pyarrow", script, str(path))
    others = f"pandas replay: {ABSENT}"
    if theirs is not None:
        apart = _apart(path, theirs)
        agreement = f"step times {apart:.0e} apart at most" if apart else "equal step times"
        others = (
            f"pandas {theirs['pandas']}, step times and slowdowns only: {duration(theirs['s'])}, "
            f"{theirs['s'] / ours['total_s']:.1f}x; {agreement}"
        )
        theirs = {"pandas": theirs["pandas"], "s": theirs["s"], "apart": apart}
    return Measured(
        (
            f"trace AR, {ours['ops']:,} operations: parquet file to full result",
            f"{duration(ours['total_s'])}, {_copies(ours)}",
            f"{others}; {PUBLISHED}",
            _moved_once(ours),
        ),
        {"ours": ours, "pandas": theirs},
    )


def _apart(path: Path, theirs: Mapping[str, Any]) -> float:
    """The largest relative difference between their step times and ours.

    Raises:
        BenchmarkFailed: they differ by more than a rounding, so it is not the same work.
    """
    from app.engine.report import analyse, report_result
    from app.trace.readers.published import trace_files

    ours = report_result(analyse(trace_files.read(path))).step_time_s
    pairs = {"recorded": ours.recorded, "simulated": ours.simulated, "ideal": ours.ideal}
    apart = max(
        float(np.max(np.abs(np.array(theirs[kind]) / np.array(of_kind, float) - 1)))
        for kind, of_kind in pairs.items()
    )
    if apart > MAX_APART:
        raise BenchmarkFailed(f"the step times of the pandas replay are {apart:.1e} apart")
    return apart


def simulated_job(_options: Options) -> Measured:
    """Two steps of 16,384 workers, from operations in memory to the full result."""
    (ours,) = benchmark("analyze", "--synthetic", JOB_SIZES, "--repeats", "5")
    rate = count(ours["ops"] / ours["total_s"])
    memory = ours["peak_rss_bytes"] / 1e9
    return Measured(
        (
            f"simulated job of {count(ours['ops'])} operations ({JOB_SIZES}), in memory: "
            "full result",
            f"{duration(ours['total_s'])}, {_copies(ours)}; {rate} operations/s, {memory:.2g} GB",
            NONE,
            _moved_once(ours),
        ),
        {"ours": ours},
    )


def _copies(ours: Mapping[str, Any]) -> str:
    return f"{ours['total_to_copy']:.3g} copies of 100 MB"


def _moved_once(ours: Mapping[str, Any]) -> str:
    """The least that reading every operation can take, at the speed of a copy in the same run."""
    num_bytes = BYTES_PER_OP * ours["ops"]
    least_s = num_bytes / COPIED_BYTES * ours["copy_100mb_s"]
    return (
        f"{duration(least_s)}: {BYTES_PER_OP} bytes an operation as loaded, {num_bytes / 1e6:.3g} "
        f"MB, copied once (100 MB in {duration(ours['copy_100mb_s'])})"
    )


def first_analysis(options: Options) -> Measured:
    """`paceline analyze` as a process of its own, beside an interpreter that does nothing."""
    (ours,) = benchmark("first", str(options.shared / "traces" / "trace-AR.parquet"))
    empty_s = _median_s([sys.executable, "-c", "pass"])
    return Measured(
        (
            "`paceline analyze` of AR in a fresh process, kernels compiled before",
            duration(ours["first_analysis_s"]),
            NONE,
            f"{duration(empty_s)}: Python that starts and ends",
        ),
        {"ours": ours, "empty_process_s": empty_s},
    )


def _median_s(command: Sequence[str]) -> float:
    def run() -> None:
        subprocess.run(command, check=True)

    return statistics.median(_seconds(run, _REPEATS))


def pipeline(_options: Options) -> Measured:
    """From a worker's batch to the result on the API."""
    (ours,) = benchmark("pipeline", "--paced-steps", "0")
    rows_at_copy = COPIED_BYTES / BYTES_PER_OP / ours["copy_100mb_s"]
    return Measured(
        (
            f"batches of {ours['workers']:,} workers over HTTP to stored results on the API",
            f"{count(ours['rows_per_s'])} operations/s",
            NONE,
            f"{count(rows_at_copy)} operations/s: {BYTES_PER_OP} bytes each in memory, copied once",
        ),
        {"ours": ours},
    )


def ingest(_options: Options) -> Measured:
    """From a batch over HTTP to durable in the queue."""
    (ours,) = benchmark("ingest", "--batch-rows", str(BATCH_ROWS))
    rows_at_fsync = BATCH_ROWS / ours["fsync_ms"] * 1e3
    return Measured(
        (
            f"batches of {BATCH_ROWS:,} operations over HTTP, acknowledged once durable",
            f"{count(ours['rows_per_s'])} operations/s, {count(ours['rows_per_copy'])} in the time "
            f"of a copy of 100 MB; p99 {ours['ack_p99_ms']:.3g} ms",
            NONE,
            f"{count(rows_at_fsync)} operations/s: a write and fsync for each batch "
            f"({ours['fsync_ms']:.3g} ms), one after the other",
        ),
        {"ours": ours},
    )


def recorded_operation(_options: Options) -> Measured:
    """What recording one operation costs the training thread, and its bytes."""
    (ours,) = benchmark("client")
    p50_us, p99_us = _empty_span_us()
    return Measured(
        (
            "one operation recorded in the training thread; its bytes to the server",
            f"p50 {ours['record_p50_us']:.3g} us, p99 {ours['record_p99_us']:.3g} us; "
            f"{ours['bytes_per_op']:.3g} bytes, {ours['http_bytes_per_op']:.3g} with HTTP",
            NONE,
            f"p50 {p50_us:.2g} us, p99 {p99_us:.2g} us: an empty `with` and the two clock reads "
            "that time it",
        ),
        {"ours": ours, "empty_span_us": [p50_us, p99_us]},
    )


class _EmptySpan:
    def __enter__(self) -> None: ...

    def __exit__(self, *exception: object) -> None: ...


def _empty_span_us() -> tuple[float, float]:
    """Median and 99th percentile of a `with` that does nothing, timed as `client` times one."""
    clock, span, spent_ns = time.perf_counter_ns, _EmptySpan(), array("q", [])
    for _ in range(_EMPTY_SPANS):
        began_ns = clock()
        with span:
            pass
        spent_ns.append(clock() - began_ns)
    cuts = statistics.quantiles(spent_ns, n=100)
    return cuts[49] / 1e3, cuts[98] / 1e3


def stored_bytes(options: Options) -> Measured:
    """Bytes of an operation in the database."""
    jobs = benchmark("operations", str(options.shared / "traces" / "trace-AR.parquet"))
    trace = next(job for job in jobs if job["job"].endswith(".parquet"))
    large = [job for job in jobs if job is not trace and job["workers"] >= 32]
    encoded, decoded = (
        min(job[f"{way}_mops_per_s"] for job in large) for way in ("encoded", "decoded")
    )
    return Measured(
        (
            f"one operation as stored, simulated jobs of 32 to "
            f"{max(job['workers'] for job in large):,} workers and AR",
            f"{_range(large, 'bytes_per_op')} bytes, AR {trace['bytes_per_op']:.3g}; "
            f"{encoded:.3g} M operations/s encoded, {decoded:.3g} M decoded at least",
            f"each column compressed by itself with zstd: "
            f"{_range(large, 'by_column_bytes_per_op')} bytes, "
            f"AR {trace['by_column_bytes_per_op']:.3g}",
            NONE,
        ),
        {"jobs": jobs},
    )


def _range(jobs: Sequence[Mapping[str, Any]], key: str) -> str:
    values = [job[key] for job in jobs]
    return f"{min(values):.3g} to {max(values):.3g}"


def profile(options: Options) -> Measured:
    """A published profile of PyTorch: our whole result, HTA's breakdown, and both shares."""
    from app.diagnosis.profiles import job
    from app.diagnosis.profiles.result import profile_result
    from benchmarks.profiles import kernel_shares

    path = options.shared / "real" / PROFILE

    def read() -> WindowResult:
        return profile_result(job.read([path]))

    ours = kernel_shares(read())
    seconds = _seconds(read, _REPEATS)
    script = Path(__file__).parents[1] / "hta_breakdown.py"
    printed = peer(options, "hta", script, "--repeats", str(_REPEATS), str(path))
    seconds += _seconds(read, _REPEATS)  # before and after the peer
    ours_s, copied_s = statistics.median(seconds), copy_s()
    num_bytes = len(gzip.decompress(path.read_bytes()))
    theirs = None if printed is None else printed[str(path)]
    if printed is not None and theirs is None:
        raise BenchmarkFailed(f"HolisticTraceAnalysis cannot read {PROFILE}")
    others = f"HolisticTraceAnalysis: {ABSENT}"
    if theirs is not None:
        others = (
            f"HolisticTraceAnalysis {theirs['version']}, temporal and kernel breakdown only: "
            f"{duration(theirs['s'])}, {theirs['s'] / ours_s:.1f}x; {_shares(theirs)}"
        )
    return Measured(
        (
            f"profile {PROFILE.partition('.')[0]} (PyTorch, {path.stat().st_size / 1e6:.2g} MB "
            "compressed): file to full result",
            f"{duration(ours_s)}; {_shares(ours)}",
            others,
            f"{duration(num_bytes / COPIED_BYTES * copied_s)}: {num_bytes / 1e6:.3g} MB of JSON, "
            f"copied once (100 MB in {duration(copied_s)})",
        ),
        {"ours": {"s": ours_s, **ours}, "hta": theirs, "copy_100mb_s": copied_s},
    )


def _shares(found: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {100 * found[name]:.1f} %" for name in _BREAKDOWN)


def _seconds(call: Callable[[], object], repeats: int) -> list[float]:
    taken_s = []
    for _ in range(repeats):
        began_s = time.perf_counter()
        call()
        taken_s.append(time.perf_counter() - began_s)
    return taken_s


ROWS: Mapping[str, Callable[[Options], Measured]] = {
    "ar": published_trace,
    "job": simulated_job,
    "first": first_analysis,
    "profile": profile,
    "pipeline": pipeline,
    "ingest": ingest,
    "client": recorded_operation,
    "stored": stored_bytes,
}
TABLE = Table(
    "Speed",
    (
        *("work", "Paceline", "others on the same work, same run", "what the machine allows"),
        *("machine", "commit", "date"),
    ),
    tuple(ROWS),
)
