"""Thinning: old windows become fewer and smaller, so that the database stays bounded.

First their figures by step go, and their steps become one row. Later the windows of an hour, by
the time at which they were last saved, become one window, and then those of a day: with the joint
result of all (app.result.thin), the losses and the steps of all, and the operations of
one, in the database or in object storage. The last windows of a run stay whole, because the job is
judged by them.

Each change is a small transaction; its input is read before, outside of it.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any, NamedTuple

import structlog
from sqlalchemy import (
    ColumnElement,
    Connection,
    LargeBinary,
    Table,
    and_,
    delete,
    func,
    not_,
    select,
    tuple_,
    type_coerce,
    update,
)

from app.result.recent import RECENT_WINDOWS
from app.result.stored import decode_result
from app.result.thin import MAX_VALUES, recorded_part, thinned_result, thinned_steps
from app.result.window_result import Resolution, WindowResult, num_steps
from app.store import windows as stored
from app.store.alerting.tables import alert_events
from app.store.columns import unpacked
from app.store.database import Store, insert_new, now_s, of_run
from app.store.joint_windows import max_windows_at_once
from app.store.objects import moves
from app.store.tables import runs, steps, window_briefs, window_losses, windows
from app.store.windows import StepRow
from app.trace.job import project_of

log = structlog.get_logger()

_DAY_S = 86_400.0
PERIODS_S: Mapping[Resolution, float] = {"hour": 3600.0, "day": _DAY_S}
# Rows of a transaction, and runs that are looked at in one query.
_BATCH_ROWS = 20
_BATCH_BYTES = 8 << 20
_BATCH_RUNS = 100
# Alerts whose windows are preferred when operations are kept.
_MAX_ALERTS = 500

_UNREADABLE = (ArithmeticError, LookupError, TypeError, ValueError)

RunKey = tuple[str, int]  # job_id, epoch
Lock = Callable[[Connection], None]


@dataclass(frozen=True, slots=True)
class ThinningDays:
    """Ages in days: of figures by step, of single windows, and of hours that become days."""

    steps_days: float
    windows_days: float
    hours_days: float


class ThinnedWindows(NamedTuple):
    """Windows of a project that were thinned in one transaction: by step, or into hours or days.

    `number` are those whose figures by step went, or which became part of another window.
    """

    project: str
    resolution: Resolution
    number: int


def thin(store: Store, ages: ThinningDays, lock: Lock) -> Iterator[ThinnedWindows]:
    """Thin all windows that are due, one transaction per iteration.

    `lock` keeps other processes from doing the same; its errors and StoreUnavailable are raised.
    """
    with store.read() as conn:
        at_s = now_s(conn)
    yield from _thin_steps(store, at_s - ages.steps_days * _DAY_S, lock)
    for run in _runs(store):
        for resolution, group in _due_groups(store, run, ages, at_s):
            yield from _merge_all(store, run, resolution, group, lock)


def count_due(store: Store, ages: ThinningDays) -> Iterator[ThinnedWindows]:
    """What `thin` would do now."""
    numbers: dict[tuple[str, Resolution], int] = defaultdict(int)
    with store.read() as conn:
        at_s = now_s(conn)
        before_s = at_s - ages.steps_days * _DAY_S
        due = select(windows.c.job_id, func.count()).where(*_has_old_steps(before_s))
        for job_id, number in conn.execute(due.group_by(windows.c.job_id)):
            numbers[project_of(job_id), "window"] += number
    for run in _runs(store):
        for resolution, group in _due_groups(store, run, ages, at_s):
            numbers[project_of(run[0]), resolution] += len(group) - 1
    for (project, resolution), number in numbers.items():
        yield ThinnedWindows(project, resolution, number)


def _newest_kept(job_id: Any, epoch: Any) -> Any:
    """Subquery: the first step of the oldest window of a run that stays whole."""
    newer = windows.alias("newer")
    query = select(newer.c.first_step).where(newer.c.job_id == job_id, newer.c.epoch == epoch)
    query = query.where(newer.c.state != "open", newer.c.slowdown.is_not(None))
    query = query.order_by(newer.c.first_step.desc()).limit(1).offset(RECENT_WINDOWS - 1)
    return query.correlate(windows).scalar_subquery()


def _has_old_steps(before_s: float) -> tuple[Any, ...]:
    window = windows.c
    return (
        window.per_step.is_not(None),
        window.updated_s < before_s,
        window.state != "open",
        window.first_step < _newest_kept(window.job_id, window.epoch),
    )


def _thin_steps(store: Store, before_s: float, lock: Lock) -> Iterator[ThinnedWindows]:
    window = windows.c
    size_bytes = func.coalesce(func.length(window.trace), 0) + func.length(window.result)
    packed = type_coerce(window.result, LargeBinary).label("packed")  # unpacked one by one
    query = select(*windows.primary_key.columns, window.last_step, packed,
                   size_bytes.label("size_bytes"))  # fmt: skip
    query = query.where(*_has_old_steps(before_s)).order_by(window.updated_s).limit(_BATCH_ROWS)
    query = query.with_for_update(of=windows, skip_locked=True)  # no row changes meanwhile
    while True:
        with store.write() as conn:
            lock(conn)
            rows = within_batch_bytes(conn.execute(query).all(), _BATCH_BYTES)
            by_project: dict[str, int] = defaultdict(int)
            for row in rows:
                try:
                    result = decode_result(unpacked(row.packed))
                    window_key = (row.job_id, row.epoch, row.first_step)
                    _replace_steps(conn, *window_key, row.last_step, result, max_values=1)
                except _UNREADABLE:
                    # Its steps stay: a result that cannot be read must not stop the others.
                    log.exception("steps not thinned", job=row.job_id, first_step=row.first_step)
                by_project[project_of(row.job_id)] += 1
            conn.execute(update(windows).where(of_windows(windows, rows)).values(per_step=None))
            # Only that of the newest window is ever read.
            conn.execute(delete(window_briefs).where(of_windows(window_briefs, rows)))
        yield from (ThinnedWindows(project, "window", n) for project, n in by_project.items())
        if not rows:
            return


def of_windows(table: Table, rows: Sequence[Any]) -> ColumnElement[bool]:
    """Whether a row of the table is of one of these windows: `rows` begin with their keys."""
    key = tuple_(table.c.job_id, table.c.epoch, table.c.first_step)
    return key.in_([tuple(row)[:3] for row in rows])


def within_batch_bytes(rows: Sequence[Any], max_bytes: int) -> list[Any]:
    """The first rows, at least one, whose `size_bytes` add up to so many bytes at most."""
    sizes = accumulate(row._mapping.get("size_bytes", 0) for row in rows)
    return [row for at, (row, sum_) in enumerate(zip(rows, sizes, strict=True))
            if at == 0 or sum_ <= max_bytes]  # fmt: skip


def _replace_steps(
    conn: Connection, job_id: str, epoch: int, first_step: int, last_step: int,
    result: WindowResult, *, max_values: int,
) -> None:  # fmt: skip
    """Replace the measured steps of a window by a few means; of skipped ones the listed stay."""
    has_figures = result.slowdown is not None
    rows = [
        StepRow(
            epoch, mean.first_step, mean.recorded_s, mean.simulated_s, mean.ideal_s,
            mean.slowdown, f"{epoch}-{first_step}", started_s=mean.started_s,
            last_step=mean.last_step, num_steps=mean.num_steps,
        )
        for mean in thinned_steps(result, last_step, max_values=max_values) * has_figures
    ]  # fmt: skip
    listed = [skipped.step for skipped in result.skipped_steps]
    inside = (*of_run(steps, job_id, epoch), steps.c.step.between(first_step, last_step))
    is_left = and_(steps.c.skipped_reason.is_not(None), steps.c.step.in_(listed))
    conn.execute(delete(steps).where(*inside, not_(is_left)))
    stored.save_steps(conn, job_id, rows)


def _runs(store: Store) -> Iterator[RunKey]:
    """All runs, a page at a time, so that no transaction stays open."""
    key, after = (runs.c.job_id, runs.c.epoch), ("", 0)
    while True:
        query = select(*key).where(tuple_(*key) > after).order_by(*key).limit(_BATCH_RUNS)
        with store.read() as conn:
            page = [(row.job_id, row.epoch) for row in conn.execute(query)]
        yield from page
        if len(page) < _BATCH_RUNS:
            return
        after = page[-1]


def _due_groups(
    store: Store, run: RunKey, ages: ThinningDays, at_s: float
) -> list[tuple[Resolution, list[int]]]:
    """First steps of successive windows of one hour or day, all of which is old enough."""
    after_days: Mapping[Resolution, float] = {"hour": ages.windows_days, "day": ages.hours_days}
    befores_s = {
        name: (at_s - days * _DAY_S) // PERIODS_S[name] * PERIODS_S[name]
        for name, days in after_days.items()
    }
    window = windows.c
    query = select(window.first_step, window.updated_s).where(*of_run(windows, *run))
    query = query.where(window.first_step < _newest_kept(*run))
    query = query.where(window.updated_s < max(befores_s.values()))

    def period(row: Any) -> tuple[Resolution, int]:
        name: Resolution = "day" if row.updated_s < befores_s["day"] else "hour"
        return name, int(row.updated_s // PERIODS_S[name])

    with store.read() as conn:
        rows = conn.execute(query.order_by(window.first_step)).all()
    groups = [(key[0], [row.first_step for row in part]) for key, part in groupby(rows, period)]
    return [(name, group) for name, group in groups if len(group) > 1]


def _merge_all(
    store: Store, run: RunKey, resolution: Resolution, group: Sequence[int], lock: Lock
) -> Iterator[ThinnedWindows]:
    """Merge the windows into the first, as many at a time as can be read at once."""
    size = select(runs.c.dp_size * runs.c.pp_size).where(*of_run(runs, *run))
    with store.read() as conn:
        at_once = max_windows_at_once(conn.execute(size).scalar_one())
    left = list(group)
    while len(left) > 1:
        some = left[:at_once]
        try:
            is_done = _merge(store, run, resolution, some, lock)
        except _UNREADABLE:
            # A result that this release cannot read must not stop the others.
            log.exception("windows not thinned", job=run[0], epoch=run[1], first_step=some[0])
            return
        if not is_done:
            return
        yield ThinnedWindows(project_of(run[0]), resolution, len(some) - 1)
        left = [left[0], *left[at_once:]]


def _merge(
    store: Store, run: RunKey, resolution: Resolution, group: Sequence[int], lock: Lock
) -> bool:
    """Merge windows into the first of them; False if one of them has changed meanwhile."""
    window = windows.c
    has_trace = window.trace.is_not(None).label("has_trace")
    names = ("last_step", "state", "num_steps", "num_ops", "slowdown", "updated_s", "result")
    query = select(window.first_step, window.revision, has_trace, *(window[name] for name in names))
    of_group = (*of_run(windows, *run), window.first_step.in_(group))
    query = query.where(*of_group).order_by(window.first_step)
    with store.read() as conn:
        rows = conn.execute(query).all()
        moved = moves.in_bucket(conn, *run, group)
        linked = _windows_of_alerts(conn, run)
    if [row.first_step for row in rows] != list(group) or any(r.state == "open" for r in rows):
        return False
    recorded = _most_interesting(
        [row for row in rows if row.has_trace or row.first_step in moved], linked
    )
    result = thinned_result(
        [row.result for row in rows], resolution, None if recorded is None else recorded.result
    )
    first = rows[0]
    kept_object = recorded.first_step if recorded and recorded.first_step in moved else None
    merged: dict[str, Any] = {
        "last_step": max(row.last_step for row in rows),
        "revision": result.window.revision,
        "state": result.window.state,
        "num_steps": num_steps(result) if result.steps else 0,
        "num_ops": sum(row.num_ops for row in rows),
        "slowdown": result.slowdown,
        "verdict": result.fidelity.verdict if result.slowdown is not None else None,
        "updated_s": max(row.updated_s for row in rows),
        "result": result,
        "per_step": None,
    }
    with store.write() as conn:
        lock(conn)
        # A move or retention may have taken operations since: the choice among them would be wrong.
        current = select(window.first_step, window.revision, has_trace).where(*of_group)
        current = current.order_by(window.first_step).with_for_update()
        if [tuple(row) for row in conn.execute(current)] != [tuple(row[:3]) for row in rows]:
            return False
        if moves.in_bucket(conn, *run, group) != moved:
            return False
        moves.join(
            conn, *run, group, kept=kept_object,
            revision=merged["revision"], updated_s=merged["updated_s"],
        )  # fmt: skip
        if recorded is None or kept_object is not None:
            merged["trace"] = None
        elif recorded is not first:
            source = windows.alias("source")
            is_recorded = (*of_run(source, *run), source.c.first_step == recorded.first_step)
            merged["trace"] = select(source.c.trace).where(*is_recorded).scalar_subquery()
        _merge_losses(conn, run, group, result, merged["updated_s"])
        briefs = delete(window_briefs).where(*of_run(window_briefs, *run))
        conn.execute(briefs.where(window_briefs.c.first_step.in_(group)))
        is_first = window.first_step == first.first_step
        conn.execute(update(windows).where(*of_group, is_first).values(merged))
        conn.execute(delete(windows).where(*of_group, ~is_first))
        steps_of = (*run, first.first_step, merged["last_step"])
        _replace_steps(conn, *steps_of, result, max_values=MAX_VALUES)
    return True


def _windows_of_alerts(conn: Connection, run: RunKey) -> set[str]:
    """Ids of the windows that alerts of the job link to."""
    query = select(alert_events.c.detail).where(alert_events.c.job_id == run[0])
    query = query.order_by(alert_events.c.at_s.desc()).limit(_MAX_ALERTS)
    return {detail.window_id for detail in conn.scalars(query) if detail.window_id}


def _most_interesting(rows: Sequence[Any], linked: set[str]) -> Any | None:
    """Of windows with operations, that whose are kept: one of an alert, else the slowest."""

    def interest(row: Any) -> tuple[bool, float]:
        return recorded_part(row.result).window.id in linked, row.slowdown or 0.0

    return max(rows, key=interest, default=None)


def _merge_losses(
    conn: Connection, run: RunKey, group: Sequence[int], result: WindowResult, at_s: float
) -> None:
    """One loss of each kind and name: sums of the windows', and the largest slowdown."""
    loss = window_losses.c
    of_group = (*of_run(window_losses, *run), loss.first_step.in_(group))
    sums = [func.sum(loss[name]).label(name) for name in ("gpu_s", "gpu_s_recorded")]
    largest = [func.max(loss[name]).label(name) for name in ("num_gpus", "slowdown")]
    summed = select(loss.kind, loss.name, *sums, *largest).where(*of_group)
    summed = summed.group_by(loss.kind, loss.name)
    key = {"job_id": run[0], "epoch": run[1], "first_step": group[0], "updated_s": at_s}
    losses = [{**key, **row._mapping} for row in conn.execute(summed)]
    conn.execute(delete(window_losses).where(*of_group))
    for row in losses:
        if row["kind"] == "total":
            row["slowdown"] = result.slowdown
    insert_new(conn, window_losses, losses)
