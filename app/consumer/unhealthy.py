"""An endpoint that is given up: it is disabled, and others of whoever relied on it are told."""

import hashlib

import structlog

from app.alerts.endpoint import OF_SETTINGS, Endpoint
from app.alerts.formats.registry import render
from app.alerts.notice import Notice
from app.consumer.desk import Desk
from app.store import audit, endpoints, outbox, projects
from app.store.engine import Connection
from app.store.outbox import Delivery
from app.trace.names import DEFAULT_PROJECT, project_of

log = structlog.get_logger()

ACTOR = "paceline"


def give_up(
    conn: Connection, desk: Desk, delivery: Delivery, endpoint: Endpoint, reason: str, now_s: float
) -> None:
    """Disable the endpoint that has just failed with this delivery; nothing if somebody else has.

    Its other messages fail by themselves once they are claimed.
    """
    if not endpoints.disable(conn, endpoint.endpoint_id, reason=reason, now_s=now_s):
        return
    log.error("endpoint disabled", endpoint=endpoint.endpoint_id, reason=reason)
    for project in _projects(conn, delivery, endpoint):
        _note(conn, endpoint, project, reason, now_s)
        _tell(conn, endpoint, _notice(desk, endpoint, project, reason, now_s), now_s)


def _projects(conn: Connection, delivery: Delivery, endpoint: Endpoint) -> list[str]:
    """Whose it is: that of the settings is everybody's."""
    if endpoint.project is not None:
        return [endpoint.project]
    of_it = DEFAULT_PROJECT if delivery.job_id is None else project_of(delivery.job_id)
    return sorted({of_it, *projects.names(conn)})


def _note(conn: Connection, endpoint: Endpoint, project: str, reason: str, now_s: float) -> None:
    audit.add(
        conn,
        project=project,
        at_s=now_s,
        actor=ACTOR,
        action="endpoint.disable",
        object_kind="endpoint",
        object_id=endpoint.endpoint_id,
        detail={"name": endpoint.name, "reason": reason},
    )


def _tell(conn: Connection, endpoint: Endpoint, notice: Notice, now_s: float) -> None:
    for other in endpoints.for_project(conn, notice.project):
        if other.is_enabled and other.endpoint_id != endpoint.endpoint_id:
            outbox.add(
                conn,
                endpoint_id=other.endpoint_id,
                notice_id=notice.notice_id,
                job_id=None,
                rule=None,
                kind=notice.kind,
                message=render(notice, other),
                fingerprints=[],
                now_s=now_s,
                project=notice.project,
            )


def _notice(desk: Desk, endpoint: Endpoint, project: str, reason: str, now_s: float) -> Notice:
    key = f"endpoint-disabled:{endpoint.endpoint_id}:{now_s:.3f}"
    base = None if desk.base_url is None else desk.base_url.rstrip("/")
    again = (
        "Paceline's environment names it: correct its address there"
        if endpoint.endpoint_id == OF_SETTINGS
        else "Correct it and enable it again on the page of receivers"
    )
    return Notice(
        notice_id=hashlib.sha256(key.encode()).hexdigest()[:32],
        kind="notifier-unhealthy",
        group_key=f'{{}}:{{endpoint="{endpoint.endpoint_id}", project="{project}"}}',
        project=project,
        job=None,
        job_name=None,
        rule=None,
        severity="critical",
        at_s=now_s,
        sentence=f"The endpoint {endpoint.name} gets no more alerts: {reason}.",
        sub=f"{again}; until then, whoever relies on it hears nothing.",
        page_url=None if base is None else f"{base}/alerts/receivers",
        base_url=desk.base_url,
        group_labels={"endpoint": endpoint.endpoint_id, "project": project},
    )
