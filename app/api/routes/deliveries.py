"""Deliveries: whether a receiver was told, and what went wrong."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import Field

from app.alerts.notice import NoticeKind
from app.api.alert_out import FINGERPRINT_PATTERN
from app.api.audited import note
from app.api.deps import OF_BODIES, CallerDep, ServiceDep, refusals
from app.api.endpoint_out import ENDPOINT_PATTERN, is_hidden
from app.api.fields import Answer, Cursor, Limit, timestamp, timestamp_or_none
from app.api.principal import Principal
from app.api.sending_limit import check_by_hand
from app.store import attempts, deliveries, outbox
from app.store.attempts import Attempt
from app.store.deliveries import DeliveryRecord, DeliveryState
from app.trace.names import plain

router = APIRouter(tags=["alerts"])

DeliveryId = Annotated[
    str,
    Path(
        pattern="^[0-9A-Za-z_-]{1,64}$",
        description="The receiver's webhook-id.",
        examples=["msg_0f5b9a6d2c1e4c3f8a7b6d5e4f3a2b1c"],
    ),
]


class DeliveryOut(Answer):
    """One message to one endpoint."""

    delivery_id: str = Field(description="The receiver's webhook-id.")
    endpoint_id: str
    endpoint_name: str | None = Field(description="Null of an endpoint that is no more.")
    job_id: str | None = Field(description="Null of a test, and of news of an endpoint.")
    rule: str | None
    kind: NoticeKind
    state: DeliveryState
    attempt: int = Field(description="How many have begun.")
    next_at: datetime | None = Field(description="The next attempt; null unless it is due.")
    detail: str | None = Field(
        description="What the last attempt that failed met; of the operator's endpoint told to "
        "nobody else."
    )
    created_at: datetime
    done_at: datetime | None


class AttemptOut(Answer):
    """One attempt to deliver a message."""

    attempt: int = Field(description="From 1; from 1 again after a replay.")
    at: datetime
    took_s: float
    status: int | None = Field(
        description="Of HTTP or SMTP; null where nothing was answered, and of the operator's "
        "endpoint to anybody else."
    )
    detail: str | None = Field(description="Of the operator's endpoint told to nobody else.")

    @classmethod
    def of(cls, attempt: Attempt, *, hidden: bool) -> "AttemptOut":
        """The attempt as the API says it."""
        return cls(
            attempt=attempt.attempt,
            at=timestamp(attempt.at_s),
            took_s=attempt.took_s,
            status=None if hidden else attempt.status,
            detail=None if hidden else attempt.detail,
        )


class OneDeliveryOut(DeliveryOut):
    """A message with all attempts to deliver it."""

    attempts: list[AttemptOut]


class DeliveriesOut(Answer):
    """A page of messages, newest first."""

    items: list[DeliveryOut]
    next_cursor: str | None


@router.get(
    "/deliveries",
    operation_id="list_deliveries",
    summary="List messages about alerts",
    responses=refusals(),
)
def list_deliveries(
    service: ServiceDep,
    caller: CallerDep,
    state: Annotated[DeliveryState | None, Query(description="Of this state only.")] = None,
    endpoint: Annotated[
        str | None, Query(pattern=ENDPOINT_PATTERN, description="To this endpoint only.")
    ] = None,
    alert: Annotated[
        str | None,
        Query(
            pattern=FINGERPRINT_PATTERN,
            description="That tell of this alert only.",
            examples=["0123456789abcdef"],
        ),
    ] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> DeliveriesOut:
    """What was sent about the project's jobs, is still to be sent, or could not be."""
    with service.store.read() as conn:
        found, next_cursor = deliveries.page(
            conn,
            caller.project,
            state=state,
            endpoint_id=endpoint,
            fingerprint=alert,
            cursor=cursor,
            limit=limit,
        )
    items = [DeliveryOut.model_validate(_shown(each, caller)) for each in found]
    return DeliveriesOut(items=items, next_cursor=next_cursor)


@router.get(
    "/deliveries/{delivery_id}",
    operation_id="get_delivery",
    summary="See a message with its attempts",
    responses=refusals(404),
)
def get_delivery(delivery_id: DeliveryId, service: ServiceDep, caller: CallerDep) -> OneDeliveryOut:
    """Of what a receiver answered, the status and its first few words."""
    with service.store.read() as conn:
        record = deliveries.get(conn, caller.project, delivery_id)
        tried = attempts.of_delivery(conn, caller.project, delivery_id)
    hidden = is_hidden(record.endpoint_id, caller)
    attempts_out = [AttemptOut.of(each, hidden=hidden) for each in tried]
    return OneDeliveryOut.model_validate(_shown(record, caller) | {"attempts": attempts_out})


@router.post(
    "/deliveries/{delivery_id}/replay",
    operation_id="replay_delivery",
    summary="Send a message again",
    status_code=202,
    responses=refusals(404, 409, *OF_BODIES),
)
def replay_delivery(delivery_id: DeliveryId, service: ServiceDep, caller: CallerDep) -> DeliveryOut:
    """Under the same id, so that a receiver that has it knows: for what failed, or went astray.

    A project may do this ten times in ten minutes, tests included.
    """
    with service.store.write() as conn:
        now_s = service.database_time(conn)
        check_by_hand(conn, caller.project, now_s)
        outbox.replay(conn, caller.project, delivery_id, now_s=now_s)
        note(conn, caller, "delivery.replay", delivery_id, now_s=now_s)
        record = deliveries.get(conn, caller.project, delivery_id)
    return DeliveryOut.model_validate(_shown(record, caller))


def _shown(record: DeliveryRecord, caller: Principal) -> dict[str, object]:
    made = {
        "detail": None if is_hidden(record.endpoint_id, caller) else record.detail,
        "job_id": None if record.job_id is None else plain(record.job_id),
        "next_at": timestamp(record.next_at_s) if record.state == "due" else None,
        "created_at": timestamp(record.created_s),
        "done_at": timestamp_or_none(record.done_s),
    }
    names = [name for name in DeliveryOut.model_fields if name not in made]
    return made | {name: getattr(record, name) for name in names}
