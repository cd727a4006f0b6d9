"""Endpoints: where alerts are sent, and how that goes."""

from fastapi import APIRouter

from app.api.deps import OF_BODIES, CallerDep, Responses, ServiceDep, refusals
from app.api.endpoint_access import note_deed, one, own
from app.api.endpoint_body import SIGNED, EndpointChange, EndpointIn
from app.api.endpoint_deeds import endpoint_changes, endpoint_said
from app.api.endpoint_out import CreatedEndpointOut, EndpointId, EndpointOut, OneEndpointOut, shown
from app.api.fields import Answer
from app.store import deliveries, endpoints
from app.store.outbox_order import pull_forward

router = APIRouter(tags=["alerts"])

_CHANGED: Responses = refusals(404, 409, *OF_BODIES)


class EndpointsOut(Answer):
    """All receivers of the project's alerts."""

    items: list[EndpointOut]


@router.get(
    "/endpoints",
    operation_id="list_endpoints",
    summary="List where alerts are sent",
    responses=refusals(),
)
def list_endpoints(service: ServiceDep, caller: CallerDep) -> EndpointsOut:
    """The project's own, and that of PACELINE_WEBHOOK_URL; how they fare, and no secret."""
    with service.store.read() as conn:
        found = endpoints.listed(conn, caller.project)
        health = endpoints.health(conn, [each.endpoint_id for each in found])
        counts = deliveries.counts(conn, caller.project)
    items = [
        EndpointOut(
            **shown(
                each,
                health.get(each.endpoint_id),
                [count for count in counts if count.endpoint_id == each.endpoint_id],
                caller,
            )
        )
        for each in found
    ]
    return EndpointsOut(items=items)


@router.get(
    "/endpoints/{endpoint_id}",
    operation_id="get_endpoint",
    summary="See an endpoint",
    responses=refusals(404),
)
def get_endpoint(endpoint_id: EndpointId, service: ServiceDep, caller: CallerDep) -> OneEndpointOut:
    """How it fares, and no secret."""
    with service.store.read() as conn:
        return one(conn, caller, endpoint_id)


@router.post(
    "/endpoints",
    operation_id="create_endpoint",
    summary="Tell somebody of alerts",
    status_code=201,
    responses=refusals(409, *OF_BODIES),
)
def create_endpoint(
    given: EndpointIn, service: ServiceDep, caller: CallerDep
) -> CreatedEndpointOut:
    """Of what fires, now too. The secret that signs messages is in this answer, and no other."""
    endpoint = given.endpoint(caller.project, service.guard, service.mail)
    with service.store.write() as conn:
        endpoints.add(conn, endpoint)
        note_deed(conn, service, caller, "create", endpoint, **endpoint_said(endpoint))
        known = one(conn, caller, endpoint.endpoint_id)
    secret = endpoint.secrets[0] if endpoint.format in SIGNED else None
    return CreatedEndpointOut(secret=secret, **dict(known))


@router.patch(
    "/endpoints/{endpoint_id}",
    operation_id="change_endpoint",
    summary="Change an endpoint",
    responses=_CHANGED,
)
def change_endpoint(
    endpoint_id: EndpointId, change: EndpointChange, service: ServiceDep, caller: CallerDep
) -> OneEndpointOut:
    """What is left out stays. Messages that wait go to the new address, and at once.

    With another address, secret or header it is tried as if it had never failed.
    """
    with service.store.write() as conn:
        known = own(conn, caller, endpoint_id)
        endpoint = change.applied(known, service.guard, service.mail)
        if endpoints.update(conn, endpoint):
            pull_forward(conn, endpoint_id, now_s=service.database_time(conn), after_s=0.0)
        changes = endpoint_changes(known, endpoint)
        note_deed(conn, service, caller, "change", endpoint, changes=changes)
        return one(conn, caller, endpoint_id)


@router.delete(
    "/endpoints/{endpoint_id}",
    operation_id="remove_endpoint",
    summary="Remove an endpoint",
    status_code=204,
    responses=_CHANGED,
)
def remove_endpoint(endpoint_id: EndpointId, service: ServiceDep, caller: CallerDep) -> None:
    """It is told nothing more; what was sent to it stays in the list of deliveries."""
    with service.store.write() as conn:
        endpoint = own(conn, caller, endpoint_id)
        endpoints.remove(conn, caller.project, endpoint_id)
        note_deed(conn, service, caller, "remove", endpoint)
