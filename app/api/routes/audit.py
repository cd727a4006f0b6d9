"""The audit: who acknowledged, silenced or changed what, and when."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query

from app.api.deps import CallerDep, ServiceDep, refusals
from app.api.fields import PRINTABLE, Answer, Cursor, Limit, timestamp
from app.store import audit

router = APIRouter(tags=["audit"])


class AuditOut(Answer):
    """One deed; never changed once it is written."""

    audit_id: int
    at: datetime
    actor: str
    action: str
    object_kind: str
    object_id: str
    detail: dict[str, Any]


class AuditsOut(Answer):
    """A page of deeds, newest first."""

    items: list[AuditOut]
    next_cursor: str | None


@router.get(
    "/audit",
    operation_id="list_audit",
    summary="See who did what",
    responses=refusals(),
)
def list_audit(
    service: ServiceDep,
    caller: CallerDep,
    object_kind: Annotated[
        str | None,
        Query(
            pattern="^[a-z]{1,32}$", description="Of things of this kind only.", examples=["rules"]
        ),
    ] = None,
    actor: Annotated[
        str | None, Query(max_length=300, pattern=PRINTABLE, description="Of this actor only.")
    ] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> AuditsOut:
    """Takes the scope admin. Kept for as long as results are; no secret is among it."""
    with service.store.read() as conn:
        found, next_cursor = audit.page(
            conn, caller.project, object_kind=object_kind, actor=actor, cursor=cursor, limit=limit
        )
    names = [name for name in AuditOut.model_fields if name not in ("at", "detail")]
    items = [
        AuditOut(
            at=timestamp(each.at_s),
            detail=dict(each.detail),
            **{name: getattr(each, name) for name in names},
        )
        for each in found
    ]
    return AuditsOut(items=items, next_cursor=next_cursor)
