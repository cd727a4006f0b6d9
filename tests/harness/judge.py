"""Checks that every acknowledged operation is stored once and every window is right.

`Obligations` holds every batch that was answered 2xx, by key, with all operations; the judge
compares them with the tables, and each window with an analysis of the same operations.
"""

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.ingest.assembly.op_table import OpTable
from app.ingest.assembly.window_codec import pack_window, unpack_window
from app.ingest.batch import OpBatch
from app.ingest.wire import codec
from app.monitor import observe
from app.result.window_result import WindowResult
from app.store import hosts, jobs, runs, windows
from app.store.database import Connection, Store, without_time_limits
from app.store.windows import WindowSummary
from app.trace.job import DEFAULT_PROJECT, job_key
from app.trace.window import TABLE_DTYPES, SkippedStep, Window

Ints = NDArray[np.int64]
RunKey = tuple[str, int]  # job, epoch
BatchKey = tuple[str, int, int, int]  # job, epoch, rank, batch_seq

# The order of the rows of a table: step, dp_rank, stage, optype, seq_id.
COLUMNS = (
    *("step", "dp_rank", "stage", "optype", "seq_id"),
    *("rank", "mc", "mb_id", "start_ns", "duration_ns"),
)
_MAX_LISTED = 20
_PAGE = 200
_HISTORY_FIELDS = ("findings", "ruled_out", "changes")


@dataclass
class Obligations:
    """Acknowledged batches; of two with the same key, the first is owed."""

    resent: int = 0
    conflicts: int = 0
    rows: int = 0
    _hashes: dict[BatchKey, bytes] = field(default_factory=dict)
    _owed: dict[RunKey, list[Ints]] = field(default_factory=lambda: defaultdict(list))

    def owe(self, job: str, body: bytes) -> None:
        """Add a body that was answered 2xx."""
        batch = codec.read_entry(body)
        key = (job, batch.epoch, batch.rank, batch.batch_seq)
        digest = blake2b(body, digest_size=16).digest()
        if key in self._hashes:
            same = self._hashes[key] == digest
            self.resent += same
            self.conflicts += not same
            return
        self._hashes[key] = digest
        self.rows += batch.columns.num_ops
        self._owed[job, batch.epoch].append(_rows(batch))

    @property
    def batches(self) -> int:
        """Number of different ones."""
        return len(self._hashes)

    def runs(self, job: str) -> list[int]:
        """Epochs of the job with owed operations."""
        return sorted(epoch for name, epoch in self._owed if name == job)

    def table(self, job: str, epoch: int) -> Ints:
        """[rows, columns] all operations owed of one run, in canonical order."""
        owed = self._owed.get((job, epoch), [])
        return sorted_rows(np.concatenate([np.empty((0, len(COLUMNS)), np.int64), *owed]))


def sorted_rows(rows: Ints) -> Ints:
    """Rows by step, dp_rank, stage, optype, seq_id."""
    return rows[np.lexsort(rows.T[:5][::-1])]


def _rows(batch: OpBatch) -> Ints:
    columns = batch.columns
    of_worker = {"rank": batch.rank, "dp_rank": batch.dp_rank, "stage": batch.stage}
    rows = np.empty((columns.num_ops, len(COLUMNS)), np.int64)
    for number, name in enumerate(COLUMNS):
        rows[:, number] = of_worker[name] if name in of_worker else getattr(columns, name)
    return rows


@dataclass
class Judgement:
    """Violations in the windows of some jobs; all zero and empty when the store is sound."""

    missing: int = 0
    spurious: int = 0
    windows: int = 0
    rows_judged: int = 0
    duplicates: int = 0  # rows, as the consumer counts them
    conflict_rows: int = 0
    violations: list[str] = field(default_factory=list)

    def add_violation(self, violation: str) -> None:
        """Add a violation; only the first ones are listed."""
        if len(self.violations) < _MAX_LISTED:
            self.violations.append(violation)


def judge(store: Store, owed: Obligations, names: Iterable[str]) -> Judgement:
    """Compare the store with what is owed of these jobs, all of which have ended."""
    judgement = Judgement()
    for name in names:
        with store.read() as conn:
            without_time_limits(conn)  # it computes in between, on a machine that may be starved
            _judge_job(judgement, conn, name, owed)
    if judgement.missing or judgement.spurious:
        counts = f"{judgement.missing} rows missing, {judgement.spurious} spurious"
        judgement.violations.insert(0, counts)
    return judgement


def summaries(conn: Connection, job_id: str) -> list[WindowSummary]:
    """All windows of a job, the oldest first."""
    found, cursor = windows.page(conn, job_id, limit=_PAGE)
    while cursor is not None:
        more, cursor = windows.page(conn, job_id, cursor=cursor, limit=_PAGE)
        found = [*found, *more]
    return found[::-1]


def _judge_job(judgement: Judgement, conn: Connection, name: str, owed: Obligations) -> None:
    job_id = job_key(DEFAULT_PROJECT, name)
    found = summaries(conn, job_id)
    for epoch in sorted({*owed.runs(name), *(summary.epoch for summary in found)}):
        table = owed.table(name, epoch)
        covered = np.zeros(len(table), dtype=np.bool_)
        for summary in found:
            if summary.epoch == epoch:
                _judge_window(judgement, conn, job_id, summary, table, covered)
        _judge_counts(judgement, conn, job_id, epoch, len(table))
        judgement.rows_judged += len(table)
        judgement.missing += int((~covered).sum())


def _judge_counts(
    judgement: Judgement, conn: Connection, job_id: str, epoch: int, num_owed: int
) -> None:
    """Every owed operation was counted once as accepted; repeated ones as duplicates."""
    found = runs.load(conn, job_id, epoch)
    judgement.duplicates += found.duplicate
    judgement.conflict_rows += found.conflict
    if found.accepted + found.late != num_owed:
        judgement.add_violation(f"{num_owed} operations of {job_id} are owed, but counted: {found}")


def _judge_window(
    judgement: Judgement,
    conn: Connection,
    job_id: str,
    summary: WindowSummary,
    table: Ints,
    covered: Any,
) -> None:
    label = f"window {summary.window_id} of {job_id} (revision {summary.revision})"
    judgement.windows += 1
    blob = windows.trace(conn, job_id, summary.window_id)
    result = windows.get(conn, job_id, summary.window_id, per_step=True)
    if summary.state == "open" or blob is None:
        judgement.add_violation(
            f"{label} is {summary.state}, with raw operations: {blob is not None}"
        )
        return
    steps = sorted({*result.steps, *(skip.step for skip in result.skipped_steps)})
    in_window = np.isin(table[:, 0], steps)
    if covered[in_window].any():
        judgement.add_violation(f"{label} has steps that another one has too")
    stored, owed = _stored(blob), _rounded(table[in_window])
    if not np.array_equal(stored, owed):
        _count_differences(judgement, stored, owed, in_window, covered, label)
        return
    covered[in_window] = True
    _judge_result(judgement, conn, job_id, label, result, table[in_window], blob)


def _stored(blob: bytes) -> Ints:
    table = unpack_window(blob).ops
    return sorted_rows(
        np.stack([getattr(table, name).astype(np.int64) for name in COLUMNS], axis=1)
    )


def _rounded(rows: Ints) -> Ints:
    """The rows as they are stored: starts and ends to the microsecond, halves upwards."""
    start, duration = COLUMNS.index("start_ns"), COLUMNS.index("duration_ns")
    ends_us = (rows[:, start] + rows[:, duration] + 500) // 1000
    stored = rows.copy()
    stored[:, start] = (rows[:, start] + 500) // 1000 * 1000
    stored[:, duration] = ends_us * 1000 - stored[:, start]
    return stored


def _count_differences(
    judgement: Judgement, stored: Ints, owed: Ints, in_window: Any, covered: Any, label: str
) -> None:
    have, want = _keys(stored), _keys(owed)
    judgement.spurious += int((~np.isin(have, want)).sum()) + len(have) - len(np.unique(have))
    is_there = np.isin(want, have)
    covered[np.flatnonzero(in_window)[is_there]] = True
    judgement.add_violation(f"{label} has {len(have)} operations of {len(want)} that are owed")


def _keys(rows: Ints) -> Any:
    """Each row as one value that can be compared."""
    contiguous = np.ascontiguousarray(rows)
    return contiguous.view(np.dtype((np.void, contiguous.itemsize * len(COLUMNS)))).ravel()


def _judge_result(
    judgement: Judgement,
    conn: Connection,
    job_id: str,
    label: str,
    result: WindowResult,
    rows: Ints,
    blob: bytes,
) -> None:
    table = _op_table(rows)
    if pack_window(table) != blob:
        judgement.add_violation(
            f"{label} has its operations packed otherwise than the oracle packs them"
        )
    window = _window(conn, job_id, result, table)
    expected = observe(window).result
    if _canonical(expected) != _canonical(result):
        judgement.add_violation(f"{label} has another result than its operations have")


def _op_table(rows: Ints) -> OpTable:
    columns = {
        name: rows[:, number].astype(TABLE_DTYPES[name]) for number, name in enumerate(COLUMNS)
    }
    return OpTable(**columns)


def _window(conn: Connection, job_id: str, result: WindowResult, table: OpTable) -> Window:
    header, steps = result.window, result.steps
    assert header.id is not None
    assert header.epoch is not None
    assert header.revision is not None
    # Missing workers are listed per window, not per step.
    missing = iter([header.missing])
    skipped = tuple(
        SkippedStep(skip.step, skip.reason, next(missing, ())) for skip in result.skipped_steps
    )
    return Window(
        job=jobs.registration(conn, job_id, header.epoch).job,
        epoch=header.epoch,
        first_step=int(header.id.partition("-")[2]),
        steps=steps,
        trace=table.trace(steps),
        skipped=skipped,
        state=header.state,
        revision=header.revision,
        hosts=hosts.load(conn, job_id, header.epoch),
        origin_ns=table.origins_ns(steps),
    )


def _canonical(result: WindowResult) -> bytes:
    """The part of a result that follows from the window's operations alone.

    Causes do not: they depend on the job's history at the time of analysis, and an earlier window
    may have been revised since.
    """
    own = {name: value for name, value in result.as_json().items() if name not in _HISTORY_FIELDS}
    return json.dumps(own, sort_keys=True, allow_nan=False).encode()
