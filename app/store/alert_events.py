"""Every time that an alert began or ceased to fire, or somebody did something about it."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, func, select

from app.alerts.alert import AlertEvent, Kind
from app.errors import JobNotFound
from app.store.alert_json import MAX_SENTENCE, detail_json, detail_of
from app.store.alert_tables import alert_events
from app.store.alerts import MAX_SUBJECT, MAX_WHO
from app.store.paging import Int64, from_cursor, split, to_cursor
from app.store.projects import named, owns
from app.store.tables import jobs
from app.store.texts import clipped, clipped_or_none
from app.trace.names import DEFAULT_PROJECT

_MAX_REASON = 500
_AT_ONCE = 500  # SQLite takes so many parameters and no more
_COLUMNS = tuple(alert_events.c[each.name] for each in fields(AlertEvent))
# What people want to see of a job: not that it wavered before it was an alert.
_RINGS: tuple[Kind, ...] = ("firing", "resolved")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which transitions: of these kinds (none: any), of jobs like this, not resolved since."""

    kinds: Collection[Kind] = ()
    text: str = ""
    is_open: bool = False


def add(conn: Connection, event: AlertEvent) -> int:
    """The id under which the transition is kept from now on."""
    statement = alert_events.insert().values(_row(event)).returning(alert_events.c.event_id)
    return int(conn.execute(statement).scalar_one())


def page(
    conn: Connection,
    *,
    project: str = DEFAULT_PROJECT,
    job_id: str | None = None,
    wanted: Wanted | None = None,
    cursor: str | None = None,
    limit: int = 100,
) -> tuple[list[AlertEvent], str | None]:
    """Transitions of a project's jobs or of one job, newest first, and the next page's cursor.

    Raises:
        JobNotFound: a job is named that never registered.
    """
    query = _newest_first(limit + 1)
    if job_id is not None:
        query = query.where(alert_events.c.job_id == job_id)
    else:
        query = query.where(owns(project, alert_events.c.job_id))
    query = query.where(*_conditions(wanted or Wanted(), project))
    if cursor is not None:
        query = query.where(alert_events.c.event_id < from_cursor(cursor, tuple[Int64])[0])
    rows, more = split(_events(conn, query), limit)
    if not rows and job_id is not None:
        _check_job(conn, job_id)
    return rows, to_cursor(rows[-1].event_id) if more else None


def of_alert(conn: Connection, fingerprint: str, *, limit: int = 100) -> list[AlertEvent]:
    """The last transitions of one alert, newest first."""
    query = _newest_first(limit).where(alert_events.c.fingerprint == fingerprint)
    return _events(conn, query)


def newest(conn: Connection, fingerprints: Sequence[str], kind: Kind) -> dict[str, AlertEvent]:
    """The last transition of this kind of each of these alerts, of those that have one."""
    found: dict[str, AlertEvent] = {}
    for at in range(0, len(fingerprints), _AT_ONCE):
        same = alert_events.c.fingerprint.in_(fingerprints[at : at + _AT_ONCE])
        last = select(func.max(alert_events.c.event_id)).where(same, alert_events.c.kind == kind)
        last = last.group_by(alert_events.c.fingerprint)
        query = select(*_COLUMNS).where(alert_events.c.event_id.in_(last))
        found |= {event.fingerprint: event for event in _events(conn, query)}
    return found


def rings_of_job(conn: Connection, job_id: str, *, limit: int) -> list[AlertEvent]:
    """The last times that alerts of a job began or ceased to fire, newest first."""
    query = _newest_first(limit).where(alert_events.c.job_id == job_id)
    return _events(conn, query.where(alert_events.c.kind.in_(_RINGS)))


def _newest_first(limit: int) -> Select[Any]:
    return select(*_COLUMNS).order_by(alert_events.c.event_id.desc()).limit(limit)


def _conditions(wanted: Wanted, project: str) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    if wanted.kinds:
        found.append(alert_events.c.kind.in_(sorted(wanted.kinds)))
    if wanted.text:
        found.append(named(project, alert_events.c.job_id, wanted.text))
    if wanted.is_open:
        found += [alert_events.c.kind == "firing", ~_is_followed()]
    return found


def _is_followed() -> ColumnElement[bool]:
    later = alert_events.alias("later")
    return (
        select(later.c.event_id)
        .where(later.c.fingerprint == alert_events.c.fingerprint)
        .where(later.c.event_id > alert_events.c.event_id, later.c.kind.in_(_RINGS))
        .exists()
    )


def _row(event: AlertEvent) -> dict[str, Any]:
    values = {each.name: getattr(event, each.name) for each in _COLUMNS if each.name != "event_id"}
    return values | {
        "subject": clipped(event.subject, MAX_SUBJECT),
        "sentence": clipped(event.sentence, MAX_SENTENCE),
        "detail": detail_json(event.detail),
        "actor": clipped_or_none(event.actor, MAX_WHO),
        "reason": clipped_or_none(event.reason, _MAX_REASON),
    }


def _events(conn: Connection, query: Select[Any]) -> list[AlertEvent]:
    rows: Sequence[Any] = conn.execute(query).all()
    return [AlertEvent(**{**row._mapping, "detail": detail_of(row.detail)}) for row in rows]


def _check_job(conn: Connection, job_id: str) -> None:
    if conn.execute(select(jobs.c.job_id).where(jobs.c.job_id == job_id)).one_or_none() is None:
        raise JobNotFound(job_id)
