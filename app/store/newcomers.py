"""Endpoints that want alerts of which others were told before they did."""

from sqlalchemy import Connection, func, or_, select, update

from app.store.alert_tables import endpoints, outbox
from app.trace.names import project_of


def begin(conn: Connection, endpoint_id: str, *, now_s: float) -> None:
    """From now on (Unix seconds) the endpoint wants what it wants."""
    mine = update(endpoints).where(endpoints.c.endpoint_id == endpoint_id)
    conn.execute(mine.values(anew_at_s=now_s))


def of_group(conn: Connection, job_id: str, rule: str, *, now_s: float) -> dict[str, float]:
    """Since when those endpoints want alerts that were sent nothing of this group since then."""
    heard = select(func.max(outbox.c.created_s)).where(
        outbox.c.job_id == job_id,
        outbox.c.rule == rule,
        outbox.c.endpoint_id == endpoints.c.endpoint_id,
    )
    # Not those of a clock that was set back: nothing would be late enough for them.
    project = endpoints.c.project
    query = select(endpoints.c.endpoint_id, endpoints.c.anew_at_s).where(
        or_(project == project_of(job_id), project.is_(None)),
        endpoints.c.anew_at_s <= now_s,
        func.coalesce(heard.scalar_subquery(), 0.0) < endpoints.c.anew_at_s,
    )
    return {row.endpoint_id: row.anew_at_s for row in conn.execute(query)}
