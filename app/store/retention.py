"""Retention: how long rows are kept, and the removal of expired ones and of deleted jobs.

Rows that a consumer may still need never expire: open windows, unclosed runs, pending and firing
alerts, due messages, unsettled dead letters. Rows are removed in small batches, each in a
transaction of its own. PostgreSQL reuses freed space once vacuumed (app/store/shrinking/
dead_rows.py); a SQLite file shrinks afterwards (app/store/shrinking/file_size.py). Old windows are
thinned (app/store/shrinking/thinning.py).
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Row,
    Select,
    Table,
    and_,
    bindparam,
    delete,
    func,
    literal,
    not_,
    or_,
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
    alert_told,
    alerts,
    all_tables,
    delivery_attempts,
    muting,
    outbox,
)
from app.store.columns import PackedJson, is_bytes
from app.store.database import Store, now_s, rows_of_group
from app.store.jobs import RESTORABLE_FOR_S
from app.store.projects import owns
from app.store.shrinking import quota
from app.store.shrinking.quota import Excess
from app.store.shrinking.thinning import (
    ThinnedWindows,
    ThinningDays,
    count_due,
    thin,
    within_batch_bytes,
)
from app.store.tables import (
    annotations,
    audit,
    cursors,
    dead_letters,
    drops,
    fixes,
    histories,
    hosts,
    ingest_counts,
    jobs,
    projects,
    rank_exits,
    run_hosts,
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
    """One kind of rows that expire.

    `find` selects the keys of a project's rows from before a Unix time, for large rows with their
    `size_bytes`; `remove` deletes them. They are kept for `max_days` even where results are kept
    for longer.
    """

    name: str
    find: Callable[[str, float], Select[Any]]
    remove: Callable[[Connection, Sequence[Row[Any]]], None]
    is_raw: bool = False
    max_days: float = math.inf


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
    is_own: tuple[bool, bool, bool] = (False, False, False)


@dataclass(frozen=True, slots=True)
class RemovedRows:
    """Rows of one kind that were removed from a project, or would be."""

    project: str
    kind: str
    number: int


def policies(conn: Connection, default: RetentionLimits) -> list[RetentionPolicy]:
    """The retention of each project; `default` is the service's."""
    rows = conn.execute(select(projects).order_by(projects.c.project))
    return [_policy(row, default) for row in rows]


def project_limits(conn: Connection, project: str) -> dict[str, float | None]:
    """The project's own retention; None where the service's applies."""
    names = (projects.c.keep_raw_days, projects.c.keep_results_days, projects.c.keep_gb)
    row = conn.execute(select(*names).where(projects.c.project == project)).one_or_none()
    raw_days, results_days, max_gb = (None, None, None) if row is None else row
    return {"raw_days": raw_days, "results_days": results_days, "max_gb": max_gb}


def set_project_limits(
    conn: Connection,
    project: str,
    *,
    raw_days: float | None,
    results_days: float | None,
    max_gb: float | None,
) -> None:
    """Set a project's retention; None: the service's applies.

    Raises:
        NotFound: there is no such project.
    """
    of_project = update(projects).where(projects.c.project == project)
    values = {"keep_raw_days": raw_days, "keep_results_days": results_days, "keep_gb": max_gb}
    if not conn.execute(of_project.values(**values)).rowcount:
        raise NotFound(f"no project {project!r}: it is created with its first token")


def sweep(
    store: Store, default: RetentionLimits, thinning: ThinningDays | None = None
) -> Iterator[RemovedRows]:
    """Remove expired rows, one batch per iteration; no transaction is open in between.

    With `thinning` old windows are thinned, too, once the expired ones are gone. Then those go
    that are over their project's quota (app/store/shrinking/quota.py).

    Raises:
        LeaseLost: another process is sweeping.
        StoreUnavailable: the database does not answer; what was removed stays so.
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
        _forget_deletion(store, job_id)


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
    """What `sweep` would remove now; runs may expire once their windows are removed."""
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
            rows = quota.first_of(conn.execute(quota.oldest(excess)).all(), excess.excess_bytes)
        yield RemovedRows(excess.project, _EXCESS_KINDS[excess.is_raw], len(rows))


# What `RemovedRows.kind` says of windows over their project's quota; whether of operations alone.
_EXCESS_KINDS = {True: "operations of windows over the quota", False: "windows over the quota"}


def _excesses(store: Store, default: RetentionLimits) -> list[Excess]:
    with store.read() as conn:
        found = [each for each in policies(conn, default) if each.limits.max_gb is not None]
        return [
            excess
            for policy in found
            for excess in quota.excesses(conn, policy.project, 1e9 * (policy.limits.max_gb or 0.0))
        ]


def _remove_excess(store: Store, excess: Excess) -> Iterator[RemovedRows]:
    remove = _remove_operations if excess.is_raw else _remove_windows
    left_bytes = excess.excess_bytes
    while left_bytes > 0:
        with store.write() as conn:
            _lock_sweep(conn)
            old = quota.oldest(excess).limit(_BATCH_ROWS).with_for_update(skip_locked=True)
            found = within_batch_bytes(conn.execute(old).all(), _BATCH_BYTES)
            rows = quota.first_of(found, left_bytes)
            if not rows:
                return
            remove(conn, rows)
        left_bytes -= sum(row.size_bytes for row in rows)
        yield RemovedRows(excess.project, _EXCESS_KINDS[excess.is_raw], len(rows))


def _tasks(store: Store, default: RetentionLimits) -> Iterator[tuple[str, ExpiringRows, float]]:
    with store.read() as conn:
        today_s = now_s(conn)
        found = policies(conn, default)
    for policy in found:
        for kind in _EXPIRING_ROWS:
            days = min(policy.limits.results_days, kind.max_days)
            if kind.is_raw:  # before their windows, which then are small
                days = min(days, policy.limits.raw_days)
            yield policy.project, kind, today_s - days * _DAY_S


def _remove_batch(store: Store, project: str, kind: ExpiringRows, before_s: float) -> int:
    with store.write() as conn:
        _lock_sweep(conn)
        # Locked, so that no row changes before its removal.
        old = kind.find(project, before_s).limit(_BATCH_ROWS)
        found = conn.execute(old.with_for_update(skip_locked=True)).all()
        rows = within_batch_bytes(found, _BATCH_BYTES)
        if rows:
            kind.remove(conn, rows)
    return len(rows)


def _count_of_deleted_jobs(store: Store) -> Iterator[RemovedRows]:
    with store.read() as conn:
        before_s = now_s(conn) - RESTORABLE_FOR_S
        due = select(jobs.c.job_id).where(jobs.c.deleted_s < before_s, not_(_is_open().exists()))
        for job_id in conn.execute(due.order_by(jobs.c.job_id)).scalars().all():
            counts = (select(func.count()).where(t.c.job_id == job_id) for t in _TABLES_OF_JOBS)
            number = sum(conn.execute(each).scalar_one() for each in counts)
            yield RemovedRows(project_of(job_id), DELETED_JOBS, number)


def _is_open() -> Select[Any]:
    """Unclosed runs of a row in `jobs`."""
    return select(runs.c.job_id).where(runs.c.job_id == jobs.c.job_id, ~runs.c.is_closed)


def _begin_removals(store: Store) -> list[str]:
    """Keys of the deleted jobs whose removal may begin, or has begun."""
    with store.write() as conn:
        _lock_sweep(conn)
        at_s = now_s(conn)
        is_due = (jobs.c.deleted_s < at_s - RESTORABLE_FOR_S, not_(_is_open().exists()))
        begin = update(jobs).where(*is_due, jobs.c.removal_began_s.is_(None))
        conn.execute(begin.values(removal_began_s=at_s))
        began = select(jobs.c.job_id).where(jobs.c.removal_began_s.is_not(None))
        return list(conn.execute(began.order_by(jobs.c.job_id)).scalars())


def _remove_batch_of_job(store: Store, job_id: str) -> int:
    """Remove some rows of a deleted job: of the first table, children first, that has any."""
    with store.write() as conn:
        _lock_sweep(conn)
        for table in _TABLES_OF_JOBS:
            key = [table.c[column.name] for column in table.primary_key]
            sizes = (func.coalesce(func.length(each), 0) for each in table.c if _is_large(each))
            size_bytes = sum(sizes, literal(0)).label("size_bytes")
            some: Select[Any] = select(*key, size_bytes).where(table.c.job_id == job_id)
            some = some.limit(_BATCH_ROWS_OF_DELETED)
            rows = within_batch_bytes(conn.execute(some).all(), _BATCH_BYTES)
            if not rows:
                continue
            _before_removal(conn, table, rows)
            keys = [tuple(row)[: len(key)] for row in rows]
            conn.execute(delete(table).where(tuple_(*key).in_(keys)))
            return len(rows)
    return 0


def _is_large(column: Column[Any]) -> bool:
    return is_bytes(column.type) or isinstance(column.type, PackedJson)


def _before_removal(conn: Connection, table: Table, rows: Sequence[Row[Any]]) -> None:
    """Remove attempts with their deliveries, and add counts of runs to their project's sums."""
    if table is outbox:
        messages = select(outbox.c.delivery_id).where(outbox.c.seq.in_([row.seq for row in rows]))
        of_these = delivery_attempts.c.delivery_id.in_(messages)
        conn.execute(delete(delivery_attempts).where(of_these))
    if table is ingest_counts:
        for row in rows:
            stored_runs.remove(conn, row.job_id, row.epoch)


def _forget_deletion(store: Store, job_id: str) -> None:
    forget = update(jobs).values(
        archived_s=None, deleted_s=None, removal_began_s=None, edited_labels={}
    )
    with store.write() as conn:
        conn.execute(forget.where(jobs.c.job_id == job_id))


def _lock_sweep(conn: Connection) -> None:
    # On SQLite the write transaction keeps all others out.
    if conn.dialect.name == "postgresql":
        taken = select(func.pg_try_advisory_xact_lock(ADVISORY_LOCK))
        if not conn.execute(taken).scalar_one():
            raise LeaseLost("another process is removing expired rows")


def _policy(row: Row[Any], default: RetentionLimits) -> RetentionPolicy:
    own = (row.keep_raw_days, row.keep_results_days, row.keep_gb)
    is_own = (own[0] is not None, own[1] is not None, own[2] is not None)
    raw_days = row.keep_raw_days if is_own[0] else default.raw_days
    results_days = row.keep_results_days if is_own[1] else default.results_days
    max_gb = row.keep_gb if is_own[2] else default.max_gb
    return RetentionPolicy(row.project, RetentionLimits(raw_days, results_days, max_gb), is_own)


def _old_deliveries(project: str, before_s: float) -> Select[Any]:
    done = (outbox.c.state != "due", outbox.c.done_s < before_s)
    query = select(outbox.c.seq, outbox.c.delivery_id).where(outbox.c.project == project, *done)
    return query.order_by(outbox.c.seq)


def _remove_deliveries(conn: Connection, rows: Sequence[Row[Any]]) -> None:
    ids = [row.delivery_id for row in rows]
    for table in (delivery_attempts, outbox):
        conn.execute(delete(table).where(table.c.delivery_id.in_(ids)))


def _old_events(project: str, before_s: float) -> Select[Any]:
    # Events of a pending or firing alert are kept.
    goes_on = select(alerts.c.fingerprint).where(alerts.c.fingerprint == alert_events.c.fingerprint)
    query = select(alert_events.c.event_id).where(owns(project, alert_events.c.job_id))
    query = query.where(alert_events.c.at_s < before_s, not_(goes_on.exists()))
    return query.order_by(alert_events.c.event_id)


def _old_told(project: str, before_s: float) -> Select[Any]:
    # Only of resolved alerts: a firing one needs its last notification.
    is_old = (alert_told.c.kind == "resolved", alert_told.c.at_s < before_s)
    query = select(alert_told.c.fingerprint).where(owns(project, alert_told.c.job_id), *is_old)
    return query.order_by(alert_told.c.fingerprint)


def _old_groups(project: str, before_s: float) -> Select[Any]:
    last_s = alert_groups.c.last_at_s
    query = select(alert_groups.c.job_id, alert_groups.c.rule).where(
        owns(project, alert_groups.c.job_id),
        alert_groups.c.next_at_s.is_(None),
        or_(last_s.is_(None), last_s < before_s),
        *(not_(rows_of_group(table).exists()) for table in (alerts, alert_told)),
    )
    return query.order_by(alert_groups.c.job_id, alert_groups.c.rule)


def _remove_groups(conn: Connection, rows: Sequence[Row[Any]]) -> None:
    for row in rows:
        mine = (alert_groups.c.job_id == row.job_id, alert_groups.c.rule == row.rule)
        conn.execute(delete(alert_groups).where(*mine))


def _old_silences(project: str, before_s: float) -> Select[Any]:
    query = select(muting.c.silence_id).where(muting.c.project == project)
    return query.where(muting.c.ends_s < before_s).order_by(muting.c.ends_s)


def _old_audit_entries(project: str, before_s: float) -> Select[Any]:
    query = select(audit.c.audit_id).where(audit.c.project == project, audit.c.at_s < before_s)
    return query.order_by(audit.c.audit_id)


def _remove_from(
    table: Table, key: ColumnElement[Any]
) -> Callable[[Connection, Sequence[Row[Any]]], None]:
    def remove(conn: Connection, rows: Sequence[Row[Any]]) -> None:
        conn.execute(delete(table).where(key.in_([row[0] for row in rows])))

    return remove


# Groups last: they expire when none of their rows is left.
_EXPIRING_ALERT_ROWS = (
    ExpiringRows("deliveries", _old_deliveries, _remove_deliveries),
    ExpiringRows("alert events", _old_events, _remove_from(alert_events, alert_events.c.event_id)),
    ExpiringRows("alerts told", _old_told, _remove_from(alert_told, alert_told.c.fingerprint)),
    ExpiringRows("alert groups", _old_groups, _remove_groups),
    ExpiringRows("silences", _old_silences, _remove_from(muting, muting.c.silence_id)),
    ExpiringRows("audit", _old_audit_entries, _remove_from(audit, audit.c.audit_id)),
)


_WINDOW_KEY = (windows.c.job_id, windows.c.epoch, windows.c.first_step)
_RUN_KEY = ("job_id", "epoch")


def _old_windows(project: str, before_s: float) -> Select[Any]:
    closed = and_(windows.c.state != "open", windows.c.updated_s < before_s)
    size_bytes = func.coalesce(func.length(windows.c.trace), 0).label("size_bytes")
    query = select(*_WINDOW_KEY, windows.c.last_step, size_bytes).where(closed)
    return query.where(owns(project, windows.c.job_id)).order_by(windows.c.updated_s)


def _old_operations(project: str, before_s: float) -> Select[Any]:
    return _old_windows(project, before_s).where(windows.c.trace.is_not(None))


def _remove_operations(conn: Connection, rows: Sequence[Row[Any]]) -> None:
    of_these = tuple_(*_WINDOW_KEY).in_([tuple(row)[:3] for row in rows])
    conn.execute(update(windows).where(of_these).values(trace=None))


def _old_objects(project: str, before_s: float) -> Select[Any]:
    of = window_objects.c
    query = select(of.job_id, of.epoch, of.first_step, of.revision)
    query = query.where(of.updated_s < before_s, ~of.is_removed, owns(project, of.job_id))
    return query.order_by(of.updated_s)


def _remove_objects(conn: Connection, rows: Sequence[Row[Any]]) -> None:
    """Nobody reads them any more; a consumer deletes the objects, then the rows."""
    key = tuple_(*(window_objects.c[name] for name in (*_RUN_KEY, "first_step", "revision")))
    these = key.in_([tuple(row) for row in rows])
    conn.execute(update(window_objects).where(these).values(is_removed=True))


def _old_remainders(project: str, before_s: float) -> Select[Any]:
    of = window_remainders.c
    size_bytes = func.length(of.remainders).label("size_bytes")
    query = select(of.job_id, of.epoch, of.first_step, size_bytes).where(of.stored_s < before_s)
    return query.where(owns(project, of.job_id)).order_by(of.stored_s)


def _remove_remainders(conn: Connection, rows: Sequence[Row[Any]]) -> None:
    key = tuple_(*(window_remainders.c[column.name] for column in _WINDOW_KEY))
    of_these = key.in_([tuple(row)[:3] for row in rows])
    conn.execute(delete(window_remainders).where(of_these))


def _remove_windows(conn: Connection, rows: Sequence[Row[Any]]) -> None:
    names = (*_RUN_KEY, "first_step", "last_step")
    keys = [{f"of_{name}": row._mapping[name] for name in names} for row in rows]
    same_run = [steps.c[name] == bindparam(f"of_{name}") for name in _RUN_KEY]
    its_steps = steps.c.step.between(bindparam("of_first_step"), bindparam("of_last_step"))
    conn.execute(delete(steps).where(*same_run, its_steps), keys)
    of_window = [tuple(row)[:3] for row in rows]
    for table in (window_briefs, window_losses, windows):
        key = tuple_(*(table.c[column.name] for column in _WINDOW_KEY))
        conn.execute(delete(table).where(key.in_(of_window)))


def _old_runs(project: str, before_s: float) -> Select[Any]:
    moments = (runs.c.ended_s, runs.c.superseded_s, runs.c.last_data_s)
    old = (or_(moment.is_(None), moment < before_s) for moment in moments)
    query = select(runs.c.job_id, runs.c.epoch).where(runs.c.is_closed, *old)
    for kept in (windows, spool):
        same_run = (kept.c[name] == runs.c[name] for name in _RUN_KEY)
        query = query.where(not_(select(kept.c.job_id).where(*same_run).exists()))
    return query.where(owns(project, runs.c.job_id)).order_by(runs.c.job_id, runs.c.epoch)


def _remove_runs(conn: Connection, rows: Sequence[Row[Any]]) -> None:
    # The job stays, so that no later run of it reuses an epoch.
    for row in rows:
        stored_runs.remove(conn, row.job_id, row.epoch)
        for table in (steps, hosts, run_hosts, drops, rank_exits, histories, cursors, runs):
            same_run = (table.c[name] == row._mapping[name] for name in _RUN_KEY)
            conn.execute(delete(table).where(*same_run))


def _old_letters(project: str, before_s: float) -> Select[Any]:
    settled = and_(dead_letters.c.state != "dead", dead_letters.c.settled_s < before_s)
    size_bytes = func.length(dead_letters.c.body).label("size_bytes")
    query = select(dead_letters.c.letter_id, size_bytes).where(settled)
    return query.where(owns(project, dead_letters.c.job_id)).order_by(dead_letters.c.letter_id)


def _remove_letters(conn: Connection, rows: Sequence[Row[Any]]) -> None:
    ids = [row.letter_id for row in rows]
    conn.execute(delete(dead_letters).where(dead_letters.c.letter_id.in_(ids)))


def _old_fixes(project: str, before_s: float) -> Select[Any]:
    query = select(fixes.c.fix_id).where(owns(project, fixes.c.job_id))
    return query.where(fixes.c.updated_s < before_s).order_by(fixes.c.updated_s)


def _old_annotations(project: str, before_s: float) -> Select[Any]:
    query = select(annotations.c.annotation_id).where(annotations.c.project == project)
    return query.where(annotations.c.created_s < before_s).order_by(annotations.c.created_s)


def _old_share_links(project: str, before_s: float) -> Select[Any]:
    # Links have an expiry of their own; here, as in their list, they stay as long as results.
    query = select(share_links.c.share_id, share_links.c.size_bytes)
    ended_s = func.coalesce(share_links.c.revoked_s, share_links.c.expires_s)
    query = query.where(share_links.c.project == project, ended_s < before_s)
    return query.order_by(share_links.c.expires_s)


# In this order: a run expires when its windows have been removed.
_EXPIRING_ROWS = (
    ExpiringRows("operations of windows", _old_operations, _remove_operations, is_raw=True),
    ExpiringRows("operations in object storage", _old_objects, _remove_objects, is_raw=True),
    # Late operations come within minutes: what is older was left behind when its run closed.
    ExpiringRows("exact times", _old_remainders, _remove_remainders, max_days=1.0),
    ExpiringRows("windows", _old_windows, _remove_windows),
    ExpiringRows("runs", _old_runs, _remove_runs),
    ExpiringRows("fixes", _old_fixes, _remove_from(fixes, fixes.c.fix_id)),
    ExpiringRows(
        "annotations", _old_annotations, _remove_from(annotations, annotations.c.annotation_id)
    ),
    ExpiringRows(
        "share links", _old_share_links, _remove_from(share_links, share_links.c.share_id)
    ),
    *_EXPIRING_ALERT_ROWS,
    ExpiringRows("dead letters", _old_letters, _remove_letters),
)
