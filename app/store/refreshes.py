"""Messages that only say again what fires: of those that are done with, none is kept.

There is one every few minutes for as long as an alert fires.
"""

from sqlalchemy import Connection, delete, select

from app.store.alert_tables import delivery_attempts, outbox

_DONE_WITH = ("delivered", "outdated")


def forget(conn: Connection, endpoint_id: str, job_id: str, rule: str) -> None:
    """As if the endpoint had not been told these; one that failed is kept for people to see."""
    mine = select(outbox.c.delivery_id).where(
        outbox.c.endpoint_id == endpoint_id,
        outbox.c.job_id == job_id,
        outbox.c.rule == rule,
        outbox.c.kind == "refresh",
        outbox.c.state.in_(_DONE_WITH),
    )
    done = list(conn.execute(mine).scalars())
    if done:
        of_these = delivery_attempts.c.delivery_id.in_(done)
        conn.execute(delete(delivery_attempts).where(of_these))
        conn.execute(delete(outbox).where(outbox.c.delivery_id.in_(done)))
