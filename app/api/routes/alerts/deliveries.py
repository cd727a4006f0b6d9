"""Deliveries: messages to receivers, their attempts and errors."""

from typing import Annotated

from fastapi import Path, Query
from pydantic import Field

from app.alerts.notice import NoticeKind
from app.alerts.receiver import Format
from app.api.http.fields import Cursor, JobName, Limit, ResponseModel, UnixTime
from app.api.http.limits import check_manual_send
from app.api.http.principal import Principal
from app.api.routes.alerts.alert_schemas import FINGERPRINT_PATTERN
from app.api.routes.alerts.receiver_schemas import RECEIVER_PATTERN, is_address_hidden
from app.api.routes.audit import write_audit
from app.api.routes.dependencies import ApiRouter, CallerDep, PageOut, ServiceDep, refusals
from app.store.alerting import deliveries, outbox
from app.store.alerting.deliveries import DeliveryRecord, DeliveryState
from app.trace.job import JOB_PATTERN

router = ApiRouter("alerts")

DeliveryId = Annotated[
    str,
    Path(
        pattern="^[0-9A-Za-z_-]{1,64}$",
        description="The delivery's id; the receiver gets it as webhook-id.",
        examples=["msg_0f5b9a6d2c1e4c3f8a7b6d5e4f3a2b1c"],
    ),
]


class DeliveryOut(ResponseModel):
    """One message to one receiver."""

    delivery_id: str = Field(description="The delivery's id; the receiver gets it as webhook-id.")
    receiver_id: str = Field(validation_alias="endpoint_id")
    receiver_name: str | None = Field(
        validation_alias="endpoint_name",
        description="Name of the receiver; null if it was deleted.",
    )
    receiver_format: Format | None = Field(
        validation_alias="endpoint_format",
        description="Format of the receiver; null if it was deleted.",
    )
    job_id: JobName | None = Field(
        description="Job of the alert; null for test messages and messages about receivers."
    )
    rule: str | None
    kind: NoticeKind
    state: DeliveryState
    attempt: int = Field(description="Number of attempts begun.")
    next_at: UnixTime | None = Field(
        validation_alias="next_at_s",
        description="Time of the next attempt; null if no attempt is due.",
    )
    detail: str | None = Field(
        description="Error of the last failed attempt, or why the message waits; for the "
        "operator's receiver, only shown to the operator."
    )
    created_at: UnixTime = Field(validation_alias="created_s")
    done_at: UnixTime | None = Field(validation_alias="done_s")
    fingerprints: list[str] = Field(description="Fingerprints of the alerts that are news in it.")

    @classmethod
    def of(cls, record: DeliveryRecord, caller: Principal) -> "DeliveryOut":
        """From the stored message, as the caller may see it."""
        out = cls.model_validate(record)
        if record.state != "due":
            out.next_at = None
        if is_address_hidden(record.endpoint_id, caller):
            out.detail = None
        return out


class AttemptOut(ResponseModel):
    """One attempt to deliver a message."""

    attempt: int = Field(description="Number of the attempt, from 1; restarts at 1 after a replay.")
    at: UnixTime = Field(validation_alias="at_s")
    took_s: float
    status: int | None = Field(
        description="HTTP or SMTP status; null without an answer. For the operator's "
        "receiver, only shown to the operator."
    )
    detail: str | None = Field(
        description="Result or error of the attempt; for the operator's "
        "receiver, only shown to the operator."
    )


class OneDeliveryOut(DeliveryOut):
    """A message with all delivery attempts."""

    attempts: list[AttemptOut]


class DeliveriesOut(PageOut[DeliveryOut]):
    """A page of messages, newest first."""


@router.get("/deliveries", summary="List messages about alerts", responses=refusals(404))
def list_deliveries(
    service: ServiceDep,
    caller: CallerDep,
    state: Annotated[
        DeliveryState | None, Query(description="Only messages in this state.")
    ] = None,
    receiver: Annotated[
        str | None, Query(pattern=RECEIVER_PATTERN, description="Only messages to this receiver.")
    ] = None,
    alert: Annotated[
        str | None,
        Query(
            pattern=FINGERPRINT_PATTERN,
            description="Only messages about this alert.",
            examples=["0123456789abcdef"],
        ),
    ] = None,
    job: Annotated[
        str | None,
        Query(pattern=JOB_PATTERN, description="Only messages about alerts of this job."),
    ] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> DeliveriesOut:
    """Messages of the project in all states, newest first."""
    with service.store.read() as conn:
        records, next_cursor = deliveries.page(
            conn,
            caller.project,
            state=state,
            endpoint_id=receiver,
            fingerprint=alert,
            job_id=None if job is None else caller.key(job),
            cursor=cursor,
            limit=limit,
        )
    items = [DeliveryOut.of(record, caller) for record in records]
    return DeliveriesOut(items=items, next_cursor=next_cursor)


@router.get("/deliveries/{delivery_id}", summary="Get a message with its delivery attempts")
def get_delivery(delivery_id: DeliveryId, service: ServiceDep, caller: CallerDep) -> OneDeliveryOut:
    """Each attempt has the status and the beginning of the receiver's answer."""
    with service.store.read() as conn:
        record = deliveries.get(conn, caller.project, delivery_id)
        records = deliveries.attempts_of(conn, caller.project, delivery_id)
    attempts = [AttemptOut.model_validate(attempt) for attempt in records]
    if is_address_hidden(record.endpoint_id, caller):
        for attempt in attempts:
            attempt.status = attempt.detail = None
    return OneDeliveryOut(**dict(DeliveryOut.of(record, caller)), attempts=attempts)


@router.post(
    "/deliveries/{delivery_id}/replay",
    summary="Send a message again",
    status_code=202,
    responses=refusals(409),
)
def replay_delivery(delivery_id: DeliveryId, service: ServiceDep, caller: CallerDep) -> DeliveryOut:
    """Queues a failed or lost message again, with its id, so that receivers detect duplicates.

    At most ten tests and replays per project in ten minutes.
    """
    with service.store.write() as conn:
        now_s = service.database_time(conn)
        check_manual_send(conn, caller.project, now_s)
        outbox.replay(conn, caller.project, delivery_id, now_s=now_s)
        write_audit(conn, caller, "delivery.replay", delivery_id, now_s=now_s)
        record = deliveries.get(conn, caller.project, delivery_id)
    return DeliveryOut.of(record, caller)
