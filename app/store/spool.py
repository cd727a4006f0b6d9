"""Batches that were taken from the queue and whose windows are still open, one row a turn.

After a crash the open windows are built from these again. The run's state says up to which turn
its batches count as seen, so that one that comes twice counts once.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import ColumnElement, Connection, delete, insert, select

from app.store.tables import cursors, spool
from app.store.upsert import replace


@dataclass(frozen=True, slots=True)
class SpoolRow:
    """What one turn took of one run; it can go once the window of `last_step` is closed."""

    job_id: str
    epoch: int
    turn: int
    last_step: int
    blob: bytes


def add(conn: Connection, rows: Sequence[SpoolRow]) -> None:
    """Keep what was taken."""
    if rows:
        conn.execute(insert(spool), [asdict(row) for row in rows])


def load(conn: Connection, job_id: str, epoch: int) -> list[tuple[int, bytes]]:
    """Turn and batches of every row that is kept of a run, in the order of the turns."""
    query = select(spool.c.turn, spool.c.blob).where(*_of_run(job_id, epoch))
    return [(row.turn, row.blob) for row in conn.execute(query.order_by(spool.c.turn))]


def jobs(conn: Connection) -> list[tuple[str, int]]:
    """Job id and epoch of every run that has batches kept."""
    query = select(spool.c.job_id, spool.c.epoch).distinct()
    rows = conn.execute(query.order_by(spool.c.job_id, spool.c.epoch))
    return [(row.job_id, row.epoch) for row in rows]


def forget(conn: Connection, job_id: str, epoch: int, *, through_step: int) -> None:
    """Let go of all that has no step after this one, which is in a closed window."""
    old = spool.c.last_step <= through_step
    conn.execute(delete(spool).where(*_of_run(job_id, epoch), old))


def save_state(conn: Connection, job_id: str, epoch: int, blob: bytes) -> None:
    """Remember what the run's assembler knows beside its batches."""
    replace(conn, cursors, [{"job_id": job_id, "epoch": epoch, "blob": blob}])


def load_state(conn: Connection, job_id: str, epoch: int) -> bytes | None:
    """What `save_state` kept last; None before the first time."""
    same = (cursors.c.job_id == job_id, cursors.c.epoch == epoch)
    blob: bytes | None = conn.execute(select(cursors.c.blob).where(*same)).scalar_one_or_none()
    return blob


def _of_run(job_id: str, epoch: int) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return spool.c.job_id == job_id, spool.c.epoch == epoch
