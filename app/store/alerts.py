"""Alerts that are not at rest: pending or firing, over restarts of the job and of the service."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, cast, get_args

import msgspec
from sqlalchemy import Connection, delete, func, select, tuple_, update

from app.alerts.alert import AlertState, Phase
from app.alerts.rule import Severity
from app.errors import AlertNotFound
from app.store.alert_json import detail_json, detail_of, labels_json
from app.store.alert_tables import alerts
from app.store.paging import from_cursor, split, to_cursor
from app.store.projects import named, owns
from app.store.texts import clipped, clipped_or_none
from app.store.upsert import insert

MAX_SUBJECT = 256
MAX_URL = 2048
MAX_WHO = 256
_AT_ONCE = 500  # PostgreSQL takes 65,535 parameters in a statement, SQLite half as many
_COLUMNS = tuple(alerts.c[each.name] for each in fields(AlertState))
# What people say of an alert stays, whatever a consumer remembers of it.
_OF_PEOPLE = ("acked_at_s", "acked_by")
_Fingerprint = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{1,64}\Z")]


def of_job(conn: Connection, job_id: str) -> list[AlertState]:
    """All alerts of a job that are not at rest, by rule and subject."""
    query = select(*_COLUMNS).where(alerts.c.job_id == job_id)
    return [_state(row) for row in conn.execute(query.order_by(alerts.c.rule, alerts.c.subject))]


def save(conn: Connection, states: Sequence[AlertState]) -> None:
    """Save where these alerts stand; that somebody acknowledged one is left as it is."""
    if not states:
        return
    statement = insert(conn, alerts)
    kept = (*_OF_PEOPLE, "fingerprint")
    changed = {
        each.name: statement.excluded[each.name] for each in _COLUMNS if each.name not in kept
    }
    statement = statement.on_conflict_do_update(index_elements=["fingerprint"], set_=changed)
    # In one order, so that no two that save the same alerts wait for each other.
    ordered = sorted(states, key=_fingerprint)
    for at in range(0, len(ordered), _AT_ONCE):
        conn.execute(statement, [_row(each) for each in ordered[at : at + _AT_ONCE]])


def remove(conn: Connection, fingerprints: Sequence[str]) -> None:
    """These alerts are at rest."""
    ordered = sorted(fingerprints)
    for at in range(0, len(ordered), _AT_ONCE):
        some = alerts.c.fingerprint.in_(ordered[at : at + _AT_ONCE])
        conn.execute(delete(alerts).where(some))


def waiting_for_time(conn: Connection) -> list[str]:
    """Jobs with an alert that is pending and goes by the clock: no window will take it further."""
    query = select(alerts.c.job_id).where(alerts.c.phase == "pending", alerts.c.window_id.is_(None))
    return list(conn.execute(query.distinct().order_by(alerts.c.job_id)).scalars())


def get(conn: Connection, project: str, fingerprint: str) -> AlertState:
    """The alert.

    Raises:
        AlertNotFound: the project has none of this fingerprint that is not at rest.
    """
    query = select(*_COLUMNS).where(alerts.c.fingerprint == fingerprint)
    row = conn.execute(query.where(owns(project, alerts.c.job_id))).one_or_none()
    if row is None:
        raise AlertNotFound(fingerprint)
    return _state(row)


def page(
    conn: Connection,
    project: str,
    *,
    phase: Phase | None = None,
    job_id: str | None = None,
    severity: Severity | None = None,
    text: str = "",
    cursor: str | None = None,
    limit: int = 100,
) -> tuple[list[AlertState], str | None]:
    """A project's alerts, those that began last first, and the next page's cursor.

    Of this phase, job, severity, and of jobs with this text in their id, where one is given.
    """
    query = select(*_COLUMNS).where(owns(project, alerts.c.job_id))
    for column, wanted in zip(
        (alerts.c.phase, alerts.c.job_id, alerts.c.severity), (phase, job_id, severity), strict=True
    ):
        if wanted is not None:
            query = query.where(column == wanted)
    if text:
        query = query.where(named(project, alerts.c.job_id, text))
    if cursor is not None:
        key = tuple_(alerts.c.began_at_s, alerts.c.fingerprint)
        query = query.where(key < from_cursor(cursor, tuple[float, _Fingerprint]))
    query = query.order_by(alerts.c.began_at_s.desc(), alerts.c.fingerprint.desc())
    rows, more = split([_state(row) for row in conn.execute(query.limit(limit + 1))], limit)
    return rows, to_cursor(rows[-1].began_at_s, rows[-1].fingerprint) if more else None


def acknowledge(conn: Connection, fingerprint: str, *, by: str, at_s: float) -> bool:
    """Somebody looks after the alert; whether it fires and nobody did before."""
    fires = (alerts.c.fingerprint == fingerprint, alerts.c.phase == "firing")
    new = update(alerts).where(*fires, alerts.c.acked_at_s.is_(None))
    values = {"acked_at_s": at_s, "acked_by": clipped(by, MAX_WHO)}
    return bool(conn.execute(new.values(**values)).rowcount)


def unacknowledge(conn: Connection, fingerprint: str) -> bool:
    """Nobody looks after the alert any more; whether somebody did before."""
    acked = update(alerts).where(alerts.c.fingerprint == fingerprint)
    acked = acked.where(alerts.c.acked_at_s.is_not(None))
    return bool(conn.execute(acked.values(acked_at_s=None, acked_by=None)).rowcount)


def firing_by_severity(conn: Connection, project: str) -> dict[Severity, int]:
    """How many alerts of a project fire now, of each severity."""
    query = select(alerts.c.severity, func.count().label("number"))
    query = query.where(owns(project, alerts.c.job_id), alerts.c.phase == "firing")
    found = {row.severity: row.number for row in conn.execute(query.group_by(alerts.c.severity))}
    return {each: found.get(each, 0) for each in get_args(Severity)}


def _fingerprint(state: AlertState) -> str:
    return state.fingerprint


def _row(state: AlertState) -> Mapping[str, Any]:
    values = {each.name: getattr(state, each.name) for each in _COLUMNS}
    return values | {
        "subject": clipped(state.subject, MAX_SUBJECT),
        "labels": labels_json(state.labels),
        "runbook_url": clipped_or_none(state.runbook_url, MAX_URL),
        "detail": detail_json(state.detail),
    }


def _state(row: Any) -> AlertState:
    values = dict(row._mapping)
    return AlertState(**cast(Any, values | {"detail": detail_of(values["detail"])}))
