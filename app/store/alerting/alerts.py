"""Alerts that are pending or firing, every transition of them, and their JSON columns.

Alerts outlive restarts of the job and of the service. A field that a stored detail lacks has its
default, as the row is older than the field.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any

import msgspec
from msgspec.structs import replace
from sqlalchemy import Column, ColumnElement, Connection, Select, delete, func, or_, select, update

from app.alerts.alert import AlertEvent, AlertEventKind, AlertState, Blame, Detail, Phase
from app.alerts.labels import Matcher
from app.alerts.rule import Severity
from app.errors import AlertNotFound, InvalidRequest
from app.result.record import Json
from app.store.alerting.tables import alert_events, alerts
from app.store.columns import checked_text, clipped, clipped_or_none
from app.store.database import HexId, Int64, ListOrder, chunks, equal, insert, one_row
from app.store.projects import job_id_contains, owns
from app.store.runs import current_epoch
from app.store.tables import jobs
from app.trace.job import DEFAULT_PROJECT

MAX_SUBJECT = 256
MAX_URL = 2048
MAX_ACTOR = 256
_ALERT_COLUMNS = tuple(alerts.c[field.name] for field in fields(AlertState))
# Set by people: a consumer never overwrites these.
_SET_BY_PEOPLE = (
    *("acked_at_s", "acked_by"),
    *("assigned_to", "assigned_at_s", "assigned_by"),
    *("note", "noted_at_s", "noted_by"),
)
_ORDER = ListOrder((alerts.c.began_at_s, alerts.c.fingerprint), tuple[float, HexId])


def of_job(conn: Connection, job_id: str) -> list[AlertState]:
    """A job's pending and firing alerts, by rule and subject."""
    query = select(*_ALERT_COLUMNS).where(alerts.c.job_id == job_id)
    rows = conn.execute(query.order_by(alerts.c.rule, alerts.c.subject))
    return [AlertState(*row) for row in rows]


def save(conn: Connection, states: Sequence[AlertState]) -> None:
    """Save these alerts; columns that people have set are left unchanged."""
    if not states:
        return
    statement = insert(conn, alerts)
    kept = (*_SET_BY_PEOPLE, "fingerprint")
    changed = {
        column.name: statement.excluded[column.name]
        for column in _ALERT_COLUMNS
        if column.name not in kept
    }
    statement = statement.on_conflict_do_update(index_elements=["fingerprint"], set_=changed)
    # In one order, so that concurrent calls do not deadlock.
    ordered = sorted(states, key=attrgetter("fingerprint"))
    for some in chunks(ordered):
        rows = [
            row_of(
                state,
                _ALERT_COLUMNS,
                subject=clipped(state.subject, MAX_SUBJECT),
                labels=clipped_labels(state.labels),
                runbook_url=clipped_or_none(state.runbook_url, MAX_URL),
                detail=detail_json(state.detail),
            )
            for state in some
        ]
        conn.execute(statement, rows)


def remove(conn: Connection, fingerprints: Sequence[str]) -> None:
    """Remove these alerts: they have been resolved."""
    for some in chunks(sorted(fingerprints)):
        conn.execute(delete(alerts).where(alerts.c.fingerprint.in_(some)))


def of_hidden_jobs(conn: Connection) -> list[str]:
    """Archived and deleted jobs that have alerts."""
    is_hidden = or_(jobs.c.archived_s.is_not(None), jobs.c.deleted_s.is_not(None))
    of_job = alerts.join(jobs, jobs.c.job_id == alerts.c.job_id)
    query = select(alerts.c.job_id).distinct().select_from(of_job).where(is_hidden)
    return list(conn.execute(query).scalars())


def pending_by_clock(conn: Connection) -> list[str]:
    """Jobs with an alert that is pending by the clock, not by windows."""
    query = select(alerts.c.job_id).where(alerts.c.phase == "pending", alerts.c.window_id.is_(None))
    return list(conn.execute(query.distinct().order_by(alerts.c.job_id)).scalars())


def get(conn: Connection, project: str, fingerprint: str) -> AlertState:
    """The alert; raises AlertNotFound unless it is pending or firing in the project."""
    query = select(*_ALERT_COLUMNS).where(alerts.c.fingerprint == fingerprint)
    query = query.where(owns(project, alerts.c.job_id))
    return AlertState(*one_row(conn, query, AlertNotFound(fingerprint)))


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

    Filtered by phase, job, severity and a text in the job's id, if given.
    """
    wanted = equal(alerts, phase=phase, job_id=job_id, severity=severity)
    query = select(*_ALERT_COLUMNS).where(owns(project, alerts.c.job_id), *wanted)
    if text:
        query = query.where(job_id_contains(project, alerts.c.job_id, text))
    rows, next_cursor = _ORDER.page(conn, query, cursor, limit)
    return [AlertState(*row) for row in rows], next_cursor


def acknowledge(conn: Connection, fingerprint: str, *, by: str, at_s: float) -> bool:
    """Acknowledge a firing alert; False if it does not fire or is acknowledged already."""
    is_new = (alerts.c.phase == "firing", alerts.c.acked_at_s.is_(None))
    return _set(conn, fingerprint, *is_new, acked_at_s=at_s, acked_by=clipped(by, MAX_ACTOR))


def unacknowledge(conn: Connection, fingerprint: str) -> bool:
    """Remove the acknowledgement; False if there was none."""
    is_acked = alerts.c.acked_at_s.is_not(None)
    return _set(conn, fingerprint, is_acked, acked_at_s=None, acked_by=None)


def assign(conn: Connection, fingerprint: str, *, to: str, by: str, at_s: float) -> bool:
    """Assign an alert, also from one person to another; False if it has this assignee already.

    Raises:
        InvalidRequest: the name is too long, or no text that both databases take.
    """
    checked_text("to", to, MAX_ACTOR)
    is_new = func.coalesce(alerts.c.assigned_to, "") != to
    by = clipped(by, MAX_ACTOR)
    return _set(conn, fingerprint, is_new, assigned_to=to, assigned_by=by, assigned_at_s=at_s)


def unassign(conn: Connection, fingerprint: str) -> bool:
    """Remove the assignee; False if there was none."""
    unassigned = dict.fromkeys(("assigned_to", "assigned_by", "assigned_at_s"))
    return _set(conn, fingerprint, alerts.c.assigned_to.is_not(None), **unassigned)


def set_note(conn: Connection, fingerprint: str, *, text: str, by: str, at_s: float) -> None:
    """Save the last note of an alert; `add_event` keeps all of them. Raises as `assign` does."""
    checked_text("text", text, MAX_REASON)
    _set(conn, fingerprint, note=text, noted_by=clipped(by, MAX_ACTOR), noted_at_s=at_s)


def _set(
    conn: Connection, fingerprint: str, *conditions: ColumnElement[bool], **values: object
) -> bool:
    """Set columns of an alert that meets the conditions; False if there is none."""
    changed = update(alerts).where(alerts.c.fingerprint == fingerprint, *conditions)
    return bool(conn.execute(changed.values(values)).rowcount)


def num_notes(conn: Connection, fingerprint: str, *, since_s: float) -> int:
    """How many notes were written on an alert since a time (Unix seconds)."""
    query = select(func.count()).where(
        alert_events.c.fingerprint == fingerprint,
        alert_events.c.kind == "note",
        alert_events.c.at_s >= since_s,
    )
    return int(conn.execute(query).scalar_one())


MAX_REASON = 500
_EVENT_COLUMNS = tuple(alert_events.c[field.name] for field in fields(AlertEvent))
_EVENT_ORDER = ListOrder((alert_events.c.event_id,), tuple[Int64])
# Transitions that people want to see: not the pending phase.
_FIRING_OR_RESOLVED: tuple[AlertEventKind, ...] = ("firing", "resolved")


def add_event(conn: Connection, event: AlertEvent) -> int:
    """Save a transition; returns its id."""
    row = row_of(
        event,
        (column for column in _EVENT_COLUMNS if column.name != "event_id"),
        subject=clipped(event.subject, MAX_SUBJECT),
        sentence=clipped(event.sentence, MAX_SENTENCE),
        detail=detail_json(event.detail),
        actor=clipped_or_none(event.actor, MAX_ACTOR),
        reason=clipped_or_none(event.reason, MAX_REASON),
    )
    statement = alert_events.insert().values(row).returning(alert_events.c.event_id)
    return int(conn.execute(statement).scalar_one())


def event_page(
    conn: Connection,
    *,
    project: str = DEFAULT_PROJECT,
    job_id: str | None = None,
    kinds: Collection[AlertEventKind] = (),
    text: str = "",
    is_open: bool = False,
    cursor: str | None = None,
    limit: int = 100,
) -> tuple[list[AlertEvent], str | None]:
    """Transitions of a project's jobs or of one job, newest first, and the next page's cursor.

    Only those of these kinds (empty: any), of jobs whose id has the text, and, if `is_open`, to
    firing of alerts that have not been resolved since.

    Raises:
        JobNotFound: a job is named that never registered.
    """
    of_job = alert_events.c.job_id
    query = select(*_EVENT_COLUMNS).where(
        owns(project, of_job) if job_id is None else of_job == job_id
    )
    if kinds:
        query = query.where(alert_events.c.kind.in_(sorted(kinds)))
    if text:
        query = query.where(job_id_contains(project, alert_events.c.job_id, text))
    if is_open:
        query = query.where(alert_events.c.kind == "firing", ~_has_later_event())
    rows, next_cursor = _EVENT_ORDER.page(conn, query, cursor, limit)
    if not rows and job_id is not None:
        current_epoch(conn, job_id)
    return [AlertEvent(*row) for row in rows], next_cursor


def events_of_alert(conn: Connection, fingerprint: str, *, limit: int = 100) -> list[AlertEvent]:
    """The last transitions of one alert, newest first."""
    query = _newest_events(limit).where(alert_events.c.fingerprint == fingerprint)
    return _read_events(conn, query)


def newest_events(
    conn: Connection, fingerprints: Sequence[str], kind: AlertEventKind
) -> dict[str, AlertEvent]:
    """The last transition of this kind of each of these alerts, if it has one."""
    events: dict[str, AlertEvent] = {}
    for some in chunks(fingerprints):
        same = alert_events.c.fingerprint.in_(some)
        last = select(func.max(alert_events.c.event_id)).where(same, alert_events.c.kind == kind)
        last = last.group_by(alert_events.c.fingerprint)
        query = select(*_EVENT_COLUMNS).where(alert_events.c.event_id.in_(last))
        events |= {event.fingerprint: event for event in _read_events(conn, query)}
    return events


def last_recovery(
    conn: Connection, job_id: str, *, since_s: float
) -> tuple[AlertEvent, AlertEvent] | None:
    """The beginning and the end of the alert that was resolved last, by a good window.

    None if none was since this Unix time, or one fires.
    """
    same = alerts.c.job_id == job_id, alerts.c.phase == "firing"
    if conn.scalar(select(select(alerts).where(*same).exists())):
        return None
    query = _newest_events(1).where(
        alert_events.c.job_id == job_id,
        alert_events.c.kind == "resolved",
        alert_events.c.reason.is_(None),
        alert_events.c.at_s >= since_s,
    )
    for ended in _read_events(conn, query):
        began = _newest_events(1).where(
            alert_events.c.fingerprint == ended.fingerprint,
            alert_events.c.kind == "firing",
            alert_events.c.event_id < ended.event_id,
        )
        for event in _read_events(conn, began):
            return event, ended
    return None


def firings_since(conn: Connection, job_id: str, rule: str, *, since_s: float) -> list[AlertEvent]:
    """Transitions to firing of a rule's alerts on a job since a Unix time, the oldest first."""
    same = alert_events.c.job_id == job_id, alert_events.c.rule == rule
    query = select(*_EVENT_COLUMNS).where(*same, alert_events.c.kind == "firing")
    query = query.where(alert_events.c.at_s >= since_s).order_by(alert_events.c.event_id)
    return _read_events(conn, query)


def firings_of_job(conn: Connection, job_id: str, *, limit: int) -> list[AlertEvent]:
    """The last transitions of a job's alerts to firing or resolved, newest first."""
    query = _newest_events(limit).where(alert_events.c.job_id == job_id)
    return _read_events(conn, query.where(alert_events.c.kind.in_(_FIRING_OR_RESOLVED)))


def _newest_events(limit: int) -> Select[Any]:
    return select(*_EVENT_COLUMNS).order_by(alert_events.c.event_id.desc()).limit(limit)


def _has_later_event() -> ColumnElement[bool]:
    later = alert_events.alias("later")
    return (
        select(later.c.event_id)
        .where(later.c.fingerprint == alert_events.c.fingerprint)
        .where(later.c.event_id > alert_events.c.event_id, later.c.kind.in_(_FIRING_OR_RESOLVED))
        .exists()
    )


def _read_events(conn: Connection, query: Select[Any]) -> list[AlertEvent]:
    return [AlertEvent(*row) for row in conn.execute(query)]


MAX_SENTENCE = 2000
MAX_NAMES = 20  # of silent workers and of culprits
_MAX_NAME = 256
_MAX_LABELS = 64


def row_of(record: object, columns: Iterable[Column[Any]], **stored: object) -> dict[str, object]:
    """The record as a row: its fields by the names of columns, some as they are `stored`."""
    return {column.name: getattr(record, column.name) for column in columns} | stored


def detail_json(detail: Detail) -> Json:
    """The detail with clipped texts, and only the first names and culprits."""
    blame, fix = detail.blame, detail.fix
    short = replace(
        detail,
        names=tuple(clipped(name, _MAX_NAME) for name in detail.names[:MAX_NAMES]),
        blame=None if blame is None else _clipped_blame(blame),
        fix=None if fix is None else replace(fix, title=clipped(fix.title, _MAX_NAME)),
    )
    # A number that is not finite becomes null.
    return msgspec.json.decode(msgspec.json.encode(short))


def _clipped_blame(blame: Blame) -> Blame:
    return replace(
        blame,
        cause=clipped(blame.cause, _MAX_NAME),
        sentence=clipped(blame.sentence, MAX_SENTENCE),
        culprits=tuple(
            replace(culprit, host=clipped_or_none(culprit.host, _MAX_NAME))
            for culprit in blame.culprits[:MAX_NAMES]
        ),
    )


def clipped_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """The first labels, with their texts clipped."""
    some = list(labels.items())[:_MAX_LABELS]
    return {clipped(key, _MAX_NAME): clipped(value, _MAX_NAME) for key, value in some}


# Each is matched against every alert that is notified.
MAX_MATCHERS = 32
MAX_LABEL_CHARS = 64
MAX_PATTERN_CHARS = 256


def check_matchers(matchers: Sequence[Matcher]) -> None:
    """Raise InvalidRequest if there are more, or longer ones, than can be stored."""
    if len(matchers) > MAX_MATCHERS:
        raise InvalidRequest(f"matchers: want at most {MAX_MATCHERS}")
    for matcher in matchers:
        checked_text("label", matcher.label, MAX_LABEL_CHARS)
        checked_text("pattern", matcher.pattern, MAX_PATTERN_CHARS)
