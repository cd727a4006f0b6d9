"""Is everything owed in the store, once, and is every window what these operations make it?"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from app.cli.bench.faults.obligations import COLUMNS, Ints, Obligations, in_order
from app.ingest.op_table import TABLE_DTYPES, OpTable
from app.ingest.trace_codec import pack, unpack
from app.monitor import observe
from app.store import counts, hosts, jobs, windows
from app.store.engine import Connection, Store
from app.store.windows import WindowSummary
from app.trace.names import DEFAULT_PROJECT, qualified
from app.trace.window import SkippedStep, Window

_MOST_TOLD = 20
_PAGE = 200

_OF_HISTORY = ("findings", "ruled_out", "changes")


@dataclass
class Judgement:
    """What is wrong with the windows of some jobs; all zero and empty when nothing is."""

    missing: int = 0
    spurious: int = 0
    windows: int = 0
    rows_judged: int = 0
    duplicates: int = 0  # rows, as the consumer counts them
    conflict_rows: int = 0
    violations: list[str] = field(default_factory=list)

    def blame(self, violation: str) -> None:
        """One more; of very many only the first are told."""
        if len(self.violations) < _MOST_TOLD:
            self.violations.append(violation)


def judge(store: Store, owed: Obligations, names: Iterable[str]) -> Judgement:
    """Compare the store with what is owed of these jobs, all of which have ended."""
    judgement = Judgement()
    for name in names:
        with store.read() as conn:
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
    job_id = qualified(DEFAULT_PROJECT, name)
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
    """Everything owed was counted as taken, once; what came again, as a duplicate."""
    found = counts.load(conn, job_id, epoch)
    judgement.duplicates += found.duplicate
    judgement.conflict_rows += found.conflict
    if found.accepted + found.late != num_owed:
        judgement.blame(f"{num_owed} operations of {job_id} are owed, but counted: {found}")


def _judge_window(
    judgement: Judgement,
    conn: Connection,
    job_id: str,
    summary: WindowSummary,
    table: Ints,
    covered: Any,
) -> None:
    where = f"window {summary.window_id} of {job_id} (revision {summary.revision})"
    judgement.windows += 1
    blob = windows.trace(conn, job_id, summary.window_id)
    result = windows.get(conn, job_id, summary.window_id, per_step=True)
    if summary.state == "open" or blob is None:
        judgement.blame(f"{where} is {summary.state}, with raw operations: {blob is not None}")
        return
    steps = sorted({*result["steps"], *(skip["step"] for skip in result["skipped_steps"])})
    mine = np.isin(table[:, 0], steps)
    if covered[mine].any():
        judgement.blame(f"{where} has steps that another one has too")
    stored = _stored(blob)
    if not np.array_equal(stored, table[mine]):
        _count_differences(judgement, stored, table, mine, covered, where)
        return
    covered[mine] = True
    _judge_result(judgement, conn, job_id, where, result, table[mine], blob)


def _stored(blob: bytes) -> Ints:
    table = unpack(blob)
    return in_order(np.stack([getattr(table, name).astype(np.int64) for name in COLUMNS], axis=1))


def _count_differences(
    judgement: Judgement, stored: Ints, table: Ints, mine: Any, covered: Any, where: str
) -> None:
    have, want = _keys(stored), _keys(table[mine])
    judgement.spurious += int((~np.isin(have, want)).sum()) + len(have) - len(np.unique(have))
    is_there = np.isin(want, have)
    covered[np.flatnonzero(mine)[is_there]] = True
    judgement.blame(f"{where} has {len(have)} operations of {len(want)} that are owed")


def _keys(rows: Ints) -> Any:
    """Each row as one value that can be compared."""
    whole = np.ascontiguousarray(rows)
    return whole.view(np.dtype((np.void, whole.itemsize * len(COLUMNS)))).ravel()


def _judge_result(
    judgement: Judgement,
    conn: Connection,
    job_id: str,
    where: str,
    result: dict[str, Any],
    rows: Ints,
    blob: bytes,
) -> None:
    table = _op_table(rows)
    if pack(table) != blob:
        judgement.blame(f"{where} has its operations packed otherwise than the oracle packs them")
    window = _window(conn, job_id, result, table)
    expected = observe(window).result
    if _canonical(expected) != _canonical(result):
        judgement.blame(f"{where} has another result than its operations have")


def _op_table(rows: Ints) -> OpTable:
    columns = {
        name: rows[:, number].astype(TABLE_DTYPES[name]) for number, name in enumerate(COLUMNS)
    }
    return OpTable(**columns)


def _window(conn: Connection, job_id: str, result: dict[str, Any], table: OpTable) -> Window:
    header, steps = result["window"], tuple(result["steps"])
    # Who was missing is said of the window, not of its steps.
    missing = iter([tuple(header["missing"])])
    skipped = tuple(
        SkippedStep(skip["step"], skip["reason"], next(missing, ()))
        for skip in result["skipped_steps"]
    )
    return Window(
        job=jobs.run(conn, job_id, header["epoch"]).job,
        epoch=header["epoch"],
        first_step=int(header["id"].partition("-")[2]),
        steps=steps,
        trace=table.trace(steps),
        skipped=skipped,
        state=header["state"],
        revision=header["revision"],
        hosts=hosts.load(conn, job_id, header["epoch"]),
        origin_ns=table.origins_ns(steps),
    )


def _canonical(result: dict[str, Any]) -> bytes:
    """All that follows from the window's operations alone.

    Causes do not: they are judged against what was known of the job when the window was seen,
    and a window before it may have been revised since.
    """
    own = {name: value for name, value in result.items() if name not in _OF_HISTORY}
    return json.dumps(own, sort_keys=True, allow_nan=False).encode()
