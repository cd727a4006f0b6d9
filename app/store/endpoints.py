"""Receivers of alerts: what each project wants told to whom, and how each of them fares.

Secrets and headers are in a column of their own, which `listed` never reads.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import Connection, delete, func, or_, select
from sqlalchemy import update as update_rows

from app.alerts.breaker import next_probe_s
from app.alerts.endpoint import OF_SETTINGS, Endpoint
from app.errors import EndpointNotFound
from app.store.alert_tables import endpoints
from app.store.endpoint_limits import check_pushes, check_room
from app.store.endpoint_rows import COLUMNS, endpoint_of, row_of
from app.store.texts import clipped
from app.store.upsert import insert

_MAX_DETAIL = 500


@dataclass(frozen=True, slots=True)
class Health:
    """How an endpoint fares; moments are Unix seconds.

    `failures` in a row since `failing_since_s`; nothing is sent before `probe_at_s`, nor after it
    was disabled at `disabled_at_s`. `last_detail` is what the last attempt that failed met.
    """

    failures: int = 0
    failing_since_s: float | None = None
    probe_at_s: float | None = None
    disabled_at_s: float | None = None
    disabled_reason: str | None = None
    last_ok_s: float | None = None
    last_detail: str | None = None


_HEALTH = tuple(endpoints.c[each.name] for each in fields(Health))
# With another of these it is not the receiver any more that failed.
_TOLD = (endpoints.c.is_enabled, endpoints.c.url, endpoints.c.secrets)
_HEALTHY: dict[str, Any] = {
    "failures": 0,
    "failing_since_s": None,
    "probe_at_s": None,
    "disabled_at_s": None,
    "disabled_reason": None,
}


def add(conn: Connection, endpoint: Endpoint) -> None:
    """Tell this endpoint from now on.

    Raises:
        InvalidRequest: it has longer texts, or more of something, than it may.
        Conflict: the project has as many endpoints as it may, or of its format.
    """
    check_room(conn, endpoint)
    conn.execute(endpoints.insert().values(row_of(endpoint) | {"failures": 0}))


def update(conn: Connection, endpoint: Endpoint) -> bool:
    """Go by this from now on; whether it is tried as if it had never failed.

    So is one that is enabled again, or has another address or secret.

    Raises:
        InvalidRequest, Conflict: as `add` does.
        EndpointNotFound: its project has none of this id that the API made.
    """
    check_pushes(conn, endpoint)
    is_own = endpoints.c.project == endpoint.project
    mine = (endpoints.c.endpoint_id == endpoint.endpoint_id, is_own)
    before = conn.execute(select(*_TOLD).where(*mine)).one_or_none()
    if before is None:
        raise EndpointNotFound(endpoint.endpoint_id)
    values = row_of(endpoint)
    is_same = all(getattr(before, column.name) == values[column.name] for column in _TOLD)
    is_anew = endpoint.is_enabled and not is_same
    values |= _HEALTHY if is_anew else {}
    conn.execute(update_rows(endpoints).where(*mine).values(values))
    return is_anew


def remove(conn: Connection, project: str, endpoint_id: str) -> None:
    """Tell it nothing more; raises EndpointNotFound as `update` does."""
    mine = (endpoints.c.endpoint_id == endpoint_id, endpoints.c.project == project)
    if not conn.execute(delete(endpoints).where(*mine)).rowcount:
        raise EndpointNotFound(endpoint_id)


def get(conn: Connection, project: str, endpoint_id: str, *, is_locked: bool = False) -> Endpoint:
    """An endpoint with its secrets: one of the project's, or the one that all projects have.

    One that is to be written as it was read, but for a change, `is_locked` until then.

    Raises:
        EndpointNotFound: there is no such endpoint.
    """
    query = select(*COLUMNS, endpoints.c.secrets).where(endpoints.c.endpoint_id == endpoint_id)
    query = query.where(_is_of(project))
    row = conn.execute(query.with_for_update() if is_locked else query).one_or_none()
    if row is None:
        raise EndpointNotFound(endpoint_id)
    return endpoint_of(row)


def listed(conn: Connection, project: str) -> list[Endpoint]:
    """The same endpoints as `for_project`, without secrets and headers."""
    query = select(*COLUMNS).where(_is_of(project)).order_by(endpoints.c.endpoint_id)
    return [endpoint_of(row) for row in conn.execute(query)]


def for_project(conn: Connection, project: str) -> list[Endpoint]:
    """All endpoints of a project with their secrets, the one that all projects have among them."""
    query = select(*COLUMNS, endpoints.c.secrets).where(_is_of(project))
    return [endpoint_of(row) for row in conn.execute(query.order_by(endpoints.c.endpoint_id))]


def of_ids(conn: Connection, endpoint_ids: Sequence[str]) -> dict[str, Endpoint]:
    """Those of these endpoints that there are, of whatever project, with their secrets."""
    query = select(*COLUMNS, endpoints.c.secrets)
    rows = conn.execute(query.where(endpoints.c.endpoint_id.in_(sorted(set(endpoint_ids)))))
    return {row.endpoint_id: endpoint_of(row) for row in rows}


def put_settings_endpoint(conn: Connection, endpoint: Endpoint | None) -> None:
    """The endpoint of the environment is this one from now on, or none.

    How it fares is kept while its address and secret stay the same.
    """
    mine = endpoints.c.endpoint_id == OF_SETTINGS
    if endpoint is None:
        conn.execute(delete(endpoints).where(mine))
        return
    values = row_of(endpoint) | {"endpoint_id": OF_SETTINGS, "project": None}
    known = conn.execute(select(*_TOLD).where(mine)).one_or_none()
    anew = _HEALTHY
    if known and (known.url, known.secrets) == (values["url"], values["secrets"]):
        anew = {"is_enabled": known.is_enabled}
    statement = insert(conn, endpoints).values(values | {"failures": 0})
    statement = statement.on_conflict_do_update(index_elements=["endpoint_id"], set_=values | anew)
    conn.execute(statement)


def health(conn: Connection, endpoint_ids: Sequence[str]) -> dict[str, Health]:
    """How these endpoints fare, those that there are."""
    query = select(endpoints.c.endpoint_id, *_HEALTH)
    rows = conn.execute(query.where(endpoints.c.endpoint_id.in_(sorted(set(endpoint_ids)))))
    return {endpoint_id: Health(*rest) for endpoint_id, *rest in rows}


def succeeded(conn: Connection, endpoint_id: str, now_s: float) -> None:
    """The endpoint took a message; an endpoint that was disabled meanwhile stays so."""
    values = {"failures": 0, "failing_since_s": None, "probe_at_s": None, "last_ok_s": now_s}
    conn.execute(_one(endpoint_id).values(values))


def failed(conn: Connection, endpoint_id: str, *, detail: str, now_s: float) -> Health:
    """The endpoint did not take a message; how it fares now, at its best of one that is gone."""
    failure = _one(endpoint_id).values(
        failures=endpoints.c.failures + 1,
        failing_since_s=func.coalesce(endpoints.c.failing_since_s, now_s),
        last_detail=clipped(detail, _MAX_DETAIL),
    )
    row = conn.execute(failure.returning(*_HEALTH)).one_or_none()
    if row is None:
        return Health()
    probe_at_s = next_probe_s(row.failures, now_s)
    conn.execute(_one(endpoint_id).values(probe_at_s=probe_at_s))
    return Health(**{**row._mapping, "probe_at_s": probe_at_s})


def disable(conn: Connection, endpoint_id: str, *, reason: str, now_s: float) -> bool:
    """Tell it nothing until a person enables it again; whether it was enabled before."""
    why = clipped(reason, _MAX_DETAIL)
    values = {"is_enabled": False, "disabled_at_s": now_s, "disabled_reason": why}
    enabled = _one(endpoint_id).where(endpoints.c.is_enabled)
    return bool(conn.execute(enabled.values(values)).rowcount)


def enable(conn: Connection, endpoint_id: str) -> None:
    """Tell it again, as if it had never failed."""
    conn.execute(_one(endpoint_id).values(_HEALTHY | {"is_enabled": True}))


def probe(conn: Connection, endpoint_id: str, *, at_s: float) -> None:
    """One that rests gets its next message at this moment already."""
    conn.execute(_one(endpoint_id).where(endpoints.c.probe_at_s > at_s).values(probe_at_s=at_s))


def _one(endpoint_id: str) -> Any:
    return update_rows(endpoints).where(endpoints.c.endpoint_id == endpoint_id)


def _is_of(project: str) -> Any:
    return or_(endpoints.c.project == project, endpoints.c.project.is_(None))
