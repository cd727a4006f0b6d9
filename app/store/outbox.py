"""What receivers are still to be told, written in the transaction that makes it news.

A delivery is due until it is delivered, failed for good, silenced, or outdated. Who sends it
claims it first, for a while; who dies while sending lets the claim lapse, and it is sent again
under the same id. Each endpoint hears of an alert in order (app/store/outbox_order.py).
"""

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import Connection, select, update

from app.alerts.message import Message
from app.alerts.notice import NoticeKind
from app.errors import Conflict
from app.store import deliveries, notifying, outbox_claims, outbox_order, outbox_replay
from app.store.alert_tables import outbox
from app.store.outbox_free import is_free
from app.store.texts import clipped, clipped_or_none
from app.store.upsert import insert
from app.trace.names import DEFAULT_PROJECT, project_of

_MAX_DETAIL = 500
_MAX_SUBJECT = 500
_MAX_BODY = 1 << 20  # far above what a format makes


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message to one endpoint; `attempt` counts from 1, `delivery_id` stays the same.

    `job_id` and `rule` are None of a message that is about no alert. It was written at `created_s`
    (Unix), the moment at which its alerts count as told.
    """

    delivery_id: str
    endpoint_id: str
    job_id: str | None
    rule: str | None
    kind: NoticeKind
    payload: str
    content_type: str
    headers: Mapping[str, str]
    subject: str | None
    fingerprints: Sequence[str]
    attempt: int
    created_s: float


_COLUMNS = tuple(outbox.c[each.name] for each in fields(Delivery))


def add(
    conn: Connection,
    *,
    endpoint_id: str,
    notice_id: str,
    job_id: str | None,
    rule: str | None,
    kind: NoticeKind,
    message: Message,
    fingerprints: Sequence[str],
    now_s: float,
    listed: Collection[str] = (),
    project: str | None = None,
) -> str | None:
    """The id of the new delivery; None where the endpoint is told of this notice already.

    `fingerprints` are of the alerts of which it has news; those `listed` beside them stand as it
    says, too. `project` is whose news it is, where no job says so.
    """
    statement = insert(conn, outbox).values(
        delivery_id=f"msg_{uuid.uuid4().hex}",
        endpoint_id=endpoint_id,
        notice_id=notice_id,
        project=project or (DEFAULT_PROJECT if job_id is None else project_of(job_id)),
        job_id=job_id,
        rule=rule,
        kind=kind,
        fingerprints=list(fingerprints),
        listed=sorted({*fingerprints, *listed}),
        **_said(message),
        state="due",
        attempt=0,
        next_at_s=now_s,
        lease_until_s=0.0,
        created_s=now_s,
    )
    new = statement.on_conflict_do_nothing().returning(outbox.c.delivery_id)
    delivery_id: str | None = conn.execute(new).scalar_one_or_none()
    outbox_order.drop_outdated(conn, endpoint_id, job_id, rule, now_s=now_s)
    if delivery_id is not None:
        outbox_order.hurry(conn, endpoint_id, job_id, rule, set(fingerprints), now_s=now_s)
    return delivery_id


def has_due(conn: Connection, *, now_s: float) -> bool:
    """Whether there may be something to claim: asked in a transaction that only reads."""
    return bool(conn.scalar(select(select(outbox).where(is_free(now_s)).exists())))


def claim(conn: Connection, *, now_s: float, lease_s: float, limit: int) -> list[Delivery]:
    """Deliveries to attempt now, in their order; nobody else gets them for `lease_s`.

    At most two at once are attempted at an endpoint, and one a minute at one that fails and fails;
    at all endpoints of a project 32. Projects take turns.
    Messages to endpoints that take nothing any more fail here.
    """
    outbox_claims.give_up(conn, now_s=now_s)
    chosen = outbox_claims.choose(conn, now_s=now_s, limit=limit)
    mine = update(outbox).where(outbox.c.seq.in_(chosen))
    mine = mine.values(attempt=outbox.c.attempt + 1, lease_until_s=now_s + lease_s)
    claimed = conn.execute(mine.returning(outbox.c.seq, *_COLUMNS)).all()
    return [Delivery(*row[1:]) for row in sorted(claimed, key=lambda row: row.seq)]


def delivered(conn: Connection, delivery: Delivery, *, now_s: float) -> None:
    """The receiver has it, and may well take now what it did not take before."""
    mine = _claimed(delivery).values(state="delivered", detail=None, done_s=now_s)
    number = conn.execute(mine).rowcount
    outbox_order.pull_forward(conn, delivery.endpoint_id, now_s=now_s)
    notifying.count(conn, "delivered", number)


def silenced(conn: Connection, delivery: Delivery, *, now_s: float) -> None:
    """Somebody has silenced all that it tells of since it was written."""
    mine = _claimed(delivery).values(state="silenced", detail=None, done_s=now_s)
    notifying.count(conn, "silenced", conn.execute(mine).rowcount)


def failed(
    conn: Connection, delivery: Delivery, *, detail: str, next_at_s: float | None, now_s: float
) -> None:
    """The attempt failed; the next one is at `next_at_s`, or there is none."""
    again = next_at_s is not None
    mine = _claimed(delivery).values(
        state="due" if again else "failed",
        detail=clipped(detail, _MAX_DETAIL),
        next_at_s=next_at_s if again else now_s,
        lease_until_s=0.0,
        done_s=None if again else now_s,
    )
    notifying.count(conn, "retried" if again else "failed", conn.execute(mine).rowcount)
    group = (delivery.endpoint_id, delivery.job_id, delivery.rule)
    outbox_order.drop_outdated(conn, *group, now_s=now_s)


def replay(conn: Connection, project: str, delivery_id: str, now_s: float) -> None:
    """Send it once more under the id that it had, as often as it takes.

    Raises:
        DeliveryNotFound: the project has no such message.
        Conflict: it is still to be sent anyhow, it is a test, its endpoint takes nothing, or what
            it says is not so any more.
    """
    outbox_replay.check(conn, deliveries.get(conn, project, delivery_id))
    done = update(outbox).where(outbox.c.delivery_id == delivery_id, outbox.c.state != "due")
    due = {"state": "due", "attempt": 0, "next_at_s": now_s, "lease_until_s": 0.0, "done_s": None}
    if not conn.execute(done.values(due)).rowcount:
        raise Conflict(f"delivery {delivery_id!r} is still to be sent: it needs no replay")


def _said(message: Message) -> dict[str, Any]:
    return {
        "payload": clipped(message.body, _MAX_BODY),
        "content_type": message.content_type,
        "headers": dict(message.headers),
        "subject": clipped_or_none(message.subject, _MAX_SUBJECT),
    }


def _claimed(delivery: Delivery) -> Any:
    # By the attempt, so that a sender whose claim has lapsed does not answer for the next one.
    return update(outbox).where(
        outbox.c.delivery_id == delivery.delivery_id,
        outbox.c.attempt == delivery.attempt,
        outbox.c.state == "due",
    )
