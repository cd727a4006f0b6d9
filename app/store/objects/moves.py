"""Operations of closed windows that move from the database into a bucket, and are read from there.

A consumer commits them to the database, so that none waits for the bucket. Later they move, in a
thread of its own, one window at a time: first a row says that there may be an object, then the
object is stored, then the window's own copy goes. Whatever fails on the way, the operations are in
one of both places, and no object is without a row. A row whose window is gone, revised or past
retention is deleted after its object.

An object keeps its name, and its row says which window has its operations: the one that it was
moved from, until that becomes part of an hour or a day (app/store/shrinking/thinning.py).
"""

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from sqlalchemy import ColumnElement, Row, Select, and_, delete, or_, select, update

from app.errors import Conflict, Unavailable
from app.store import windows as stored_windows
from app.store.database import Connection, Store, insert_or_replace, now_s, of_run, same_run
from app.store.objects.bucket import Bucket
from app.store.tables import window_objects, window_remainders, windows

log = structlog.get_logger()

# Longer than a move can take; then another process may try.
_CLAIM_S = 600.0
_MAX_DELETED = 500  # at once: a request takes 1000
_KEY = ("job_id", "epoch", "first_step")
_REVISION = (*_KEY, "revision")


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
    packed = stored_windows.trace(conn, job_id, window_id)
    if packed is not None:
        return packed
    summary = stored_windows.summary(conn, job_id, window_id)
    stored = window_objects.c
    # Of a joined window they are those of one of its parts: all begin inside it.
    inside = stored.first_step.between(summary.first_step, summary.last_step)
    query = select(window_objects).filter_by(
        job_id=job_id,
        epoch=summary.epoch,
        window_first_step=summary.first_step,
        window_revision=summary.revision,
    )
    row = conn.execute(query.where(inside, stored.is_stored, ~stored.is_removed)).first()
    if row is None:
        return None
    return MovedOperations(summary.window_id, _name(row), row.sha256)


def fetch(bucket: Bucket | None, operations: bytes | MovedOperations | None) -> bytes | None:
    """The operations that `find` returns, from the bucket if they are there.

    Raises:
        ObjectStorageUnavailable: the bucket does not answer.
        Conflict: this process knows no bucket, or the bucket has other bytes.
    """
    if not isinstance(operations, MovedOperations):
        return operations
    where = f"the operations of window {operations.window_id} are in object storage"
    if bucket is None:
        raise Conflict(
            f"{where}, and this process knows none: set PACELINE_S3_BUCKET for it as for the others"
        )
    data = bucket.get(operations.name)
    if data is None:
        raise Conflict(f"{where}, and object {operations.name} is not there any more")
    if hashlib.sha256(data).hexdigest() != operations.sha256:
        raise Conflict(f"{where}, and object {operations.name} has been changed there")
    return data


def move_one(store: Store, bucket: Bucket, *, after_s: float) -> bool:
    """Move the operations of one window that closed `after_s` seconds ago; False if none is due.

    Raises:
        ObjectStorageUnavailable: the bucket does not take them; they stay in the database.
        StoreUnavailable: the database does not answer.
    """
    with store.write() as conn:
        at_s = now_s(conn)
        window = conn.execute(_due(at_s, after_s)).first()
        if window is None:
            return False
        _claim(conn, window, at_s)
    bucket.put(_name(window), window.trace)
    revision = {name: getattr(window, name) for name in _REVISION}
    with store.write() as conn:
        if conn.execute(update(windows).filter_by(**revision).values(trace=None)).rowcount:
            conn.execute(update(window_objects).filter_by(**revision).values(is_stored=True))
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
                revision = {name: getattr(row, name) for name in _REVISION}
                conn.execute(delete(window_objects).filter_by(**revision))
    return len(rows)


def in_bucket(conn: Connection, job_id: str, epoch: int, first_steps: Sequence[int]) -> set[int]:
    """Those of a run's windows, by their first steps, whose operations are in a bucket."""
    query = select(window_objects.c.window_first_step)
    return set(conn.execute(query.where(*_of_windows(job_id, epoch, first_steps))).scalars())


def join(
    conn: Connection, job_id: str, epoch: int, first_steps: Sequence[int], *,
    kept: int | None, revision: int, updated_s: float,
) -> None:  # fmt: skip
    """Let windows of a run become one, which begins as the first of them does.

    The object of the window `kept` is that of the new one from then on; the others' are deleted
    later. To be called in the transaction that joins the windows, while their rows are as before.

    Args:
        first_steps: those of the windows, ascending.
        kept: which of these windows, all in a bucket, it has the operations of; None: of none.
        revision: that of the new window, which none of them ever had.
        updated_s: that of the new window, Unix time.
    """
    joined = update(window_objects).where(*_of_windows(job_id, epoch, first_steps))
    is_kept = window_objects.c.window_first_step == kept
    others = joined if kept is None else joined.where(~is_kept)
    conn.execute(others.values(is_removed=True))
    if kept is not None:
        window = {"window_first_step": first_steps[0], "window_revision": revision}
        conn.execute(joined.where(is_kept).values(**window, updated_s=updated_s))


def _of_windows(job_id: str, epoch: int, first_steps: Sequence[int]) -> list[ColumnElement[bool]]:
    """Objects with the operations of these windows, as they are now."""
    stored = window_objects.c
    # An object whose move has not ended is none yet: the operations are in the database.
    is_there = (stored.is_stored, ~stored.is_removed, _has_window())
    run = of_run(window_objects, job_id, epoch)
    return [*run, stored.window_first_step.in_(first_steps), *is_there]


def _has_window() -> ColumnElement[bool]:
    window, stored = windows.c, window_objects.c
    same_step = window.first_step == stored.window_first_step
    same = (same_run(windows, window_objects), same_step, window.revision == stored.window_revision)
    return select(window.job_id).where(*same).correlate(window_objects).exists()


def _due(at_s: float, after_s: float) -> Select[Any]:
    """The window that is longest due, but for those that others move or that may be revised."""
    window, stored = windows.c, window_objects.c
    same = (stored[name] == window[name] for name in _REVISION)
    claimed = select(stored.job_id).where(*same, stored.claimed_s > at_s - _CLAIM_S)
    key = (window_remainders.c[name] == window[name] for name in _KEY)
    may_change = select(window_remainders.c.job_id).where(*key)
    query = select(*(window[name] for name in (*_REVISION, "updated_s")), window.trace)
    query = query.where(window.trace.is_not(None), window.state != "open")
    query = query.where(window.updated_s < at_s - after_s)
    query = query.where(~claimed.exists(), ~may_change.exists())
    return query.order_by(window.updated_s).limit(1)


def _claim(conn: Connection, window: Row[Any], at_s: float) -> None:
    moved = {
        "window_first_step": window.first_step,
        "window_revision": window.revision,
        "size_bytes": len(window.trace),
        "sha256": hashlib.sha256(window.trace).hexdigest(),
        "is_stored": False,
        "claimed_s": at_s,
        "is_removed": False,
    }
    same = {name: getattr(window, name) for name in (*_REVISION, "updated_s")}
    insert_or_replace(conn, window_objects, [same | moved])


def _is_unneeded(at_s: float) -> ColumnElement[bool]:
    stored = window_objects.c
    # While it may still be on its way to the bucket, its row must not go before it.
    has_lapsed = stored.claimed_s < at_s - _CLAIM_S
    is_removed = and_(stored.is_removed, or_(stored.is_stored, has_lapsed))
    return or_(is_removed, and_(~_has_window(), has_lapsed))


def _name(row: Row[Any]) -> str:
    """The object's name; never from a column, which a restored backup might have from anybody."""
    return f"{row.job_id}/{row.epoch}-{row.first_step}-{row.revision}.pw"


_CHECK_EVERY_S = 30.0
_FIRST_PAUSE_S = 5.0
_LONGEST_PAUSE_S = 300.0


class Mover:
    """Moves due operations and deletes unneeded objects, one window at a time."""

    def __init__(self, store: Store, bucket: Bucket, *, after_s: float) -> None:
        self._store = store
        self._bucket = bucket
        self._after_s = after_s
        self.num_failures = 0  # in a row

    def run(self, stop: threading.Event) -> None:
        """Move until `stop` is set."""
        pause_s = _FIRST_PAUSE_S
        while not stop.wait(pause_s):
            pause_s = self.turn(stop)

    def turn(self, stop: threading.Event) -> float:
        """Move all that is due now; seconds until the next turn."""
        moved = deleted = 0
        try:
            while not stop.is_set() and move_one(self._store, self._bucket, after_s=self._after_s):
                moved += 1
            while not stop.is_set() and (more := delete_some(self._store, self._bucket)):
                deleted += more
        except Unavailable as error:
            return self._failed(str(error))
        except Exception:
            # An error must end neither the consumer nor this thread.
            log.exception("moving operations failed")
            return self._failed("")
        if self.num_failures:
            log.info("object storage answers again")
        self.num_failures = 0
        if moved or deleted:
            log.info("operations moved to object storage", windows=moved, deleted=deleted)
        return _CHECK_EVERY_S

    def _failed(self, reason: str) -> float:
        if not self.num_failures and reason:
            log.warning("operations stay in the database", reason=reason)
        self.num_failures += 1
        pause_s: float = _FIRST_PAUSE_S * 2 ** min(self.num_failures - 1, 10)
        return min(pause_s, _LONGEST_PAUSE_S)
