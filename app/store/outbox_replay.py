"""Whether a message may be sent once more: only while what it says of its alerts is still so.

Receivers believe what comes last. Of something that is over they would take it for a new
beginning, of something that fires for its end; and nothing would put that right for hours.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, select

from app.alerts.endpoint import KEEP_ONE_INCIDENT
from app.errors import Conflict
from app.store.alert_tables import alerts, endpoints, outbox
from app.store.deliveries import DeliveryRecord


def check(conn: Connection, record: DeliveryRecord) -> None:
    """Do nothing where it may.

    Raises:
        Conflict: it is a test, its endpoint takes nothing, or what it says is not so any more.
    """
    query = select(endpoints.c.is_enabled, endpoints.c.format)
    query = query.where(endpoints.c.endpoint_id == record.endpoint_id)
    endpoint = conn.execute(query).one_or_none()
    if endpoint is None or not endpoint.is_enabled:
        raise Conflict("its endpoint is disabled or was removed: enable it first")
    why_not = _why_not(conn, record, keeps_one=endpoint.format in KEEP_ONE_INCIDENT)
    if why_not is not None:
        raise Conflict(why_not)


def _why_not(conn: Connection, record: DeliveryRecord, *, keeps_one: bool) -> str | None:
    if record.kind == "test":
        return "it is a test, and says nothing of any alert: send a new one"
    if record.kind in ("firing", "refresh") and not _firing(conn, record, of_group=False):
        return "all that it tells of is over: sent again, it would open that anew"
    if record.kind == "resolved" and _firing(conn, record, of_group=keeps_one):
        return "what it says is over fires: sent again, it would close that"
    if record.kind == "acknowledged" and not _is_acked(_firing(conn, record, of_group=True)):
        return "not all that fires is acknowledged now: sent again, it would hush that"
    return None


def _firing(conn: Connection, record: DeliveryRecord, *, of_group: bool) -> Sequence[Any]:
    """Those of its alerts that fire now, or all of their rule on their job."""
    query = select(alerts.c.acked_at_s).where(alerts.c.phase == "firing")
    query = query.where(alerts.c.job_id == record.job_id, alerts.c.rule == record.rule)
    if not of_group:
        mine = select(outbox.c.fingerprints).where(outbox.c.delivery_id == record.delivery_id)
        query = query.where(alerts.c.fingerprint.in_(conn.execute(mine).scalar_one()))
    return conn.execute(query).all()


def _is_acked(firing: Sequence[Any]) -> bool:
    return bool(firing) and all(alert.acked_at_s is not None for alert in firing)
