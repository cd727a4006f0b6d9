"""The step series: one row for every training step, analysed or skipped."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import Connection, select

from app.errors import JobNotFound
from app.store.tables import jobs, steps
from app.store.upsert import replace


@dataclass(frozen=True, slots=True)
class StepRow:
    """How long one step took, and could have taken; a skipped one has a reason and no figures."""

    epoch: int
    step: int
    recorded_s: float | None
    simulated_s: float | None
    ideal_s: float | None
    slowdown: float | None
    window_id: str
    skipped_reason: str | None = None


_COLUMNS = tuple(steps.c[name] for name in StepRow.__slots__)


def save(conn: Connection, job_id: str, rows: Sequence[StepRow]) -> None:
    """Save steps, over what was known of the same ones."""
    replace(conn, steps, [{"job_id": job_id, **asdict(row)} for row in rows])


def series(
    conn: Connection,
    job_id: str,
    *,
    epoch: int | None = None,
    first: int | None = None,
    last: int | None = None,
    limit: int = 1000,
) -> list[StepRow]:
    """The last `limit` steps between `first` and `last` of one run (the current), ascending.

    Raises:
        JobNotFound: the job never registered.
    """
    current = conn.execute(select(jobs.c.epoch).where(jobs.c.job_id == job_id)).scalar_one_or_none()
    if current is None:
        raise JobNotFound(job_id)
    query = select(*_COLUMNS).where(steps.c.job_id == job_id)
    query = query.where(steps.c.epoch == (current if epoch is None else epoch))
    if first is not None:
        query = query.where(steps.c.step >= first)
    if last is not None:
        query = query.where(steps.c.step <= last)
    rows = conn.execute(query.order_by(steps.c.step.desc()).limit(limit)).all()
    return [StepRow(*row) for row in reversed(rows)]
