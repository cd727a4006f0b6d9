"""An endpoint of the caller's: to be seen, to be changed, and what was done to it."""

from collections.abc import Mapping

from app.alerts.endpoint import OF_SETTINGS, Endpoint
from app.api.audited import note
from app.api.endpoint_out import OneEndpointOut, address, is_hidden, named_secrets, shown
from app.api.principal import Principal
from app.api.service import Service
from app.errors import Conflict, Forbidden
from app.store import alert_groups, deliveries, endpoints, newcomers
from app.store.engine import Connection

# What says which alerts it wants, and who gets them.
_WANTS = frozenset({"matchers", "min_severity", "is_enabled", "url"})


def one(conn: Connection, caller: Principal, endpoint_id: str) -> OneEndpointOut:
    """An endpoint that the caller may see, as the API says it."""
    endpoint = endpoints.get(conn, caller.project, endpoint_id)
    health = endpoints.health(conn, [endpoint_id]).get(endpoint_id)
    counts = deliveries.counts(conn, caller.project)
    of_it = [count for count in counts if count.endpoint_id == endpoint_id]
    return OneEndpointOut(**shown(endpoint, health, of_it, caller), **named_secrets(endpoint))


def own(conn: Connection, caller: Principal, endpoint_id: str) -> Endpoint:
    """An endpoint that the caller may change; nobody else changes it meanwhile.

    Raises:
        Conflict: it is that of the settings.
        EndpointNotFound: there is none.
    """
    if endpoint_id == OF_SETTINGS:
        raise Conflict("it is that of PACELINE_WEBHOOK_URL, which only its operator changes")
    return endpoints.get(conn, caller.project, endpoint_id, is_locked=True)


def tried(conn: Connection, caller: Principal, endpoint_id: str) -> Endpoint:
    """An endpoint that the caller may test, or try again.

    Raises:
        Forbidden: it is that of the settings, which is every project's.
        EndpointNotFound: there is none.
    """
    endpoint = endpoints.get(conn, caller.project, endpoint_id)
    if is_hidden(endpoint_id, caller):
        raise Forbidden("it is that of PACELINE_WEBHOOK_URL: this takes the operator's own token")
    return endpoint


def note_deed(
    conn: Connection,
    service: Service,
    caller: Principal,
    deed: str,
    endpoint: Endpoint,
    **detail: object,
) -> None:
    """Somebody did something to an endpoint, which is told by its name and its host.

    Not by the host of that of the settings: the audit is the project's, the address the operator's.
    What it was not told, and may want now, is looked at again.
    """
    told = {"name": endpoint.name} | detail
    if endpoint.endpoint_id != OF_SETTINGS:
        told["address"] = address(endpoint.format, endpoint.url)
    now_s = service.database_time(conn)
    note(conn, caller, f"endpoint.{deed}", endpoint.endpoint_id, now_s=now_s, **told)
    if _wants_anew(deed, endpoint, detail.get("changes")):
        newcomers.begin(conn, endpoint.endpoint_id, now_s=now_s)
    alert_groups.wake_project(conn, caller.project, at_s=now_s)


def _wants_anew(deed: str, before: Endpoint, changes: object) -> bool:
    """Whether it may want alerts now of which others were told before."""
    if deed == "change":
        return isinstance(changes, Mapping) and not _WANTS.isdisjoint(changes)
    return deed == "create" or (deed == "enable" and not before.is_enabled)
