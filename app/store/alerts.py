"""Where alerts stand, and every time that one began or ceased to fire."""

from dataclasses import asdict, dataclass

from sqlalchemy import Connection, select

from app.alerts.alert import AlertState, Kind
from app.errors import JobNotFound
from app.store.paging import Int64, from_cursor, split, to_cursor
from app.store.projects import owns
from app.store.tables import alert_events, alert_states, jobs
from app.store.upsert import replace
from app.trace.names import DEFAULT_PROJECT


@dataclass(frozen=True, slots=True)
class AlertEvent:
    """One transition of an alert, never changed once written; `event_id` is None before that."""

    job_id: str
    rule: str
    kind: Kind
    at_s: float
    window_id: str | None
    slowdown: float | None
    threshold: float
    since_step: int | None
    sentence: str
    event_id: int | None = None


_COLUMNS = tuple(alert_events.c[name] for name in AlertEvent.__slots__)


def alert_state(conn: Connection, job_id: str, rule: str) -> AlertState:
    """Where the rule stands on the job; at rest where nothing was saved."""
    query = select(alert_states.c.state)
    query = query.where(alert_states.c.job_id == job_id, alert_states.c.rule == rule)
    saved = conn.execute(query).scalar_one_or_none()
    return AlertState() if saved is None else AlertState(**saved)


def save_state(conn: Connection, job_id: str, rule: str, state: AlertState) -> None:
    """Save where the rule stands on the job now."""
    replace(conn, alert_states, [{"job_id": job_id, "rule": rule, "state": asdict(state)}])


def add_event(conn: Connection, event: AlertEvent) -> int:
    """The id under which the transition is kept from now on."""
    values = {name: value for name, value in asdict(event).items() if name != "event_id"}
    statement = alert_events.insert().values(values).returning(alert_events.c.event_id)
    return int(conn.execute(statement).scalar_one())


def page(
    conn: Connection,
    *,
    project: str = DEFAULT_PROJECT,
    job_id: str | None = None,
    cursor: str | None = None,
    limit: int = 100,
) -> tuple[list[AlertEvent], str | None]:
    """Transitions of a project's jobs or of one job, newest first, and the next page's cursor.

    Raises:
        JobNotFound: a job is named that never registered.
    """
    query = select(*_COLUMNS).order_by(alert_events.c.event_id.desc()).limit(limit + 1)
    if job_id is not None:
        query = query.where(alert_events.c.job_id == job_id)
    else:
        query = query.where(owns(project, alert_events.c.job_id))
    if cursor is not None:
        query = query.where(alert_events.c.event_id < from_cursor(cursor, tuple[Int64])[0])
    rows, more = split([AlertEvent(*row) for row in conn.execute(query)], limit)
    if not rows and job_id is not None:
        _check_job(conn, job_id)
    return rows, to_cursor(rows[-1].event_id) if more else None


def _check_job(conn: Connection, job_id: str) -> None:
    if conn.execute(select(jobs.c.job_id).where(jobs.c.job_id == job_id)).one_or_none() is None:
        raise JobNotFound(job_id)
