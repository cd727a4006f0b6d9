"""What is done with an endpoint: a new secret, another try, a test message."""

from dataclasses import replace

from fastapi import APIRouter

from app.alerts.formats.registry import render
from app.alerts.mailing import way
from app.api.deps import OF_BODIES, CallerDep, Responses, ServiceDep, refusals
from app.api.endpoint_access import note_deed, one, own, tried
from app.api.endpoint_body import SIGNED, new_secret
from app.api.endpoint_out import EndpointId, OneEndpointOut, RotatedOut
from app.api.fields import Answer, timestamp_or_none
from app.api.sending_limit import check_by_hand
from app.api.trial_message import trial
from app.errors import Conflict, NoConsumer
from app.store import endpoints, outbox, shards
from app.store.outbox_order import pull_forward

router = APIRouter(tags=["alerts"])

OLD_SECRET_GOOD_S = 86_400.0
_CHANGED: Responses = refusals(404, 409, *OF_BODIES)


class TestedOut(Answer):
    """The message on its way: its delivery says how that went."""

    delivery_id: str


@router.post(
    "/endpoints/{endpoint_id}/rotate",
    operation_id="rotate_endpoint_secret",
    summary="Make a new signing secret",
    responses=_CHANGED,
)
def rotate_endpoint_secret(
    endpoint_id: EndpointId, service: ServiceDep, caller: CallerDep
) -> RotatedOut:
    """For a day messages are signed with both, so that the receiver may take its time."""
    with service.store.write() as conn:
        now_s = service.database_time(conn)
        known = own(conn, caller, endpoint_id)
        if known.format not in SIGNED:
            raise Conflict(f"format {known.format} signs nothing: change its secret by PATCH")
        old = list(known.secrets_at(now_s)[:1])
        until_s = now_s + OLD_SECRET_GOOD_S if old else None
        new = replace(known, secrets=(new_secret(), *old), old_secret_until_s=until_s)
        endpoints.update(conn, new)
        note_deed(conn, service, caller, "rotate", new)
    return RotatedOut(secret=new.secrets[0], old_is_good_until=timestamp_or_none(until_s))


@router.post(
    "/endpoints/{endpoint_id}/enable",
    operation_id="enable_endpoint",
    summary="Try an endpoint again",
    responses=_CHANGED,
)
def enable_endpoint(
    endpoint_id: EndpointId, service: ServiceDep, caller: CallerDep
) -> OneEndpointOut:
    """One that was given up, rests, or was switched off: it is tried as if it had never failed.

    What waits for it is sent at once. That of the settings takes the operator's own token.
    """
    with service.store.write() as conn:
        endpoint = tried(conn, caller, endpoint_id)
        endpoints.enable(conn, endpoint_id)
        pull_forward(conn, endpoint_id, now_s=service.database_time(conn), after_s=0.0)
        note_deed(conn, service, caller, "enable", endpoint)
        return one(conn, caller, endpoint_id)


@router.post(
    "/endpoints/{endpoint_id}/test",
    operation_id="test_endpoint",
    summary="Send a test message",
    status_code=202,
    responses=_CHANGED,
)
def test_endpoint(endpoint_id: EndpointId, service: ServiceDep, caller: CallerDep) -> TestedOut:
    """It goes the way of all messages, through a consumer; its delivery says how that went.

    At an endpoint that rests it is the one message that is tried now. A project may send ten in ten
    minutes, replays included; that of the settings takes the operator's own token.
    """
    with service.store.write() as conn:
        now_s = service.database_time(conn)
        endpoint = tried(conn, caller, endpoint_id)
        if endpoint.format == "email":
            way(service.mail, endpoint)
        check_by_hand(conn, caller.project, now_s)
        if not endpoint.is_enabled:
            raise Conflict("it is disabled: POST to .../enable first")
        if not shards.count_live(conn, now_s=now_s):
            raise NoConsumer("no consumer is alive, and only consumers send: start one")
        base_url = service.in_force.public_url
        notice = trial(endpoint, caller.project, by=caller.name, base_url=base_url, at_s=now_s)
        delivery_id = outbox.add(
            conn,
            endpoint_id=endpoint_id,
            notice_id=notice.notice_id,
            job_id=None,
            rule=None,
            kind="test",
            message=render(notice, endpoint),
            fingerprints=(),
            now_s=now_s,
            project=caller.project,
        )
        endpoints.probe(conn, endpoint_id, at_s=now_s)
        note_deed(conn, service, caller, "test", endpoint)
    return TestedOut(delivery_id=str(delivery_id))
