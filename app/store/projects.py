"""Projects: whose jobs, alerts and tokens are whose."""

from sqlalchemy import ColumnElement, Connection, func, select

from app.errors import InvalidRequest
from app.store.tables import projects
from app.store.upsert import add_new
from app.trace.names import LONGEST_PROJECT, is_project


def make(conn: Connection, project: str, *, now_s: float) -> None:
    """The project is there from now on, if it was not before.

    Raises:
        InvalidRequest: no project may be called this.
    """
    if not is_project(project):
        raise InvalidRequest(
            f"project {project!r}: want at most {LONGEST_PROJECT} lower-case letters, digits and "
            "hyphens, the first no hyphen"
        )
    add_new(conn, projects, [{"project": project, "created_s": now_s}])


def names(conn: Connection) -> list[str]:
    """All projects, in the order of their names."""
    return list(conn.execute(select(projects.c.project).order_by(projects.c.project)).scalars())


def owns(project: str, job_id: ColumnElement[str]) -> ColumnElement[bool]:
    """Whether a job's key is one of this project's, as a condition that an index answers."""
    after = chr(ord("/") + 1)
    return (job_id > f"{project}/") & (job_id < f"{project}{after}")


def named(project: str, job_id: ColumnElement[str], text: str) -> ColumnElement[bool]:
    """Whether a job of this project has the text in its id, in capitals or not."""
    own_name = func.lower(func.substr(job_id, len(project) + 2))
    return own_name.contains(text.lower(), autoescape=True)
