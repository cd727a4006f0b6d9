"""Predicted fixes of jobs, and what they achieved.

One prediction of each fix of a job is followed at a time: a newer one takes its place until it is
noticed that the fix was applied. What has an outcome stays as history.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from sqlalchemy import ColumnElement, Connection, Select, and_, delete, or_, select, tuple_, update

from app.advice.outcome import LIVE, Prediction, SeenWindow, State, Tracked, predicted_again
from app.advice.signs import Sign
from app.errors import Conflict, FixNotFound
from app.store.columns import clipped, clipped_or_none, clipped_values
from app.store.database import chunks, from_cursor, insert, split_page, to_cursor
from app.store.projects import owns
from app.store.runs import current_epoch
from app.store.tables import fixes
from app.trace.job import job_of

# An open prediction that was not renewed for so long says nothing of the job any more.
EXPIRES_AFTER_S = 30 * 86_400.0
Notice = Literal["due", "told"]

_ID_BYTES = 12
_MAX_TEXT = 500
_MAX_AUTHOR = 256
_Id = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]+\Z")]
_TABLE = fixes


@dataclass(frozen=True, slots=True)
class FixRecord:
    """A stored prediction; moments are Unix seconds.

    `tracked_by` is the person who wants it followed, None for the top fix of a window. `notice`
    says whether receivers are to be told of the outcome, or were.
    """

    fix_id: str
    job_id: str
    prediction: Prediction
    tracked_by: str | None
    notice: Notice | None
    predicted_s: float
    updated_s: float

    @property
    def tracked(self) -> Tracked:
        """What became of it so far."""
        return self.prediction.tracked

    def state_at(self, now_s: float) -> State:
        """Its state at this moment: old open predictions have expired."""
        is_old = self.updated_s < now_s - EXPIRES_AFTER_S
        return "expired" if self.tracked.state == "open" and is_old else self.tracked.state

    def with_tracked(self, tracked: Tracked) -> "FixRecord":
        """The same prediction after another window."""
        return replace(self, prediction=replace(self.prediction, tracked=tracked))


def live(conn: Connection, job_id: str, *, now_s: float) -> list[FixRecord]:
    """Predictions of a job that windows may change, by fix; locked until the transaction ends."""
    query = select(_TABLE).where(_TABLE.c.job_id == job_id, _TABLE.c.state.in_(LIVE))
    rows = conn.execute(query.order_by(_TABLE.c.fix).with_for_update()).all()
    found = [_record(row) for row in rows]
    return [each for each in found if each.state_at(now_s) in LIVE]


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
        Conflict: the fix was applied already, and is being measured.
    """
    current_epoch(conn, job_id)
    known = _live_of(conn, job_id, prediction.tracked.fix)
    if known is None:
        new = FixRecord(
            secrets.token_hex(_ID_BYTES), job_id, prediction, tracked_by, None, now_s, now_s
        )
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
    tracked = predicted_again(known.tracked, prediction.tracked)
    again = replace(
        known,
        prediction=prediction if is_expired else replace(prediction, tracked=tracked),
        tracked_by=tracked_by or known.tracked_by,
        predicted_s=now_s if is_expired else known.predicted_s,
    )
    return save(conn, again, now_s=now_s)


def save(conn: Connection, record: FixRecord, *, now_s: float) -> FixRecord:
    """Save what has become of a prediction."""
    record = replace(record, updated_s=now_s)
    conn.execute(update(_TABLE).where(_TABLE.c.fix_id == record.fix_id).values(row_of(record)))
    return record


def due_to_tell(conn: Connection, job_id: str) -> list[FixRecord]:
    """Outcomes of a job that receivers are to be told of, the oldest first."""
    query = select(_TABLE).where(_TABLE.c.job_id == job_id, _TABLE.c.notice == "due")
    rows = conn.execute(query.order_by(_TABLE.c.updated_s, _TABLE.c.fix_id).with_for_update())
    return [_record(row) for row in rows]


def mark_told(conn: Connection, fix_ids: Sequence[str]) -> None:
    """Note that receivers were told of these outcomes, or that there are none to tell."""
    for some in chunks(sorted(fix_ids)):
        conn.execute(update(_TABLE).where(_TABLE.c.fix_id.in_(some)).values(notice="told"))


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

    Raises:
        JobNotFound: the job never registered.
    """
    query = select(_TABLE).where(
        owns(project, _TABLE.c.job_id) if job_id is None else _TABLE.c.job_id == job_id
    )
    if state is not None:
        query = query.where(_is_in(state, now_s))
    if cursor is not None:
        key = tuple_(_TABLE.c.predicted_s, _TABLE.c.fix_id)
        query = query.where(key < from_cursor(cursor, tuple[float, _Id]))
    rows, more = split_page([_record(row) for row in conn.execute(_newest(query, limit))], limit)
    if not rows and job_id is not None:
        current_epoch(conn, job_id)
    return rows, to_cursor(rows[-1].predicted_s, rows[-1].fix_id) if more else None


def remove(conn: Connection, job_id: str, fix_id: str) -> FixRecord:
    """Delete one prediction of a job; returns it.

    Raises:
        JobNotFound: the job never registered.
        FixNotFound: it has no such prediction.
    """
    mine = (_TABLE.c.job_id == job_id, _TABLE.c.fix_id == fix_id)
    row = conn.execute(select(_TABLE).where(*mine)).one_or_none()
    if row is None:
        current_epoch(conn, job_id)
        raise FixNotFound(job_id, fix_id)
    conn.execute(delete(_TABLE).where(*mine))
    return _record(row)


def _newest(query: Select[Any], limit: int) -> Select[Any]:
    ordered = query.order_by(_TABLE.c.predicted_s.desc(), _TABLE.c.fix_id.desc())
    return ordered.limit(limit + 1)


def _is_in(state: State, now_s: float) -> ColumnElement[bool]:
    is_old = _TABLE.c.updated_s < now_s - EXPIRES_AFTER_S
    if state == "open":
        return and_(_TABLE.c.state == "open", ~is_old)
    if state == "expired":
        return or_(_TABLE.c.state == "expired", and_(_TABLE.c.state == "open", is_old))
    return _TABLE.c.state == state


def _live_of(conn: Connection, job_id: str, fix: str) -> FixRecord | None:
    query = select(_TABLE).where(_TABLE.c.job_id == job_id, _TABLE.c.fix == fix)
    row = conn.execute(query.where(_TABLE.c.state.in_(LIVE)).with_for_update()).one_or_none()
    return None if row is None else _record(row)


def row_of(record: FixRecord) -> dict[str, Any]:
    """The record as a row of the table."""
    prediction, tracked = record.prediction, record.tracked
    least_s, most_s = prediction.step_range_s
    return {
        "fix_id": record.fix_id,
        "job_id": record.job_id,
        "fix": tracked.fix,
        "title": clipped(prediction.title, _MAX_TEXT),
        "tracked_by": clipped_or_none(record.tracked_by, _MAX_AUTHOR),
        "epoch": tracked.epoch,
        "first_step": tracked.first_step,
        "before_s": tracked.before_s,
        "step_s": prediction.step_s,
        "least_step_s": least_s,
        "most_step_s": most_s,
        "gpu_hours_per_day": prediction.gpu_hours_per_day,
        "predicted_s": record.predicted_s,
        "updated_s": record.updated_s,
        "sign": clipped_values(msgspec.to_builtins(tracked.sign), _MAX_TEXT),
        "state": tracked.state,
        "windows": msgspec.to_builtins(tracked.windows),
        "num_there": tracked.num_there,
        "applied_epoch": tracked.applied_epoch,
        "applied_step": tracked.applied_step,
        "achieved": tracked.achieved,
        "note": clipped_or_none(tracked.note, _MAX_TEXT),
        "notice": record.notice,
    }


def _record(row: Any) -> FixRecord:
    tracked = Tracked(
        row.fix,
        _convert(row.sign, Sign),
        row.epoch,
        row.first_step,
        row.before_s,
        row.state,
        _convert(row.windows, tuple[SeenWindow, ...]),
        row.num_there,
        row.applied_epoch,
        row.applied_step,
        row.achieved,
        row.note,
    )
    prediction = Prediction(
        row.title,
        row.step_s,
        (row.least_step_s, row.most_step_s),
        row.gpu_hours_per_day,
        tracked,
    )
    return FixRecord(
        row.fix_id,
        row.job_id,
        prediction,
        row.tracked_by,
        row.notice,
        row.predicted_s,
        row.updated_s,
    )


T = TypeVar("T")


def _convert(value: Any, kind: type[T]) -> T:
    """The value of a JSON column; raises ValueError where it has another shape."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"a row of fixes cannot be read: {error}") from error
