"""Retention: how long rows are kept, and the removal of expired ones and of deleted jobs.

Rows that a consumer may still need never expire: open windows, unclosed runs, pending and firing
alerts, due messages, unsettled dead letters. Rows are removed in small batches, every one in a
transaction of its own. PostgreSQL reuses freed space once vacuumed, a SQLite file shrinks
afterwards (app/store/shrinking/dead_rows.py). Old windows are thinned (app/store/shrinking/
thinning.py).

A project may have a quota, too. Of its oldest closed windows the operations go first, since
timelines and what-if questions alone need them; then its oldest closed windows.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import accumulate
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Label,
    Row,
    Select,
    Table,
    bindparam,
    delete,
    exists,
    func,
    literal,
    select,
    tuple_,
    update,
)

from app.errors import LeaseLost, NotFound
from app.result.window_result import Resolution
from app.store import runs as stored_runs
from app.store.alerting.tables import (
    alert_events,
    alert_groups,
    alerts,
    all_tables,
    delivery_attempts,
    muting,
    notified_alerts,
    outbox,
)
from app.store.columns import PackedJson, is_bytes
from app.store.database import Store, now_s, of_run, rows_of_group, same_run
from app.store.jobs import RESTORABLE_FOR_S
from app.store.projects import owns
from app.store.shrinking.thinning import (
    ThinnedWindows,
    ThinningDays,
    count_due,
    of_windows,
    thin,
    within_batch_bytes,
)
from app.store.tables import (
    annotations,
    audit,
    dead_letters,
    fixes,
    ingest_counts,
    jobs,
    projects,
    runs,
    share_links,
    spool,
    steps,
    window_briefs,
    window_losses,
    window_objects,
    window_remainders,
    windows,
)
from app.trace.job import project_of


@dataclass(frozen=True, slots=True)
class ExpiringRows:
    """One kind of rows that expire: those of `table` that meet the `conditions`.

    They are old when each of their `times` is, and the oldest go first, or `by_key` the first.
    `remove` needs the columns `beside` the key, of large rows `size_bytes`; None: it deletes them.
    They are kept for `max_days` even where results are kept for longer.
    """

    name: str
    table: Table
    times: Sequence[ColumnElement[float]]
    conditions: Sequence[ColumnElement[bool]] = ()
    by_key: bool = False
    beside: Sequence[ColumnElement[Any]] = ()
    remove: Callable[[Connection, Sequence[Row[Any]]], None] | None = None
    is_raw: bool = False
    max_days: float = math.inf

    def find(self, project: str, before_s: float) -> Select[Any]:
        """The keys of a project's rows from before a Unix time."""
        key, columns = self.table.primary_key.columns, self.table.c
        has_project = "project" in columns
        is_own = columns.project == project if has_project else owns(project, columns.job_id)
        query = select(*key, *self.beside).where(is_own, *self.conditions)
        query = query.where(*(time < before_s for time in self.times))
        return query.order_by(*(key if self.by_key else self.times))


def _delete(conn: Connection, table: Table, rows: Sequence[Row[Any]]) -> None:
    """Delete rows by their keys, which are their first columns."""
    key = tuple_(*table.primary_key.columns)
    conn.execute(delete(table).where(key.in_([tuple(row)[: len(key)] for row in rows])))


_DAY_S = 86_400.0
# SQLite blocks other writers meanwhile: it frees about 100 MB a second.
_BATCH_ROWS = 100
_BATCH_BYTES = 32 << 20
DELETED_JOBS = "rows of deleted jobs"
_BATCH_ROWS_OF_DELETED = 1000
# All tables with rows of one job, children before their parents.
_TABLES_OF_JOBS = tuple(
    table
    for table in reversed(all_tables.sorted_tables)
    # Rows of objects go after their objects: app/store/objects/moves.py.
    if "job_id" in table.c and table not in (jobs, window_objects)
)
# Those of them with rows of one run, and the runs.
_TABLES_OF_RUNS = tuple(
    table
    for table in _TABLES_OF_JOBS
    if table is runs or any(key.column.table is runs for key in table.foreign_keys)
)
# An arbitrary number that no other lock uses; the same in every Paceline.
ADVISORY_LOCK = 7_263_554_619


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """Days for which the operations of closed windows, and all results, are kept.

    And how much the windows of a project may take, in GB of 10^9 bytes; None: as much as they do.
    """

    raw_days: float
    results_days: float
    max_gb: float | None = None


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """A project's retention; `is_own` says which of the three are not the service's default."""

    project: str
    limits: RetentionLimits
    is_own: tuple[bool, ...] = (False, False, False)


@dataclass(frozen=True, slots=True)
class RemovedRows:
    """Rows of one kind that were removed from a project, or would be."""

    project: str
    kind: str
    number: int


_OWN_LIMITS = (projects.c.keep_raw_days, projects.c.keep_results_days, projects.c.keep_gb)


def policies(conn: Connection, default: RetentionLimits) -> list[RetentionPolicy]:
    """The retention of each project; `default` is the service's."""
    rows = conn.execute(select(projects.c.project, *_OWN_LIMITS).order_by(projects.c.project))
    by_project = []
    for project, *own in rows:
        pairs = zip(own, astuple(default), strict=True)
        limits = RetentionLimits(*(usual if limit is None else limit for limit, usual in pairs))
        is_own = tuple(limit is not None for limit in own)
        by_project.append(RetentionPolicy(project, limits, is_own))
    return by_project


def project_limits(conn: Connection, project: str) -> dict[str, float | None]:
    """The project's own retention; None where the service's applies."""
    row = conn.execute(select(*_OWN_LIMITS).filter_by(project=project)).one_or_none()
    names = ("raw_days", "results_days", "max_gb")
    return dict(zip(names, row or (None, None, None), strict=True))


def set_project_limits(
    conn: Connection,
    project: str,
    *,
    raw_days: float | None,
    results_days: float | None,
    max_gb: float | None,
) -> None:
    """Set a project's retention; None: the service's applies. Raises NotFound."""
    values = {"keep_raw_days": raw_days, "keep_results_days": results_days, "keep_gb": max_gb}
    if not conn.execute(update(projects).filter_by(project=project).values(values)).rowcount:
        raise NotFound(f"no project {project!r}: it is created with its first token")


def sweep(
    store: Store, default: RetentionLimits, thinning: ThinningDays | None = None
) -> Iterator[RemovedRows]:
    """Remove expired rows, one batch per iteration; no transaction is open in between.

    With `thinning` old windows are thinned, too, once the expired ones are gone. Then those go
    that are over their project's quota.

    Raises:
        LeaseLost: another process is sweeping.
        StoreUnavailable: the database does not answer; rows that were removed stay removed.
    """
    yield from remove_deleted_jobs(store)
    for project, kind, before_s in _tasks(store, default):
        while number := _remove_batch(store, project, kind, before_s):
            yield RemovedRows(project, kind.name, number)
    if thinning is not None:
        for thinned in thin(store, thinning, _lock_sweep):
            yield _thinned_rows(thinned)
    for excess in _excesses(store, default):
        yield from _remove_excess(store, excess)


def remove_deleted_jobs(store: Store) -> Iterator[RemovedRows]:
    """Remove all rows of jobs that can no longer be restored, one batch per iteration.

    A job whose runs are not closed yet waits: a consumer may still write to them. The row in
    `jobs` stays, as of a job that never registered, so that no later run reuses an epoch. Raises
    as `sweep` does.
    """
    for job_id in _begin_removals(store):
        while number := _remove_batch_of_job(store, job_id):
            yield RemovedRows(project_of(job_id), DELETED_JOBS, number)
        listed = {"archived_s": None, "deleted_s": None, "removal_began_s": None}
        with store.write() as conn:
            conn.execute(update(jobs).filter_by(job_id=job_id).values(**listed, edited_labels={}))


# What `RemovedRows.kind` says of windows that were thinned.
_THINNED_KINDS: Mapping[Resolution, str] = {
    "window": "windows' figures by step",
    "hour": "windows, joined by the hour,",
    "day": "windows, joined by the day,",
}


def _thinned_rows(thinned: ThinnedWindows) -> RemovedRows:
    return RemovedRows(thinned.project, _THINNED_KINDS[thinned.resolution], thinned.number)


def count_old(
    store: Store, default: RetentionLimits, thinning: ThinningDays | None = None
) -> Iterator[RemovedRows]:
    """The rows that `sweep` would remove now; runs may expire once their windows are removed."""
    yield from _count_of_deleted_jobs(store)
    for project, kind, before_s in _tasks(store, default):
        old = kind.find(project, before_s).subquery()
        with store.read() as conn:
            number = conn.execute(select(func.count()).select_from(old)).scalar_one()
        if number:
            yield RemovedRows(project, kind.name, number)
    if thinning is not None:
        yield from map(_thinned_rows, count_due(store, thinning))
    for excess in _excesses(store, default):
        with store.read() as conn:
            closed = conn.execute(_closed(excess.project, is_raw=excess.is_raw)).all()
            rows = _first_of(closed, excess.excess_bytes)
        yield RemovedRows(excess.project, _EXCESS_KINDS[excess.is_raw], len(rows))


# What `RemovedRows.kind` says of windows over their project's quota; whether of operations alone.
_EXCESS_KINDS = {True: "operations of windows over the quota", False: "windows over the quota"}


@dataclass(frozen=True, slots=True)
class Excess:
    """Closed windows of a project, oldest first, that have to go for `excess_bytes` less.

    With `is_raw` their operations alone go.
    """

    project: str
    excess_bytes: int
    is_raw: bool


def stored_bytes(conn: Connection, project: str) -> int:
    """Bytes of all windows of a project in the database: operations and results."""
    total = func.coalesce(func.sum(_size_of(is_raw=True) + _size_of(is_raw=False)), 0)
    query = select(total).where(owns(project, windows.c.job_id))
    return int(conn.execute(query).scalar_one())


def _excesses(store: Store, default: RetentionLimits) -> list[Excess]:
    """Windows to remove until those of each project take no more than its quota."""
    with store.read() as conn:
        return [
            excess
            for policy in policies(conn, default)
            if policy.limits.max_gb is not None
            for excess in _excesses_of(conn, policy.project, 1e9 * policy.limits.max_gb)
        ]


def _excesses_of(conn: Connection, project: str, max_bytes: float) -> Iterator[Excess]:
    excess_bytes = stored_bytes(conn, project) - int(max_bytes)
    if excess_bytes <= 0:
        return
    raw = _closed(project, is_raw=True).subquery()
    sum_of_sizes = select(func.coalesce(func.sum(raw.c.size_bytes), 0))
    raw_bytes = int(conn.execute(sum_of_sizes).scalar_one())
    if raw_bytes:
        yield Excess(project, min(excess_bytes, raw_bytes), is_raw=True)
    if excess_bytes > raw_bytes:
        yield Excess(project, excess_bytes - raw_bytes, is_raw=False)


def _first_of(rows: Sequence[Row[Any]], excess_bytes: int) -> Sequence[Row[Any]]:
    """The first rows that together have so many bytes; all, where they have fewer."""
    sums = accumulate(row.size_bytes for row in rows)
    enough = next((at for at, sum_ in enumerate(sums, 1) if sum_ >= excess_bytes), len(rows))
    return rows[:enough]


def _closed(project: str, *, is_raw: bool) -> Select[Any]:
    """Keys, last step and `size_bytes` of the windows, the oldest first."""
    key = windows.primary_key.columns
    query = select(*key, windows.c.last_step, _size_of(is_raw=is_raw)).order_by(windows.c.updated_s)
    query = query.where(owns(project, windows.c.job_id), windows.c.state != "open")
    return query.where(windows.c.trace.is_not(None)) if is_raw else query


def _size_of(*, is_raw: bool) -> ColumnElement[int]:
    return _sizes(*((windows.c.trace,) if is_raw else (windows.c.result, windows.c.per_step)))


def _sizes(*columns: ColumnElement[Any]) -> Label[int]:
    """Bytes of these columns together."""
    sizes = (func.coalesce(func.length(column), 0) for column in columns)
    return sum(sizes, literal(0)).label("size_bytes")


def _remove_excess(store: Store, excess: Excess) -> Iterator[RemovedRows]:
    remove = _remove_operations if excess.is_raw else _remove_windows
    left_bytes = excess.excess_bytes
    while left_bytes > 0:
        with store.write() as conn:
            _lock_sweep(conn)
            old = _closed(excess.project, is_raw=excess.is_raw).limit(_BATCH_ROWS)
            old = old.with_for_update(skip_locked=True)
            batch = within_batch_bytes(conn.execute(old).all(), _BATCH_BYTES)
            rows = _first_of(batch, left_bytes)
            if not rows:
                return
            remove(conn, rows)
        left_bytes -= sum(row.size_bytes for row in rows)
        yield RemovedRows(excess.project, _EXCESS_KINDS[excess.is_raw], len(rows))


def _tasks(store: Store, default: RetentionLimits) -> Iterator[tuple[str, ExpiringRows, float]]:
    with store.read() as conn:
        today_s = now_s(conn)
        project_policies = policies(conn, default)
    for policy in project_policies:
        for kind in _EXPIRING_ROWS:
            days = min(policy.limits.results_days, kind.max_days)
            if kind.is_raw:  # before their windows, which then are small
                days = min(days, policy.limits.raw_days)
            yield policy.project, kind, today_s - days * _DAY_S


def _remove_batch(store: Store, project: str, kind: ExpiringRows, before_s: float) -> int:
    with store.write() as conn:
        _lock_sweep(conn)
        # Locked, so that no row changes before its removal.
        old = kind.find(project, before_s).limit(_BATCH_ROWS).with_for_update(skip_locked=True)
        rows = within_batch_bytes(conn.execute(old).all(), _BATCH_BYTES)
        if rows and kind.remove is not None:
            kind.remove(conn, rows)
        elif rows:
            _delete(conn, kind.table, rows)
    return len(rows)


def _count_of_deleted_jobs(store: Store) -> Iterator[RemovedRows]:
    with store.read() as conn:
        before_s = now_s(conn) - RESTORABLE_FOR_S
        due = select(jobs.c.job_id).where(jobs.c.deleted_s < before_s, ~_is_open())
        for job_id in conn.execute(due.order_by(jobs.c.job_id)).scalars().all():
            counts = (select(func.count()).where(t.c.job_id == job_id) for t in _TABLES_OF_JOBS)
            number = sum(conn.execute(counted).scalar_one() for counted in counts)
            yield RemovedRows(project_of(job_id), DELETED_JOBS, number)


def _is_open() -> ColumnElement[bool]:
    """Whether a row in `jobs` has unclosed runs."""
    return exists().where(runs.c.job_id == jobs.c.job_id, ~runs.c.is_closed)


def _begin_removals(store: Store) -> list[str]:
    """Keys of the deleted jobs whose removal may begin, or has begun."""
    with store.write() as conn:
        _lock_sweep(conn)
        at_s = now_s(conn)
        is_due = (jobs.c.deleted_s < at_s - RESTORABLE_FOR_S, ~_is_open())
        begin = update(jobs).where(*is_due, jobs.c.removal_began_s.is_(None))
        conn.execute(begin.values(removal_began_s=at_s))
        began = select(jobs.c.job_id).where(jobs.c.removal_began_s.is_not(None))
        return list(conn.execute(began.order_by(jobs.c.job_id)).scalars())


def _remove_batch_of_job(store: Store, job_id: str) -> int:
    """Remove some rows of a deleted job: of the first table, children first, that has any."""
    with store.write() as conn:
        _lock_sweep(conn)
        for table in _TABLES_OF_JOBS:
            size_bytes = _sizes(*filter(_is_large, table.c))
            some = select(*table.primary_key.columns, size_bytes).where(table.c.job_id == job_id)
            some = some.limit(_BATCH_ROWS_OF_DELETED)
            rows = within_batch_bytes(conn.execute(some).all(), _BATCH_BYTES)
            if not rows:
                continue
            if table is outbox:
                _remove_attempts(conn, rows)
            if table is ingest_counts:  # they go on in their project's sums
                for row in rows:
                    stored_runs.remove(conn, row.job_id, row.epoch)
            _delete(conn, table, rows)
            return len(rows)
    return 0


def _is_large(column: Column[Any]) -> bool:
    return is_bytes(column.type) or isinstance(column.type, PackedJson)


def _lock_sweep(conn: Connection) -> None:
    # On SQLite the write transaction keeps all others out.
    if conn.dialect.name == "postgresql":
        taken = select(func.pg_try_advisory_xact_lock(ADVISORY_LOCK))
        if not conn.execute(taken).scalar_one():
            raise LeaseLost("another process is removing expired rows")


def _remove_attempts(conn: Connection, deliveries: Sequence[Row[Any]]) -> None:
    seqs = [row.seq for row in deliveries]
    ids = select(outbox.c.delivery_id).where(outbox.c.seq.in_(seqs))
    conn.execute(delete(delivery_attempts).where(delivery_attempts.c.delivery_id.in_(ids)))


def _remove_deliveries(conn: Connection, rows: Sequence[Row[Any]]) -> None:
    _remove_attempts(conn, rows)
    _delete(conn, outbox, rows)


def _remove_operations(conn: Connection, rows: Sequence[Row[Any]]) -> None:
    conn.execute(update(windows).where(of_windows(windows, rows)).values(trace=None))


def _remove_objects(conn: Connection, rows: Sequence[Row[Any]]) -> None:
    """Mark objects as removed; a consumer deletes the objects, then the rows."""
    is_expired = tuple_(*window_objects.primary_key.columns).in_([tuple(row) for row in rows])
    conn.execute(update(window_objects).where(is_expired).values(is_removed=True))


def _remove_windows(conn: Connection, rows: Sequence[Row[Any]]) -> None:
    names = ("job_id", "epoch", "first_step", "last_step")
    keys = [{f"of_{name}": row._mapping[name] for name in names} for row in rows]
    run = (steps.c.job_id == bindparam("of_job_id"), steps.c.epoch == bindparam("of_epoch"))
    inside = steps.c.step.between(bindparam("of_first_step"), bindparam("of_last_step"))
    conn.execute(delete(steps).where(*run, inside), keys)
    for table in (window_briefs, window_losses, windows):
        conn.execute(delete(table).where(of_windows(table, rows)))


def _remove_runs(conn: Connection, rows: Sequence[Row[Any]]) -> None:
    # The job stays, so that no later run of it reuses an epoch.
    for row in rows:
        stored_runs.remove(conn, row.job_id, row.epoch)
        for table in _TABLES_OF_RUNS:
            conn.execute(delete(table).where(*of_run(table, row.job_id, row.epoch)))


def _moment(column: ColumnElement[Any]) -> ColumnElement[float]:
    """The time, long ago where there is none."""
    return func.coalesce(column, 0.0)


def _has_none(table: Table, *same: ColumnElement[bool]) -> ColumnElement[bool]:
    return ~exists().select_from(table).where(*same)


_CLOSED_WINDOWS: dict[str, Any] = {
    "times": [windows.c.updated_s],
    "beside": [windows.c.last_step, _sizes(windows.c.trace)],
}
_IS_CLOSED = windows.c.state != "open"
# In this order: a run expires when its windows have been removed, a group when none of its rows is
# left.
_EXPIRING_ROWS = (
    ExpiringRows(
        "operations of windows", windows,
        conditions=[_IS_CLOSED, windows.c.trace.is_not(None)],
        remove=_remove_operations, is_raw=True, **_CLOSED_WINDOWS,
    ),
    ExpiringRows(
        "operations in object storage", window_objects, [window_objects.c.updated_s],
        conditions=[~window_objects.c.is_removed], remove=_remove_objects, is_raw=True,
    ),
    # Late operations come within minutes: older rows were left behind when their run closed.
    ExpiringRows(
        "exact times", window_remainders, [window_remainders.c.stored_s],
        beside=[_sizes(window_remainders.c.remainders)], max_days=1.0,
    ),
    ExpiringRows(
        "windows", windows, conditions=[_IS_CLOSED], remove=_remove_windows, **_CLOSED_WINDOWS,
    ),
    ExpiringRows(
        "runs", runs, [*map(_moment, (runs.c.ended_s, runs.c.superseded_s, runs.c.last_data_s))],
        conditions=[runs.c.is_closed,
                    *(_has_none(table, same_run(table, runs)) for table in (windows, spool))],
        by_key=True, remove=_remove_runs,
    ),
    ExpiringRows("fixes", fixes, [fixes.c.updated_s]),
    ExpiringRows("annotations", annotations, [annotations.c.created_s]),
    # Links have an expiry of their own; here, as in their list, they stay as long as results.
    ExpiringRows(
        "share links", share_links,
        [func.coalesce(share_links.c.revoked_s, share_links.c.expires_s)],
        beside=[share_links.c.size_bytes],
    ),
    ExpiringRows(
        "deliveries", outbox, [outbox.c.done_s], conditions=[outbox.c.state != "due"],
        by_key=True, remove=_remove_deliveries,
    ),
    # Events of a pending or firing alert are kept.
    ExpiringRows(
        "alert events", alert_events, [alert_events.c.at_s],
        conditions=[_has_none(alerts, alerts.c.fingerprint == alert_events.c.fingerprint)],
        by_key=True,
    ),
    # Only of resolved alerts: a firing one needs its last notification.
    ExpiringRows(
        "alerts told", notified_alerts, [notified_alerts.c.at_s],
        conditions=[notified_alerts.c.kind == "resolved"],
    ),
    ExpiringRows(
        "alert groups", alert_groups, [_moment(alert_groups.c.last_at_s)],
        conditions=[alert_groups.c.next_at_s.is_(None),
                    *(~rows_of_group(table).exists() for table in (alerts, notified_alerts))],
        by_key=True,
    ),
    ExpiringRows("silences", muting, [muting.c.ends_s]),
    ExpiringRows("audit", audit, [audit.c.at_s]),
    ExpiringRows(
        "dead letters", dead_letters, [dead_letters.c.settled_s],
        conditions=[dead_letters.c.state != "dead"], by_key=True,
        beside=[_sizes(dead_letters.c.body)],
    ),
)  # fmt: skip
