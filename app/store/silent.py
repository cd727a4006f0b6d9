"""Whose workers have fallen silent, as the consumer of the run last told."""

from collections.abc import Sequence

from sqlalchemy import Connection, select, update

from app.store.tables import runs


def save(
    conn: Connection,
    job_id: str,
    epoch: int,
    *,
    silent_ranks: Sequence[int],
    silent_workers: Sequence[int],
    silent_since_s: float | None,
    stalled_since_s: float | None,
) -> None:
    """Say which ranks are silent while others go on, or since when none sends; Unix times.

    `silent_workers` are these ranks' workers, each as dp_rank * pp_size + stage.
    """
    values = {
        "silent_ranks": list(silent_ranks) or None,
        "silent_workers": list(silent_workers) or None,
        "silent_since_s": silent_since_s,
        "stalled_since_s": stalled_since_s,
    }
    same = (runs.c.job_id == job_id, runs.c.epoch == epoch)
    conn.execute(update(runs).where(*same).values(**values))


def load(
    conn: Connection, job_id: str, epoch: int
) -> tuple[tuple[int, ...], tuple[int, ...], float | None, float | None]:
    """What `save` said last, in the same order."""
    columns = (runs.c.silent_ranks, runs.c.silent_workers)
    query = select(*columns, runs.c.silent_since_s, runs.c.stalled_since_s)
    row = conn.execute(query.where(runs.c.job_id == job_id, runs.c.epoch == epoch)).one()
    ranks, workers, *since = row
    return tuple(ranks or ()), tuple(workers or ()), *since
