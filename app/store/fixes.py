"""Predicted fixes of jobs, and their measured outcomes.

One prediction of each fix of a job is followed at a time: a newer one takes its place until it is
noticed that the fix was applied. Predictions with an outcome stay as history. A row that cannot be
read (an older version wrote it, or it is damaged) is logged, and stops neither the others nor the
job.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec
import structlog
from sqlalchemy import ColumnElement, Connection, Row, Text, delete, select, type_coerce, update

from app.advice.outcome import LIVE, Prediction, SeenWindow, State, Tracked, predicted_again
from app.advice.signs import Sign
from app.errors import Conflict, FixNotFound
from app.store.columns import clipped, clipped_or_none, clipped_values
from app.store.database import HexId, ListOrder, chunks, equal, insert, new_id
from app.store.projects import owns
from app.store.runs import current_epoch
from app.store.tables import fixes
from app.trace.job import job_of

log = structlog.get_logger()

# An open prediction that was not renewed for so long says nothing of the job any more.
EXPIRES_AFTER_S = 30 * 86_400.0
Notice = Literal["due", "notified"]

_MAX_TEXT = 500
_MAX_AUTHOR = 256
_TABLE = fixes
_ORDER = ListOrder((_TABLE.c.predicted_s, _TABLE.c.fix_id), tuple[float, HexId])
# JSON is read as text: a value that is none would make the whole query fail.
_TEXT = {name: type_coerce(_TABLE.c[name], Text).label(name) for name in ("sign", "windows")}
_COLUMNS = [_TEXT.get(column.name, column) for column in _TABLE.columns]


@dataclass(frozen=True, slots=True)
class FixRecord:
    """A stored prediction; moments are Unix seconds.

    It was predicted first at `predicted_s` and last at `renewed_s`; `updated_s` is its last change.
    `tracked_by` is the person who wants it followed, None for the top fix of a window. `notice`
    says whether receivers are still to be notified of the outcome, or were.
    """

    fix_id: str
    job_id: str
    prediction: Prediction
    tracked_by: str | None
    notice: Notice | None
    predicted_s: float
    renewed_s: float
    updated_s: float

    @property
    def tracked(self) -> Tracked:
        """The state of the fix, and what windows have shown of it so far."""
        return self.prediction.tracked

    def state_at(self, now_s: float) -> State:
        """Its state at this moment: old open predictions have expired."""
        is_old = self.renewed_s < now_s - EXPIRES_AFTER_S
        return "expired" if self.tracked.state == "open" and is_old else self.tracked.state

    def with_tracked(self, tracked: Tracked) -> "FixRecord":
        """The same prediction after another window."""
        return replace(self, prediction=replace(self.prediction, tracked=tracked))


def live(conn: Connection, job_id: str, *, now_s: float) -> list[FixRecord]:
    """Predictions of a job that windows may change, by fix; locked until the transaction ends."""
    records = _live_records(conn, job_id)
    return [record for record in records if record.state_at(now_s) in LIVE]


def newest_place(conn: Connection, job_id: str) -> tuple[int, int] | None:
    """Epoch and first step of the newest window in a job's predictions, finished ones included.

    That is where a fix was predicted, applied or measured; None without predictions.
    """
    fix = _TABLE.c
    query = select(fix.epoch, fix.first_step, fix.applied_epoch, fix.applied_step, _TEXT["windows"])
    places: list[tuple[int, int]] = []
    for row in conn.execute(query.where(fix.job_id == job_id)):
        places += [(row.epoch, row.first_step), *_places_of(row.windows)]
        if None not in (row.applied_epoch, row.applied_step):
            places.append((row.applied_epoch, row.applied_step))
    return max(places, default=None)


def save_prediction(
    conn: Connection,
    job_id: str,
    prediction: Prediction,
    *,
    now_s: float,
    tracked_by: str | None = None,
) -> FixRecord:
    """Follow a prediction, in place of an open one of the same fix.

    Raises:
        JobNotFound: the job never registered.
        Conflict: the fix was applied already, and is being measured; or a newer window predicted
            it since.
    """
    current_epoch(conn, job_id)
    known = _live_of(conn, job_id, prediction.tracked.fix)
    if known is None:
        times_s = (now_s, now_s, now_s)
        new = FixRecord(new_id(), job_id, prediction, tracked_by, None, *times_s)
        statement = insert(conn, _TABLE).values(row_of(new)).on_conflict_do_nothing()
        if conn.execute(statement.returning(_TABLE.c.fix_id)).one_or_none() is not None:
            return new
        known = _live_of(conn, job_id, prediction.tracked.fix)  # another process was faster
    if known is None or known.tracked.state == "applied":
        raise Conflict(
            f"{prediction.tracked.fix} was applied to job {job_of(job_id)!r} and is being "
            "measured: wait for its outcome"
        )
    is_expired = known.state_at(now_s) == "expired"
    _check_is_newer(known.tracked, prediction.tracked)
    tracked = predicted_again(known.tracked, prediction.tracked)
    again = replace(
        known,
        prediction=prediction if is_expired else replace(prediction, tracked=tracked),
        tracked_by=tracked_by or known.tracked_by,
        predicted_s=now_s if is_expired else known.predicted_s,
        renewed_s=now_s,
    )
    return save(conn, again, now_s=now_s)


def _check_is_newer(known: Tracked, new: Tracked) -> None:
    """Windows after the older one have shown already whether the fix is there."""
    if (new.epoch, new.first_step) < (known.epoch, known.first_step):
        raise Conflict(
            f"{new.fix} is followed from window {known.epoch}-{known.first_step}, which is newer "
            f"than {new.epoch}-{new.first_step}: predict it for the newest window"
        )


def save(conn: Connection, record: FixRecord, *, now_s: float) -> FixRecord:
    """Save a prediction after a window."""
    record = replace(record, updated_s=now_s)
    conn.execute(update(_TABLE).where(_TABLE.c.fix_id == record.fix_id).values(row_of(record)))
    return record


def due_notices(conn: Connection, job_id: str) -> list[FixRecord]:
    """Outcomes of a job that receivers are to be notified of, the oldest first."""
    query = select(*_COLUMNS).where(_TABLE.c.job_id == job_id, _TABLE.c.notice == "due")
    query = query.order_by(_TABLE.c.updated_s, _TABLE.c.fix_id).with_for_update()
    records, unreadable = _records(conn.execute(query))
    _set(conn, unreadable, notice=None)
    return records


def drop_due(conn: Connection, job_id: str) -> int:
    """Drop the due notifications of the outcomes of a job; returns their number.

    The rule that would have sent them is gone.
    """
    due = update(_TABLE).filter_by(job_id=job_id, notice="due")
    return conn.execute(due.values(notice=None)).rowcount


def has_due(conn: Connection, job_id: str) -> bool:
    """Whether receivers are to be notified of an outcome of this job."""
    due = select(_TABLE.c.fix_id).filter_by(job_id=job_id, notice="due")
    return conn.scalar(due.limit(1)) is not None


def mark_notified(conn: Connection, fix_ids: Sequence[str]) -> None:
    """Note that receivers were notified of these outcomes, or that there are none to notify."""
    _set(conn, fix_ids, notice="notified")


def page(
    conn: Connection,
    project: str,
    *,
    job_id: str | None = None,
    state: State | None = None,
    now_s: float,
    cursor: str | None = None,
    limit: int = 100,
) -> tuple[list[FixRecord], str | None]:
    """Predictions of a project or of one job, the newest first, and the cursor of the next page.

    Rows that cannot be read are left out.

    Raises:
        JobNotFound: the job never registered.
    """
    query = select(*_COLUMNS).where(
        owns(project, _TABLE.c.job_id) if job_id is None else _TABLE.c.job_id == job_id
    )
    if state is not None:
        query = query.where(_is_in(state, now_s))
    rows, more = _ORDER.page(conn, query, cursor, limit)
    if not rows and job_id is not None:
        current_epoch(conn, job_id)
    return _records(rows)[0], more


def remove(conn: Connection, job_id: str, fix_id: str) -> str:
    """Delete a job's prediction; returns its fix's name. Raises JobNotFound or FixNotFound."""
    removed = delete(_TABLE).filter_by(job_id=job_id, fix_id=fix_id).returning(_TABLE.c.fix)
    fix = conn.scalar(removed)
    if fix is None:
        current_epoch(conn, job_id)
        raise FixNotFound(job_id, fix_id)
    return str(fix)


def _is_in(state: State, now_s: float) -> ColumnElement[bool]:
    is_old = _TABLE.c.renewed_s < now_s - EXPIRES_AFTER_S
    if state == "open":
        return (_TABLE.c.state == "open") & ~is_old
    if state == "expired":
        return (_TABLE.c.state == "expired") | ((_TABLE.c.state == "open") & is_old)
    return _TABLE.c.state == state


def _live_of(conn: Connection, job_id: str, fix: str) -> FixRecord | None:
    return next(iter(_live_records(conn, job_id, fix)), None)


def _live_records(conn: Connection, job_id: str, fix: str | None = None) -> list[FixRecord]:
    """The rows that can be read; the others expire, so that the fix can be predicted again."""
    query = select(*_COLUMNS).where(*equal(_TABLE, job_id=job_id, fix=fix))
    query = query.where(_TABLE.c.state.in_(LIVE)).order_by(_TABLE.c.fix).with_for_update()
    records, unreadable = _records(conn.execute(query))
    _set(conn, unreadable, state="expired")
    return records


def _set(conn: Connection, fix_ids: Sequence[str], **values: str | None) -> None:
    for some in chunks(sorted(fix_ids)):
        conn.execute(update(_TABLE).where(_TABLE.c.fix_id.in_(some)).values(**values))


# Fields that are columns of the same name.
_OF_RECORD = tuple(name for name in FixRecord.__slots__ if name != "prediction")
_OF_PREDICTION = ("title", "step_s", "gpu_hours_per_day")


def row_of(record: FixRecord) -> dict[str, Any]:
    """The record as a row of the table."""
    prediction, tracked = record.prediction, record.tracked
    least_s, most_s = prediction.step_range_s
    return {
        **{name: getattr(record, name) for name in _OF_RECORD},
        **{name: getattr(prediction, name) for name in _OF_PREDICTION},
        **{name: getattr(tracked, name) for name in Tracked.__slots__},
        "title": clipped(prediction.title, _MAX_TEXT),
        "tracked_by": clipped_or_none(record.tracked_by, _MAX_AUTHOR),
        "least_step_s": least_s,
        "most_step_s": most_s,
        "sign": clipped_values(msgspec.to_builtins(tracked.sign), _MAX_TEXT),
        "windows": msgspec.to_builtins(tracked.windows),
        "note": clipped_or_none(tracked.note, _MAX_TEXT),
    }


def _records(rows: Iterable[Row[Any]]) -> tuple[list[FixRecord], list[str]]:
    """The rows that can be read, and the ids of the others, which are logged."""
    records, unreadable = [], []
    for row in rows:
        try:
            records.append(_record(row))
        except ValueError as error:  # of msgspec, too
            log.warning("fix unreadable", job=row.job_id, fix=row.fix_id, reason=str(error))
            unreadable.append(row.fix_id)
    return records, unreadable


def _places_of(windows: str) -> list[tuple[int, int]]:
    try:
        seen = msgspec.json.decode(windows, type=tuple[SeenWindow, ...])
        return [window.place for window in seen]
    except ValueError:
        return []


def _record(row: Row[Any]) -> FixRecord:
    """The record of a row; raises ValueError where it cannot be read."""
    known = row._mapping
    tracked = {name: known[name] for name in Tracked.__slots__} | {
        "sign": msgspec.json.decode(row.sign, type=Sign),
        "state": msgspec.convert(row.state, State),
        "windows": msgspec.json.decode(row.windows, type=tuple[SeenWindow, ...]),
    }
    prediction = Prediction(
        **{name: known[name] for name in _OF_PREDICTION},
        step_range_s=(row.least_step_s, row.most_step_s),
        tracked=Tracked(**tracked),
    )
    return FixRecord(prediction=prediction, **{name: known[name] for name in _OF_RECORD})
