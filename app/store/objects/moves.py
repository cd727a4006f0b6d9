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
from sqlalchemy import ColumnElement, Row, Select, Table, and_, delete, or_, select, update

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
    # Of a joined window they are those of one of its parts: all begin inside it.
    inside = of.first_step.between(summary.first_step, summary.last_step)
    query = select(window_objects).where(*of_run(window_objects, job_id, summary.epoch), inside)
    query = query.where(
        of.window_first_step == summary.first_step, of.window_revision == summary.revision
    )
    row = conn.execute(query.where(of.is_stored, ~of.is_removed)).first()
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
        _claim(conn, found, at_s)
    bucket.put(_name(found), found.trace)
    with store.write() as conn:
        is_same = _is_same(windows, found)
        if conn.execute(update(windows).where(*is_same).values(trace=None)).rowcount:
            moved = update(window_objects).where(*_is_same(window_objects, found))
            conn.execute(moved.values(is_stored=True))
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
                conn.execute(delete(window_objects).where(*_is_same(window_objects, row)))
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
    of = window_objects.c
    these = _of_windows(job_id, epoch, first_steps)
    others = these if kept is None else [*these, of.window_first_step != kept]
    conn.execute(update(window_objects).where(*others).values(is_removed=True))
    if kept is not None:
        whose = {"window_first_step": first_steps[0], "window_revision": revision}
        its_own = update(window_objects).where(*these, of.window_first_step == kept)
        conn.execute(its_own.values(**whose, updated_s=updated_s))


def _of_windows(job_id: str, epoch: int, first_steps: Sequence[int]) -> list[ColumnElement[bool]]:
    """Objects with the operations of these windows, as they are now."""
    of = window_objects.c
    # An object whose move has not ended is none yet: the operations are in the database.
    is_there = (of.is_stored, ~of.is_removed, _has_window())
    mine = of_run(window_objects, job_id, epoch)
    return [*mine, of.window_first_step.in_(first_steps), *is_there]


def _has_window() -> ColumnElement[bool]:
    of, its = windows.c, window_objects.c
    same = (of.first_step == its.window_first_step, of.revision == its.window_revision)
    query = select(of.job_id).where(same_run(windows, window_objects), *same)
    return query.correlate(window_objects).exists()


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


def _claim(conn: Connection, window: Row[Any], at_s: float) -> None:
    its_own = {
        "window_first_step": window.first_step,
        "window_revision": window.revision,
        "size_bytes": len(window.trace),
        "sha256": hashlib.sha256(window.trace).hexdigest(),
        "is_stored": False,
        "claimed_s": at_s,
        "is_removed": False,
    }
    same = {name: getattr(window, name) for name in (*_KEY, "revision", "updated_s")}
    insert_or_replace(conn, window_objects, [same | its_own])


def _is_unneeded(at_s: float) -> ColumnElement[bool]:
    its = window_objects.c
    # While it may still be on its way to the bucket, its row must not go before it.
    has_arrived = or_(its.is_stored, its.claimed_s < at_s - _CLAIM_S)
    is_without_window = and_(~_has_window(), its.claimed_s < at_s - _CLAIM_S)
    return or_(and_(its.is_removed, has_arrived), is_without_window)


def _is_same(table: Table, row: Row[Any]) -> list[ColumnElement[bool]]:
    return [table.c[name] == getattr(row, name) for name in (*_KEY, "revision")]


def _name(row: Row[Any]) -> str:
    """The object's name; never from a column, which a restored backup might have from anybody."""
    return f"{row.job_id}/{row.epoch}-{row.first_step}-{row.revision}.pw"


_CHECK_EVERY_S = 30.0
_FIRST_PAUSE_S = 5.0
_LONGEST_PAUSE_S = 300.0


class Mover:
    """Moves what is due and deletes what is not needed; of several, each a window at a time."""

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
