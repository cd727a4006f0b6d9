"""How what receivers were to be told went, for people to read."""

from dataclasses import dataclass, fields
from typing import Any, Literal

from sqlalchemy import ColumnElement, Connection, Select, String, cast, func, select

from app.alerts.notice import NoticeKind
from app.errors import DeliveryNotFound
from app.store.alert_tables import alert_events, endpoints, outbox
from app.store.paging import Int64, from_cursor, split, to_cursor

DeliveryState = Literal["due", "delivered", "failed", "outdated", "silenced"]


@dataclass(frozen=True, slots=True)
class DeliveryRecord:
    """One message to one endpoint and how it went; times are Unix seconds.

    `job_id` and `rule` are None of a message that is about no alert, `endpoint_name` of an
    endpoint that is no more. `attempt` counts those that have begun; `detail` is what the last one
    that failed met.
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


@dataclass(frozen=True, slots=True)
class DeliveryCount:
    """How many messages to an endpoint are in a state, and when the last of them got there."""

    endpoint_id: str
    state: DeliveryState
    number: int
    last_done_s: float | None


_NAME = endpoints.c.name.label("endpoint_name")
_COLUMNS = tuple(
    _NAME if each.name == "endpoint_name" else outbox.c[each.name]
    for each in fields(DeliveryRecord)
)


def page(
    conn: Connection,
    project: str,
    *,
    state: DeliveryState | None = None,
    endpoint_id: str | None = None,
    fingerprint: str | None = None,
    cursor: str | None = None,
    limit: int = 100,
) -> tuple[list[DeliveryRecord], str | None]:
    """A project's messages, newest first, and the next page's cursor.

    Of this state, to this endpoint, and that tell of this alert, where one is given.
    """
    query = _records(project)
    if state is not None:
        query = query.where(outbox.c.state == state)
    if endpoint_id is not None:
        query = query.where(outbox.c.endpoint_id == endpoint_id)
    if fingerprint is not None:
        query = query.where(*_tells_of(fingerprint))
    if cursor is not None:
        query = query.where(outbox.c.seq < from_cursor(cursor, tuple[Int64])[0])
    rows = conn.execute(query.order_by(outbox.c.seq.desc()).limit(limit + 1))
    found, more = split([DeliveryRecord(*row) for row in rows], limit)
    return found, to_cursor(found[-1].seq) if more else None


def get(conn: Connection, project: str, delivery_id: str) -> DeliveryRecord:
    """One of a project's messages.

    Raises:
        DeliveryNotFound: it has no such message.
    """
    query = _records(project).where(outbox.c.delivery_id == delivery_id)
    row = conn.execute(query).one_or_none()
    if row is None:
        raise DeliveryNotFound(delivery_id)
    return DeliveryRecord(*row)


def counts(conn: Connection, project: str) -> list[DeliveryCount]:
    """A project's messages by endpoint and state, as many as there are."""
    key = (outbox.c.endpoint_id, outbox.c.state)
    query = select(*key, func.count(), func.max(outbox.c.done_s)).group_by(*key).order_by(*key)
    rows = conn.execute(query.where(outbox.c.project == project))
    return [DeliveryCount(*row) for row in rows]


def _tells_of(fingerprint: str) -> tuple[ColumnElement[bool], ...]:
    """Lists of fingerprints are texts that no index knows: look through those of its job alone."""
    of_it = select(alert_events.c.job_id).where(alert_events.c.fingerprint == fingerprint)
    listed = cast(outbox.c.listed, String).contains(f'"{fingerprint}"', autoescape=True)
    return outbox.c.job_id.in_(of_it), listed


def _records(project: str) -> Select[Any]:
    same = endpoints.c.endpoint_id == outbox.c.endpoint_id
    query = select(*_COLUMNS).select_from(outbox.join(endpoints, same, isouter=True))
    return query.where(outbox.c.project == project)


def told_of(conn: Connection, job_id: str, rule: str, *, written_s: float) -> set[str]:
    """Alerts of one rule on a job of which somebody may have heard by what was written then."""
    query = select(outbox.c.fingerprints).where(outbox.c.job_id == job_id, outbox.c.rule == rule)
    query = query.where(outbox.c.created_s == written_s)
    query = query.where(outbox.c.state.not_in(("silenced", "outdated")))
    return {each for fingerprints in conn.scalars(query) for each in fingerprints}
