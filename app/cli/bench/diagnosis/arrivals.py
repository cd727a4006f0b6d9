"""A made job's record as its workers would send it: batches in the order of their arrival."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

import numpy as np

from app.ingest.batch import OpBatch, OpColumns
from app.synth.record import Record
from app.trace.window import Ints

STEPS_A_BATCH = 4
_NS = 1e-9


@dataclass(frozen=True, slots=True)
class Habits:
    """How a job's workers send: `late_worker` (dp rank, stage) by `late_s` later than all others.

    `sends_hosts` says whether they name their hosts.
    """

    sends_hosts: bool = True
    late_worker: tuple[int, int] | None = None
    late_s: float = 0.0


def arrivals(record: Record, habits: Habits, epoch: int) -> list[tuple[float, OpBatch]]:
    """Every batch with the second in which it arrives, first to last."""
    began_ns = int(record.start_ns.min())
    found = []
    for rows in _by_worker(record):
        worker = int(record.dp_rank[rows[0]]), int(record.stage[rows[0]])
        late_s = habits.late_s if worker == habits.late_worker else 0.0
        host = record.hosts.get(worker) if habits.sends_hosts else None
        for number, part in enumerate(_in_batches(record.step[rows])):
            batch = replace(_batch(record, rows[part], worker, host, number), epoch=epoch)
            ends_ns = int((batch.columns.start_ns + batch.columns.duration_ns).max())
            found.append(((ends_ns - began_ns) * _NS + late_s, batch))
    return sorted(found, key=lambda each: (each[0], each[1].rank, each[1].batch_seq))


def _by_worker(record: Record) -> Iterator[Ints]:
    """Rows of each worker that sent anything, by step and start."""
    worker = record.dp_rank.astype(np.int64) * record.job.parallelism.pp_size + record.stage
    rows = np.lexsort((record.start_ns, record.step, worker))
    ends = np.flatnonzero(np.diff(worker[rows])) + 1
    yield from np.split(rows, ends)


def _in_batches(step: Ints) -> Iterator[slice]:
    """Of one worker's rows, some steps at a time."""
    firsts = np.flatnonzero(np.diff(step, prepend=-1))
    for first, end in pairwise([*firsts[::STEPS_A_BATCH].tolist(), step.size]):
        yield slice(first, end)


def _batch(
    record: Record, rows: Ints, worker: tuple[int, int], host: str | None, number: int
) -> OpBatch:
    columns = _columns(record, rows)
    steps, num_ops = np.unique(columns.step, return_counts=True)
    done = tuple(zip(steps.tolist(), num_ops.tolist(), strict=True))
    return OpBatch(1, int(record.rank[rows[0]]), *worker, host, number, done, columns)


def _columns(record: Record, rows: Ints) -> OpColumns:
    arrays: dict[str, Any] = {}
    for name in (each.name for each in fields(OpColumns)):
        column = getattr(record, name)
        arrays[name] = None if column is None else column[rows]
    arrays["optype"] = record.optype[rows].astype(np.int16)
    return OpColumns(**arrays)
