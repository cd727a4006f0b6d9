"""What was done on the command line, written down where deeds on the API are."""

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from app.store.engine import Connection

ACTOR = "command line"


def note(conn: "Connection", project: str, action: str, object_id: str, **detail: Any) -> None:
    """Whoever has the store at hand did this; `action` as "token.create"."""
    from app.store import audit

    audit.add(
        conn,
        project=project,
        at_s=time.time(),
        actor=ACTOR,
        action=action,
        object_kind=action.partition(".")[0],
        object_id=object_id,
        detail=detail,
    )
