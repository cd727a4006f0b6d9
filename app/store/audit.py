"""The audit log: actor, action, object and time; written in the transaction of the action."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import Connection, select

from app.store.columns import clipped, clipped_values
from app.store.database import Int64, ListOrder, equal
from app.store.tables import audit

PACELINE = "paceline"  # the actor of what Paceline does itself
MAX_NAME = 256
_MAX_TEXT = 1000  # of each text in a detail


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One action of a person or of Paceline."""

    audit_id: int
    at_s: float
    actor: str
    action: str  # "silence.create"
    object_kind: str
    object_id: str
    detail: Mapping[str, Any]


_COLUMNS = tuple(audit.c[field.name] for field in fields(AuditEntry))
_ORDER = ListOrder((audit.c.audit_id,), tuple[Int64])


def add(
    conn: Connection,
    *,
    project: str,
    at_s: float,
    actor: str = PACELINE,
    action: str,
    object_kind: str,
    object_id: str,
    detail: Mapping[str, Any],
) -> None:
    """Save an entry; it must hold no secrets. Long texts are clipped."""
    named = {"actor": actor, "action": action, "object_kind": object_kind, "object_id": object_id}
    texts = {name: clipped(text, MAX_NAME) for name, text in named.items()}
    kept = clipped_values(dict(detail), _MAX_TEXT)
    conn.execute(audit.insert().values(project=project, at_s=at_s, detail=kept, **texts))


def page(
    conn: Connection,
    project: str,
    *,
    object_kind: str | None = None,
    actor: str | None = None,
    cursor: str | None = None,
    limit: int = 100,
) -> tuple[list[AuditEntry], str | None]:
    """A project's entries, newest first, and the next page's cursor.

    Filtered by kind of object and by actor, if given.
    """
    wanted = equal(audit, project=project, object_kind=object_kind, actor=actor)
    query = select(*_COLUMNS).where(*wanted)
    rows, more = _ORDER.page(conn, query, cursor, limit)
    return [AuditEntry(*row) for row in rows], more


def times(
    conn: Connection, project: str, actions: Collection[str], *, since_s: float
) -> list[float]:
    """When these actions were done in a project after a time, ascending."""
    query = select(audit.c.at_s).where(audit.c.project == project, audit.c.at_s > since_s)
    query = query.where(audit.c.action.in_(sorted(actions))).order_by(audit.c.at_s)
    return list(conn.execute(query).scalars())
