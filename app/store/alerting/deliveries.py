"""Deliveries for people to read: the state of each message, and every attempt to send it."""

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import chain
from typing import Any, Literal

from sqlalchemy import Connection, Select, String, cast, delete, func, or_, select

from app.alerts.notice import NoticeKind
from app.alerts.receiver import Format
from app.errors import DeliveryNotFound
from app.store.alerting.tables import alert_events, delivery_attempts, endpoints, outbox
from app.store.columns import clipped
from app.store.database import Int64, ListOrder, equal, one_row

DeliveryState = Literal["due", "delivered", "failed", "outdated", "silenced"]


@dataclass(frozen=True, slots=True)
class DeliveryRecord:
    """One message to one receiver and its state; times are Unix seconds.

    `job_id` and `rule` are None for a message about no alert, `endpoint_name` and `endpoint_format`
    for a removed receiver. `attempt` counts the attempts begun; `detail` describes the last failed
    one, or says why it waits. `fingerprints` are the alerts that are news in it.
    """

    delivery_id: str
    seq: int
    notice_id: str
    job_id: str | None
    rule: str | None
    kind: NoticeKind
    endpoint_id: str
    endpoint_name: str | None
    state: DeliveryState
    attempt: int
    next_at_s: float
    detail: str | None
    created_s: float
    done_s: float | None
    fingerprints: Sequence[str] = ()
    endpoint_format: Format | None = None


@dataclass(frozen=True, slots=True)
class DeliveryCount:
    """How many messages to a receiver are in a state, and when the last one reached it."""

    endpoint_id: str
    state: DeliveryState
    number: int
    last_done_s: float | None


_OF_RECEIVER = {
    "endpoint_name": endpoints.c.name.label("endpoint_name"),
    "endpoint_format": endpoints.c.format.label("endpoint_format"),
}
_COLUMNS = tuple(
    _OF_RECEIVER[field.name] if field.name in _OF_RECEIVER else outbox.c[field.name]
    for field in fields(DeliveryRecord)
)
_ORDER = ListOrder((outbox.c.seq,), tuple[Int64])


def page(
    conn: Connection,
    project: str,
    *,
    state: DeliveryState | None = None,
    endpoint_id: str | None = None,
    fingerprint: str | None = None,
    job_id: str | None = None,
    cursor: str | None = None,
    limit: int = 100,
) -> tuple[list[DeliveryRecord], str | None]:
    """A project's messages, newest first, and the next page's cursor.

    Filtered by state, receiver, alert and job, if given.
    """
    wanted = equal(outbox, state=state, endpoint_id=endpoint_id, job_id=job_id)
    query = _records(project).where(*wanted)
    if fingerprint is not None:
        # No index covers the lists, so only those of the alert's job are searched.
        its_job = select(alert_events.c.job_id).where(alert_events.c.fingerprint == fingerprint)
        listed = cast(outbox.c.listed, String).contains(f'"{fingerprint}"', autoescape=True)
        query = query.where(outbox.c.job_id.in_(its_job), listed)
    rows, next_cursor = _ORDER.page(conn, query, cursor, limit)
    return [DeliveryRecord(*row) for row in rows], next_cursor


def get(conn: Connection, project: str, delivery_id: str) -> DeliveryRecord:
    """One of a project's messages; raises DeliveryNotFound."""
    query = _records(project).where(outbox.c.delivery_id == delivery_id)
    return DeliveryRecord(*one_row(conn, query, DeliveryNotFound(delivery_id)))


def counts(conn: Connection, project: str) -> list[DeliveryCount]:
    """Number of a project's messages by receiver and state."""
    key = (outbox.c.endpoint_id, outbox.c.state)
    query = select(*key, func.count(), func.max(outbox.c.done_s)).group_by(*key).order_by(*key)
    rows = conn.execute(query.where(outbox.c.project == project))
    return [DeliveryCount(*row) for row in rows]


def _records(project: str) -> Select[Any]:
    same = endpoints.c.endpoint_id == outbox.c.endpoint_id
    query = select(*_COLUMNS).select_from(outbox.join(endpoints, same, isouter=True))
    return query.where(outbox.c.project == project)


def fingerprints_sent(conn: Connection, job_id: str, rule: str, *, written_s: float) -> set[str]:
    """Alerts of one rule on a job that a message written at this time may have delivered."""
    query = select(outbox.c.fingerprints).filter_by(job_id=job_id, rule=rule, created_s=written_s)
    query = query.where(outbox.c.state.not_in(("silenced", "outdated")))
    return set(chain.from_iterable(conn.scalars(query)))


MAX_DETAIL = 500


@dataclass(frozen=True, slots=True)
class DeliveryAttempt:
    """One attempt at `at_s` (Unix time); `status` is None if there was no answer.

    `attempt` counts from 1, again after a replay.
    """

    attempt: int
    at_s: float
    took_s: float
    status: int | None
    detail: str


_ATTEMPTS = delivery_attempts
_ATTEMPT_COLUMNS = tuple(_ATTEMPTS.c[field.name] for field in fields(DeliveryAttempt))


def forget_heartbeats(conn: Connection, endpoint_ids: Collection[str], *, now_s: float) -> None:
    """Remove the heartbeats of these receivers that no sender is at: the next one replaces them."""
    heartbeats = select(outbox.c.delivery_id).where(
        outbox.c.endpoint_id.in_(sorted(endpoint_ids)),
        outbox.c.kind == "heartbeat",
        or_(outbox.c.state != "due", outbox.c.lease_until_s <= now_s),
    )
    remove(conn, conn.scalars(heartbeats.with_for_update(skip_locked=True)).all())


def remove(conn: Connection, delivery_ids: Sequence[str]) -> None:
    """Delete messages and their attempts."""
    for table in (delivery_attempts, outbox):
        conn.execute(delete(table).where(table.c.delivery_id.in_(delivery_ids)))


def add_attempt(conn: Connection, delivery_id: str, attempt: DeliveryAttempt) -> None:
    """Save the result of one attempt."""
    values = asdict(attempt) | {"detail": clipped(attempt.detail, MAX_DETAIL)}
    conn.execute(_ATTEMPTS.insert().values(delivery_id=delivery_id, **values))


def attempts_of(conn: Connection, project: str, delivery_id: str) -> list[DeliveryAttempt]:
    """All attempts of one message, in their order; raises DeliveryNotFound."""
    query = select(*_ATTEMPT_COLUMNS).where(_ATTEMPTS.c.delivery_id == delivery_id)
    get(conn, project, delivery_id)
    return [DeliveryAttempt(*row) for row in conn.execute(query.order_by(_ATTEMPTS.c.attempt_id))]
