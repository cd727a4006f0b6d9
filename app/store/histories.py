"""What is remembered of each run's earlier windows, to see later that something has changed."""

from sqlalchemy import Connection, select

from app.store.tables import histories
from app.store.upsert import replace


def save(conn: Connection, job_id: str, epoch: int, *, through_step: int, blob: bytes) -> None:
    """Save a run's history over what was remembered before; `through_step` is the last in it."""
    row = {"job_id": job_id, "epoch": epoch, "through_step": through_step, "blob": blob}
    replace(conn, histories, [row])


def load(conn: Connection, job_id: str, epoch: int) -> bytes | None:
    """What `save` kept last; None before the first time."""
    same = (histories.c.job_id == job_id, histories.c.epoch == epoch)
    blob: bytes | None = conn.execute(select(histories.c.blob).where(*same)).scalar_one_or_none()
    return blob
