"""Saved views of the fleet page: a name for a choice of filters, search and order."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from sqlalchemy import Connection, delete, func, select

from app.errors import Conflict, ViewNotFound
from app.store.database import new_id, one_row
from app.store.tables import saved_views

MAX_VIEWS = 100  # of a project


@dataclass(frozen=True, slots=True)
class SavedView:
    """A named view; `query` are the parameters of the fleet's address that differ from none."""

    view_id: str
    name: str
    query: Mapping[str, str]
    author: str
    saved_s: float


_COLUMNS = tuple(saved_views.c[name] for name in SavedView.__slots__)


def save(
    conn: Connection,
    project: str,
    *,
    name: str,
    query: Mapping[str, str],
    author: str,
    now_s: float,
) -> SavedView:
    """Save a view under a new id.

    Raises:
        Conflict: the project has a view of this name, or `MAX_VIEWS` of them.
    """
    saved = list_all(conn, project)
    if any(view.name == name for view in saved):
        raise Conflict(f"a view {name!r} is saved already: use another name, or delete it first")
    if len(saved) >= MAX_VIEWS:
        raise Conflict(f"{MAX_VIEWS} views are saved, the maximum: delete one first")
    view = SavedView(new_id(), name, dict(query), author, now_s)
    conn.execute(saved_views.insert().values(project=project, **asdict(view)))
    return view


def list_all(conn: Connection, project: str) -> list[SavedView]:
    """A project's views by name."""
    query = select(*_COLUMNS).where(saved_views.c.project == project)
    query = query.order_by(func.lower(saved_views.c.name), saved_views.c.name)
    return [SavedView(*row) for row in conn.execute(query)]


def remove(conn: Connection, project: str, view_id: str) -> SavedView:
    """Delete a view and return it; raises ViewNotFound."""
    removed = delete(saved_views).filter_by(project=project, view_id=view_id)
    return SavedView(*one_row(conn, removed.returning(*_COLUMNS), ViewNotFound(view_id)))
