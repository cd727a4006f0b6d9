"""Every attempt to deliver a message, and what came of it."""

from dataclasses import dataclass, fields

from sqlalchemy import Connection, select

from app.store import deliveries
from app.store.alert_tables import delivery_attempts
from app.store.texts import clipped

MAX_DETAIL = 500


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at `at_s` (Unix), which took so long; `status` is None where nothing answered.

    `attempt` counts from 1, and anew after the message was replayed.
    """

    attempt: int
    at_s: float
    took_s: float
    status: int | None
    detail: str


_TABLE = delivery_attempts
_COLUMNS = tuple(_TABLE.c[each.name] for each in fields(Attempt))


def add(
    conn: Connection,
    delivery_id: str,
    attempt: int,
    at_s: float,
    took_s: float,
    status: int | None,
    detail: str,
) -> None:
    """Write down how one attempt went."""
    conn.execute(
        _TABLE.insert().values(
            delivery_id=delivery_id,
            attempt=attempt,
            at_s=at_s,
            took_s=took_s,
            status=status,
            detail=clipped(detail, MAX_DETAIL),
        )
    )


def of_delivery(conn: Connection, project: str, delivery_id: str) -> list[Attempt]:
    """All attempts of one message, in their order.

    Raises:
        DeliveryNotFound: the project has no such message.
    """
    query = select(*_COLUMNS).where(_TABLE.c.delivery_id == delivery_id)
    deliveries.get(conn, project, delivery_id)
    return [Attempt(*row) for row in conn.execute(query.order_by(_TABLE.c.attempt_id))]
