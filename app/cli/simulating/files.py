"""Write what a made job's workers recorded, and the truth beside it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from app.cli.files import write_json
from app.synth.instants import NS_PER_S
from app.synth.life import Attempt
from app.synth.record import Record
from app.synth.run import Watched
from app.synth.truth import truth_of
from app.trace.readers import meta, published
from app.trace.window import OPTIONAL, TRACE_DTYPES, Ints, Trace


def write(attempts: Sequence[Attempt], out: Path, watched: Watched) -> list[str]:
    """Write a trace, its meta file and its truth for each attempt; a line to say about each.

    The first attempt goes to `out`, the n-th one to a file with -n behind its name.
    """
    said = []
    for attempt in attempts:
        path = _path(out, attempt.epoch)
        record = attempt.made.record(attempt.steps, watched=watched)
        steps, _, first_ns = _began(record)
        origin_ns = dict(zip(steps.tolist(), first_ns.tolist(), strict=True))
        trace = trace_of(record)
        published.write(trace, record.job, path, hosts=record.hosts, origin_ns=origin_ns)
        write_json(_truth(attempt, watched), truth_path(path))
        said.append(f"{path}: {record.num_ops:,} operations in {len(record.steps):,} steps")
    return said


def truth_path(trace_path: Path) -> Path:
    """Where the truth is: truth-NAME.json beside trace-NAME.parquet."""
    return trace_path.with_name(f"truth-{meta.trace_name(trace_path)}.json")


def trace_of(record: Record) -> Trace:
    """The record's rows as they are, each step from its first start."""
    _, position, origin_ns = _began(record)
    names = [name for name in (*TRACE_DTYPES, *OPTIONAL) if hasattr(record, name)]
    return Trace(
        **{name: getattr(record, name) for name in names},
        start_s=(record.start_ns - origin_ns[position]) / NS_PER_S,
        duration_s=record.duration_ns / NS_PER_S,
    )


def _began(record: Record) -> tuple[Ints, Ints, Ints]:
    """The steps, [rows] which of them a row is of, and the first start of each."""
    steps, position = np.unique(record.step, return_inverse=True)
    origin_ns = np.full(steps.size, np.iinfo(np.int64).max)
    np.minimum.at(origin_ns, position, record.start_ns)
    return steps, position, origin_ns


def _truth(attempt: Attempt, watched: Watched) -> dict[str, Any]:
    return {**truth_of(attempt.made, attempt.steps, watched), "epoch": attempt.epoch}


def _path(out: Path, epoch: int) -> Path:
    return out if epoch == 1 else out.with_name(f"{out.stem}-{epoch}{out.suffix}")
