"""Operations of closed windows that move from the database into a bucket, and are read from there.

A consumer commits them to the database, so that none waits for the bucket. Later they move, one
window at a time: first a row says that there may be an object, then the object is stored, then the
window's own copy goes. Whatever fails on the way, the operations are in one of both places, and no
object is without a row. A row whose window is gone, revised or past retention is deleted after its
object.
"""

import hashlib
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Row, Select, and_, delete, or_, select, update

from app.errors import Conflict
from app.store import windows as stored_windows
from app.store.database import Connection, Store, insert, now_s
from app.store.objects.bucket import Bucket
from app.store.tables import window_objects, window_remainders, windows

# Longer than a move can take; then another process may try.
_CLAIM_S = 600.0
_MAX_DELETED = 500  # at once: a request takes 1000
_KEY = ("job_id", "epoch", "first_step")


class _Candidate(NamedTuple):
    """A window whose operations are to move."""

    job_id: str
    epoch: int
    first_step: int
    revision: int
    updated_s: float


@dataclass(frozen=True, slots=True)
class MovedOperations:
    """Operations that are in a bucket, by the name of their object."""

    window_id: str
    name: str
    sha256: str


def find(conn: Connection, job_id: str, window_id: str) -> bytes | MovedOperations | None:
    """The operations of a closed window, or where they are; None where they are kept nowhere.

    Raises:
        JobNotFound: the job never registered.
        WindowNotFound: it has no such window.
    """
    kept = stored_windows.trace(conn, job_id, window_id)
    if kept is not None:
        return kept
    summary = stored_windows.summary(conn, job_id, window_id)
    of = window_objects.c
    same = (of.epoch == summary.epoch, of.first_step == summary.first_step)
    query = select(window_objects).where(of.job_id == job_id, *same)
    query = query.where(of.revision == summary.revision, of.is_stored, ~of.is_removed)
    row = conn.execute(query).one_or_none()
    if row is None:
        return None
    return MovedOperations(summary.window_id, _name(row), row.sha256)


def fetch(bucket: Bucket | None, found: bytes | MovedOperations | None) -> bytes | None:
    """What `find` found, from the bucket if it is there.

    Raises:
        ObjectStorageUnavailable: the bucket does not answer.
        Conflict: this process knows no bucket, or the bucket has other bytes.
    """
    if not isinstance(found, MovedOperations):
        return found
    where = f"the operations of window {found.window_id} are in object storage"
    if bucket is None:
        raise Conflict(
            f"{where}, and this process knows none: set PACELINE_S3_BUCKET for it as for the others"
        )
    data = bucket.get(found.name)
    if data is None:
        raise Conflict(f"{where}, and object {found.name} is not there any more")
    if hashlib.sha256(data).hexdigest() != found.sha256:
        raise Conflict(f"{where}, and object {found.name} has been changed there")
    return data


def move_one(store: Store, bucket: Bucket, *, after_s: float) -> bool:
    """Move the operations of one window that closed `after_s` seconds ago; False if none is due.

    Raises:
        ObjectStorageUnavailable: the bucket does not take them; they stay in the database.
        StoreUnavailable: the database does not answer.
    """
    with store.write() as conn:
        at_s = now_s(conn)
        found = conn.execute(_due(at_s, after_s)).first()
        if found is None:
            return False
        candidate = _Candidate(*tuple(found)[:-1])
        data: bytes = found.trace
        _claim(conn, candidate, data, at_s)
    bucket.put(_name(candidate), data)
    with store.write() as conn:
        is_same = [windows.c[name] == getattr(candidate, name) for name in (*_KEY, "revision")]
        gone = conn.execute(update(windows).where(*is_same).values(trace=None))
        if gone.rowcount:
            conn.execute(
                update(window_objects).where(*_same_object(candidate)).values(is_stored=True)
            )
    return True


def delete_some(store: Store, bucket: Bucket) -> int:
    """Delete objects that are not needed any more, and their rows; how many.

    Raises: as `move_one`.
    """
    with store.read() as conn:
        unneeded = select(window_objects).where(_is_unneeded(now_s(conn))).limit(_MAX_DELETED)
        rows = conn.execute(unneeded).all()
    if rows:
        bucket.delete([_name(row) for row in rows])
        with store.write() as conn:
            for row in rows:
                conn.execute(delete(window_objects).where(*_same_object(row)))
    return len(rows)


def _due(at_s: float, after_s: float) -> Select[Any]:
    """The window that is longest due, but for those that others move or that may be revised."""
    of, its = windows.c, window_objects.c
    claimed = select(its.job_id).where(
        *(its[name] == of[name] for name in (*_KEY, "revision")), its.claimed_s > at_s - _CLAIM_S
    )
    may_change = select(window_remainders.c.job_id).where(
        *(window_remainders.c[name] == of[name] for name in _KEY)
    )
    query = select(*(of[name] for name in (*_KEY, "revision", "updated_s")), of.trace)
    query = query.where(of.trace.is_not(None), of.state != "open", of.updated_s < at_s - after_s)
    query = query.where(~claimed.exists(), ~may_change.exists())
    return query.order_by(of.updated_s).limit(1)


def _claim(conn: Connection, candidate: _Candidate, data: bytes, at_s: float) -> None:
    row = candidate._asdict() | {
        "size_bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "is_stored": False,
        "claimed_s": at_s,
        "is_removed": False,
    }
    statement = insert(conn, window_objects).values(row)
    key = [window_objects.c[name] for name in (*_KEY, "revision")]
    new = {name: statement.excluded[name] for name in row if name not in (*_KEY, "revision")}
    conn.execute(statement.on_conflict_do_update(index_elements=key, set_=new))


def _is_unneeded(at_s: float) -> ColumnElement[bool]:
    its = window_objects.c
    same = (windows.c[name] == its[name] for name in (*_KEY, "revision"))
    has_window = select(windows.c.job_id).where(*same).exists()
    return or_(its.is_removed, and_(~has_window, its.claimed_s < at_s - _CLAIM_S))


def _same_object(row: Row[Any] | _Candidate) -> list[ColumnElement[bool]]:
    return [window_objects.c[name] == getattr(row, name) for name in (*_KEY, "revision")]


def _name(row: Row[Any] | _Candidate) -> str:
    """The object's name; never from a column, which a restored backup might have from anybody."""
    return f"{row.job_id}/{row.epoch}-{row.first_step}-{row.revision}.pw"
