"""Audit: who acknowledged, silenced or changed what, and when.

`write_audit` adds an entry in the transaction of the change; `changed_fields` gives each field
before and after.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Query
from pydantic import Field
from pydantic.config import JsonDict, JsonValue

from app.api.http.fields import PRINTABLE, Cursor, Limit, ResponseModel, UnixTime
from app.api.http.principal import Principal
from app.api.routes.dependencies import ApiRouter, CallerDep, PageOut, ServiceDep
from app.store import audit, projects
from app.store.database import Connection

# Stands for a changed secret.
CHANGED_VALUE = "changed"


def changed_fields(before: Mapping[str, JsonValue], after: Mapping[str, JsonValue]) -> JsonDict:
    """{"old": ..., "new": ...} of each changed field, by its name."""
    return {
        name: {"old": before.get(name), "new": value}
        for name, value in after.items()
        if before.get(name) != value
    }


def write_audit(
    conn: Connection, caller: Principal, action: str, object_id: str, *, now_s: float, **detail: Any
) -> None:
    """Add an audit entry; `action` is object and verb, such as "silence.create"."""
    # Retention is per project, and the root token's project may not exist yet.
    projects.create_if_missing(conn, caller.project, now_s=now_s)
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


router = ApiRouter("audit")


class AuditOut(ResponseModel):
    """One audit entry; immutable."""

    audit_id: int
    at: UnixTime = Field(validation_alias="at_s")
    actor: str
    action: str
    object_kind: str
    object_id: str
    detail: dict[str, Any]


class AuditsOut(PageOut[AuditOut]):
    """A page of audit entries, newest first."""


@router.get("/audit", summary="List audit entries")
def list_audit(
    service: ServiceDep,
    caller: CallerDep,
    object_kind: Annotated[
        str | None,
        Query(
            pattern="^[a-z]{1,32}$",
            description="Only entries about objects of this kind.",
            examples=["rules"],
        ),
    ] = None,
    actor: Annotated[
        str | None,
        Query(max_length=300, pattern=PRINTABLE, description="Only entries of this actor."),
    ] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> AuditsOut:
    """Needs the scope admin. Entries are kept as long as results; they contain no secrets."""
    with service.store.read() as conn:
        page = audit.page(
            conn, caller.project, object_kind=object_kind, actor=actor, cursor=cursor, limit=limit
        )
    return AuditsOut.of_page(page)
