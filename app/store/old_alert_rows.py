"""Which rows of alerts are old: what was told, attempted, silenced and done long ago.

Alerts that are not at rest stay, and messages that are still to be sent.
"""

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, Table, delete, not_, or_, select

from app.store.alert_tables import (
    alert_events,
    alert_groups,
    alert_told,
    alerts,
    audit,
    delivery_attempts,
    muting,
    outbox,
)
from app.store.old_rows_kind import Kind
from app.store.projects import owns


def _old_deliveries(project: str, before_s: float) -> Select[Any]:
    done = (outbox.c.state != "due", outbox.c.done_s < before_s)
    query = select(outbox.c.seq, outbox.c.delivery_id).where(outbox.c.project == project, *done)
    return query.order_by(outbox.c.seq)


def _remove_deliveries(conn: Connection, rows: Sequence[Row[Any]]) -> None:
    ids = [row.delivery_id for row in rows]
    for table in (delivery_attempts, outbox):
        conn.execute(delete(table).where(table.c.delivery_id.in_(ids)))


def _old_events(project: str, before_s: float) -> Select[Any]:
    # The last event of an alert that goes on says what it is about.
    goes_on = select(alerts.c.fingerprint).where(alerts.c.fingerprint == alert_events.c.fingerprint)
    query = select(alert_events.c.event_id).where(owns(project, alert_events.c.job_id))
    query = query.where(alert_events.c.at_s < before_s, not_(goes_on.exists()))
    return query.order_by(alert_events.c.event_id)


def _old_told(project: str, before_s: float) -> Select[Any]:
    # Only of what is at rest: that one fires has to be known until it is told that it does not.
    is_old = (alert_told.c.kind == "resolved", alert_told.c.at_s < before_s)
    query = select(alert_told.c.fingerprint).where(owns(project, alert_told.c.job_id), *is_old)
    return query.order_by(alert_told.c.fingerprint)


def _old_groups(project: str, before_s: float) -> Select[Any]:
    last_s = alert_groups.c.last_at_s
    query = select(alert_groups.c.job_id, alert_groups.c.rule).where(
        owns(project, alert_groups.c.job_id),
        alert_groups.c.next_at_s.is_(None),
        or_(last_s.is_(None), last_s < before_s),
        *(not_(_of_group(table).exists()) for table in (alerts, alert_told)),
    )
    return query.order_by(alert_groups.c.job_id, alert_groups.c.rule)


def _remove_groups(conn: Connection, rows: Sequence[Row[Any]]) -> None:
    for row in rows:
        mine = (alert_groups.c.job_id == row.job_id, alert_groups.c.rule == row.rule)
        conn.execute(delete(alert_groups).where(*mine))


def _old_silences(project: str, before_s: float) -> Select[Any]:
    query = select(muting.c.silence_id).where(muting.c.project == project)
    return query.where(muting.c.ends_s < before_s).order_by(muting.c.ends_s)


def _old_deeds(project: str, before_s: float) -> Select[Any]:
    query = select(audit.c.audit_id).where(audit.c.project == project, audit.c.at_s < before_s)
    return query.order_by(audit.c.audit_id)


def _of_group(table: Table) -> Select[Any]:
    same = (table.c[name] == alert_groups.c[name] for name in ("job_id", "rule"))
    return select(table.c.job_id).where(*same)


def _remove_from(
    table: Table, key: ColumnElement[Any]
) -> Callable[[Connection, Sequence[Row[Any]]], None]:
    def remove(conn: Connection, rows: Sequence[Row[Any]]) -> None:
        conn.execute(delete(table).where(key.in_([row[0] for row in rows])))

    return remove


# Groups last, which go when nothing of theirs is left.
KINDS = (
    Kind("deliveries", _old_deliveries, _remove_deliveries),
    Kind("alert events", _old_events, _remove_from(alert_events, alert_events.c.event_id)),
    Kind("alerts told", _old_told, _remove_from(alert_told, alert_told.c.fingerprint)),
    Kind("alert groups", _old_groups, _remove_groups),
    Kind("silences", _old_silences, _remove_from(muting, muting.c.silence_id)),
    Kind("audit", _old_deeds, _remove_from(audit, audit.c.audit_id)),
)
