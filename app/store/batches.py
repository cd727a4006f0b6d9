"""Batches that were taken from the queue and whose window is still open.

After a crash the open windows are built from these again. A cursor says which batches of a run
have been seen, so that one that comes twice counts once.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import Connection, bindparam, delete, select

from app.store.tables import batches, cursors
from app.store.upsert import add_new, replace

BatchKey = tuple[str, int, int, int]  # job_id, epoch, rank, batch_seq


@dataclass(frozen=True, slots=True)
class BatchRow:
    """One batch as the queue held it."""

    job_id: str
    epoch: int
    rank: int
    batch_seq: int
    body: bytes


def add(conn: Connection, rows: Sequence[BatchRow]) -> None:
    """Keep these batches; one that is kept already stays as it is."""
    add_new(conn, batches, [asdict(row) for row in rows])


def load(conn: Connection, job_id: str, epoch: int) -> list[bytes]:
    """The bodies kept for a run, by rank and then in the order in which the rank sent them."""
    query = select(batches.c.body).where(batches.c.job_id == job_id, batches.c.epoch == epoch)
    return [row.body for row in conn.execute(query.order_by(batches.c.rank, batches.c.batch_seq))]


def jobs(conn: Connection) -> list[tuple[str, int]]:
    """Job id and epoch of every run that has batches kept."""
    query = select(batches.c.job_id, batches.c.epoch).distinct()
    rows = conn.execute(query.order_by(batches.c.job_id, batches.c.epoch))
    return [(row.job_id, row.epoch) for row in rows]


def remove(conn: Connection, keys: Iterable[BatchKey]) -> None:
    """Let go of batches whose windows are closed."""
    names = ("job_id", "epoch", "rank", "batch_seq")
    rows = [{f"of_{name}": part for name, part in zip(names, key, strict=True)} for key in keys]
    if rows:
        same = (batches.c[name] == bindparam(f"of_{name}") for name in names)
        conn.execute(delete(batches).where(*same), rows)


def save_cursor(conn: Connection, job_id: str, epoch: int, blob: bytes) -> None:
    """Remember which batches of a run have been seen."""
    replace(conn, cursors, [{"job_id": job_id, "epoch": epoch, "blob": blob}])


def load_cursors(conn: Connection, job_id: str) -> dict[int, bytes]:
    """What `save_cursor` kept last, for every epoch of the job."""
    query = select(cursors.c.epoch, cursors.c.blob).where(cursors.c.job_id == job_id)
    return {row.epoch: row.blob for row in conn.execute(query)}
