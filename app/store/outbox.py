"""What receivers are still to be told, written in the transaction that makes it news.

A delivery is due until it is delivered, failed for good, or outdated. Who sends it claims it
first, for a while; who dies while sending lets the claim lapse, and it is sent again under the
same id. News of one job arrive in order: the next is not sent while one before it is due.
"""

import uuid
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, select, update

from app.store.tables import alert_events, outbox
from app.store.upsert import insert

_MAX_DETAIL_CHARS = 500


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message to one endpoint; `attempt` counts from 1, `delivery_id` stays the same."""

    delivery_id: str
    event_id: int
    endpoint: str
    payload: str
    attempt: int


def add(conn: Connection, event_id: int, endpoint: str, payload: str, *, now_s: float) -> None:
    """Tell the endpoint of this event; asked for twice, it is told once."""
    query = select(alert_events.c.job_id, alert_events.c.rule)
    event = conn.execute(query.where(alert_events.c.event_id == event_id)).one()
    statement = insert(conn, outbox).values(
        delivery_id=f"msg_{uuid.uuid4().hex}",
        event_id=event_id,
        job_id=event.job_id,
        rule=event.rule,
        endpoint=endpoint,
        payload=payload,
        state="due",
        attempt=0,
        next_at_s=now_s,
        lease_until_s=0.0,
        created_s=now_s,
    )
    conn.execute(statement.on_conflict_do_nothing())
    _drop_outdated(conn, event_id, endpoint, now_s=now_s)


def claim(conn: Connection, *, now_s: float, lease_s: float, limit: int) -> list[Delivery]:
    """Deliveries to attempt now; nobody else gets them for `lease_s`."""
    due = (
        select(outbox.c.delivery_id)
        .where(outbox.c.state == "due", outbox.c.next_at_s <= now_s)
        .where(outbox.c.lease_until_s <= now_s, ~_waits_for_another())
        .order_by(outbox.c.next_at_s, outbox.c.event_id)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    ids = list(conn.execute(due).scalars())
    mine = update(outbox).where(outbox.c.delivery_id.in_(ids))
    claimed = conn.execute(
        mine.values(attempt=outbox.c.attempt + 1, lease_until_s=now_s + lease_s).returning(
            *(outbox.c[name] for name in Delivery.__slots__)
        )
    )
    return sorted((Delivery(*row) for row in claimed), key=lambda one: one.event_id)


def delivered(conn: Connection, delivery: Delivery, *, now_s: float) -> None:
    """The receiver has it."""
    conn.execute(_claimed(delivery).values(state="delivered", detail=None, done_s=now_s))


def failed(
    conn: Connection, delivery: Delivery, *, detail: str, next_at_s: float | None, now_s: float
) -> None:
    """The attempt failed; the next one is at `next_at_s`, or there is none."""
    again = next_at_s is not None
    conn.execute(
        _claimed(delivery).values(
            state="due" if again else "failed",
            detail=detail[:_MAX_DETAIL_CHARS],
            next_at_s=next_at_s if again else now_s,
            lease_until_s=0.0,
            done_s=None if again else now_s,
        )
    )
    newest = select(func.max(outbox.c.event_id)).where(*_same_subject(delivery.event_id))
    newest_id = conn.execute(newest.where(outbox.c.endpoint == delivery.endpoint)).scalar_one()
    _drop_outdated(conn, newest_id, delivery.endpoint, now_s=now_s)


def _drop_outdated(conn: Connection, newest_id: int, endpoint: str, *, now_s: float) -> None:
    # A message that has failed already is not worth holding up the one that replaces it.
    conn.execute(
        update(outbox)
        .where(*_same_subject(newest_id), outbox.c.endpoint == endpoint)
        .where(outbox.c.event_id < newest_id, outbox.c.state == "due")
        .where(outbox.c.attempt > 0, outbox.c.lease_until_s <= now_s)
        .values(state="outdated", done_s=now_s)
    )


def _same_subject(event_id: int) -> tuple[ColumnElement[bool], ...]:
    event = select(alert_events).where(alert_events.c.event_id == event_id).subquery()
    job_id = select(event.c.job_id).scalar_subquery()
    rule = select(event.c.rule).scalar_subquery()
    return outbox.c.job_id == job_id, outbox.c.rule == rule


def _waits_for_another() -> ColumnElement[bool]:
    before = outbox.alias("before")
    return (
        select(before.c.delivery_id)
        .where(before.c.job_id == outbox.c.job_id, before.c.rule == outbox.c.rule)
        .where(before.c.endpoint == outbox.c.endpoint, before.c.state == "due")
        .where(before.c.event_id < outbox.c.event_id)
        .exists()
    )


def _claimed(delivery: Delivery) -> Any:
    # By the attempt, so that a sender whose claim has lapsed does not answer for the next one.
    return update(outbox).where(
        outbox.c.delivery_id == delivery.delivery_id,
        outbox.c.attempt == delivery.attempt,
        outbox.c.state == "due",
    )
