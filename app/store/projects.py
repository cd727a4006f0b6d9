"""Projects, and which jobs belong to one."""

from sqlalchemy import ColumnElement, Connection, func, select

from app.errors import InvalidRequest
from app.store.database import insert_new
from app.store.tables import jobs, projects
from app.trace.job import CANARY_PROJECT, MAX_PROJECT_CHARS, is_project_name

CANARY_KEPT_DAYS = 1 / 24


def create_if_missing(conn: Connection, project: str, *, now_s: float) -> None:
    """Create the project unless it exists; raises InvalidRequest if the name is invalid."""
    if not is_project_name(project):
        raise InvalidRequest(
            f"project {project!r}: want at most {MAX_PROJECT_CHARS} lower-case letters, digits and "
            "hyphens, the first no hyphen"
        )
    insert_new(conn, projects, [{"project": project, "created_s": now_s}])


def names(conn: Connection) -> list[str]:
    """All projects of users, in the order of their names."""
    query = select(projects.c.project).where(projects.c.project != CANARY_PROJECT)
    return list(conn.execute(query.order_by(projects.c.project)).scalars())


def create_canary(conn: Connection, *, now_s: float) -> None:
    """Create the project of the canary jobs; its rows are kept for `CANARY_KEPT_DAYS`."""
    days = {"keep_raw_days": CANARY_KEPT_DAYS, "keep_results_days": CANARY_KEPT_DAYS}
    insert_new(conn, projects, [{"project": CANARY_PROJECT, "created_s": now_s, **days}])


def owns(project: str, job_id: ColumnElement[str]) -> ColumnElement[bool]:
    """Whether a job's key is one of this project's, as a condition that an index answers."""
    after = chr(ord("/") + 1)
    return (job_id > f"{project}/") & (job_id < f"{project}{after}")


def is_kept(job_id: ColumnElement[str]) -> ColumnElement[bool]:
    """Whether a job's key is not one of a deleted job, as a condition."""
    return job_id.not_in(select(jobs.c.job_id).where(jobs.c.deleted_s.is_not(None)))


def job_id_contains(project: str, job_id: ColumnElement[str], text: str) -> ColumnElement[bool]:
    """Whether a job of this project has the text in its id, ignoring case."""
    own_name = func.lower(func.substr(job_id, len(project) + 2))
    return own_name.contains(text.lower(), autoescape=True)
