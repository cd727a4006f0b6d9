"""Who did what, written down in the transaction in which it is done."""

from typing import Any

from app.api.principal import Principal
from app.store import audit, projects
from app.store.engine import Connection


def note(
    conn: Connection,
    caller: Principal,
    action: str,
    object_id: str,
    *,
    now_s: float,
    **detail: Any,
) -> None:
    """The caller did this; `action` is what it was done to and the deed, as "silence.create"."""
    # What is kept for how long goes by projects: the root token's may not be there yet.
    projects.make(conn, caller.project, now_s=now_s)
    audit.add(
        conn,
        project=caller.project,
        at_s=now_s,
        actor=caller.actor,
        action=action,
        object_kind=action.partition(".")[0],
        object_id=object_id,
        detail=detail,
    )
