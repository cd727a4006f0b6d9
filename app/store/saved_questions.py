"""Saved what-if questions of jobs."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from sqlalchemy import Connection, delete, func, select

from app.errors import Conflict, QuestionNotFound
from app.result.record import Json
from app.store.database import HexId, ListOrder, new_id, one_row
from app.store.runs import current_epoch
from app.store.tables import saved_questions
from app.trace.job import job_of

# Of a job; each may have thousands of bytes.
MAX_SAVED = 200


@dataclass(frozen=True, slots=True)
class SavedQuestion:
    """A named question; `question` is the body of POST .../what-if."""

    question_id: str
    name: str
    window_id: str
    question: Mapping[str, Json]
    saved_s: float


_TABLE = saved_questions
_COLUMNS = tuple(_TABLE.c[name] for name in SavedQuestion.__slots__)
_ORDER = ListOrder((_TABLE.c.saved_s, _TABLE.c.question_id), tuple[float, HexId])


def save(
    conn: Connection,
    job_id: str,
    *,
    name: str,
    window_id: str,
    question: Mapping[str, Json],
    now_s: float,
) -> SavedQuestion:
    """Save a question under a new id.

    Raises:
        JobNotFound: the job never registered.
        Conflict: the job has MAX_SAVED questions.
    """
    current_epoch(conn, job_id)
    counted = select(func.count()).select_from(_TABLE).where(_TABLE.c.job_id == job_id)
    if conn.execute(counted).scalar_one() >= MAX_SAVED:
        raise Conflict(
            f"job {job_of(job_id)!r} has {MAX_SAVED} saved questions, the maximum: delete one first"
        )
    saved = SavedQuestion(new_id(), name, window_id, question, now_s)
    conn.execute(_TABLE.insert().values(job_id=job_id, **asdict(saved)))
    return saved


def find(conn: Connection, job_id: str, question_id: str) -> SavedQuestion:
    """One of a job's questions; raises JobNotFound or QuestionNotFound."""
    current_epoch(conn, job_id)
    query = select(*_COLUMNS).filter_by(job_id=job_id, question_id=question_id)
    return SavedQuestion(*one_row(conn, query, QuestionNotFound(job_id, question_id)))


def page(
    conn: Connection, job_id: str, *, cursor: str | None = None, limit: int = 100
) -> tuple[list[SavedQuestion], str | None]:
    """A job's questions, the newest first, and the cursor of the next page; raises JobNotFound."""
    query = select(*_COLUMNS).where(_TABLE.c.job_id == job_id)
    rows, more = _ORDER.page(conn, query, cursor, limit)
    if not rows:
        current_epoch(conn, job_id)
    return [SavedQuestion(*row) for row in rows], more


def remove(conn: Connection, job_id: str, question_id: str) -> None:
    """Delete a question; raises as `find` does."""
    removed = delete(_TABLE).filter_by(job_id=job_id, question_id=question_id)
    if not conn.execute(removed).rowcount:
        find(conn, job_id, question_id)
