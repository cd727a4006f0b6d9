"""Receivers: create, change, remove, test and re-enable them, and rotate secrets.

Every change is audited. A change that may match more alerts marks the receiver for the consumers.
"""

import secrets
from collections.abc import Mapping
from dataclasses import replace

from app.alerts.formats.registry import render_notice
from app.alerts.notice import Notice
from app.alerts.receiver import SETTINGS_RECEIVER_ID, Receiver, public_address
from app.alerts.sending import SIGNED_FORMATS, Transport, mail_route, send, why_not_reached
from app.api.http.fields import ResponseModel, timestamp_or_none
from app.api.http.limits import check_manual_send
from app.api.http.principal import Principal
from app.api.routes.alerts.receiver_schemas import (
    CreatedReceiverOut,
    ReceiverChange,
    ReceiverDetailOut,
    ReceiverId,
    ReceiverIn,
    ReceiverOut,
    ReceiverTestOut,
    RotatedSecretOut,
    is_address_hidden,
    new_secret,
    receiver_audit,
    receiver_changes,
)
from app.api.routes.audit import write_audit
from app.api.routes.dependencies import ApiRouter, CallerDep, ServiceDep, refusals
from app.api.service.service import Service
from app.errors import Conflict, Forbidden, NoConsumer, SecretsLocked
from app.store import shards
from app.store.alerting import deliveries, notifications, outbox, receivers
from app.store.alerting.outbox import pull_forward
from app.store.database import Connection

# Fields that decide which alerts go where.
_ROUTING_FIELDS = frozenset({"matchers", "min_severity", "is_enabled", "url"})


def receiver_out(conn: Connection, caller: Principal, endpoint_id: str) -> ReceiverDetailOut:
    """A receiver that the caller may see, for an answer."""
    receiver = receivers.get(conn, caller.project, endpoint_id)
    health = receivers.health(conn, [endpoint_id]).get(endpoint_id)
    return ReceiverDetailOut(
        **dict(ReceiverOut.of(receiver, health, deliveries.counts(conn, caller.project), caller)),
        header_names=sorted(receiver.headers),
        has_secret=bool(receiver.secrets),
    )


def own_receiver(conn: Connection, caller: Principal, endpoint_id: str) -> Receiver:
    """A receiver that the caller may change, locked until the transaction ends.

    Raises:
        Conflict: it is the receiver of the settings.
        ReceiverNotFound: there is none.
    """
    if endpoint_id == SETTINGS_RECEIVER_ID:
        raise Conflict("only the operator changes the receiver of PACELINE_WEBHOOK_URL")
    return receivers.get(conn, caller.project, endpoint_id, for_update=True)


def testable_receiver(conn: Connection, caller: Principal, endpoint_id: str) -> Receiver:
    """A receiver that the caller may test or re-enable.

    Raises:
        Forbidden: it is the receiver of the settings, which all projects share.
        ReceiverNotFound: there is none.
    """
    receiver = receivers.get(conn, caller.project, endpoint_id)
    if is_address_hidden(endpoint_id, caller):
        raise Forbidden("the receiver of PACELINE_WEBHOOK_URL needs the operator's token")
    return receiver


def audit_receiver(
    conn: Connection,
    service: Service,
    caller: Principal,
    action: str,
    receiver: Receiver,
    **detail: object,
) -> None:
    """Audit an action on a receiver, by its name and host.

    Of the receiver of the settings without host: the audit is the project's, the address the
    operator's. Marks the receiver if it may now match more alerts.
    """
    entry = {"name": receiver.name} | detail
    if receiver.endpoint_id != SETTINGS_RECEIVER_ID:
        entry["address"] = public_address(receiver.format, receiver.url)
    now_s = service.database_time(conn)
    write_audit(conn, caller, f"endpoint.{action}", receiver.endpoint_id, now_s=now_s, **entry)
    if _may_want_more(action, receiver, detail.get("changes")):
        notifications.mark_new_receiver(conn, receiver.endpoint_id, now_s=now_s)
    notifications.wake_project(conn, caller.project, at_s=now_s)


def _may_want_more(action: str, before: Receiver, changes: object) -> bool:
    """Whether it may now match alerts that fired before."""
    if action == "change":
        return isinstance(changes, Mapping) and not _ROUTING_FIELDS.isdisjoint(changes)
    return action == "create" or (action == "enable" and not before.is_enabled)


def _test_notice(service: Service, caller: Principal, receiver: Receiver, at_s: float) -> Notice:
    base_url = service.public_settings.pages_url
    return Notice(
        notice_id=f"test-{secrets.token_hex(12)}",
        kind="test",
        group_key=f"test/{receiver.endpoint_id}",
        project=caller.project,
        job=None,
        job_name=None,
        rule=None,
        severity="info",
        at_s=at_s,
        sentence=f"Test notification to the receiver {receiver.name}; nothing is wrong.",
        sub=f"Sent by {caller.name}, for the project {caller.project}.",
        page_url=f"{base_url.rstrip('/')}/alerts",
        base_url=base_url,
    )


router = ApiRouter("alerts")


class ReceiversOut(ResponseModel):
    """All receivers of the project's alerts."""

    items: list[ReceiverOut]


@router.get("/receivers", summary="List receivers of alerts")
def list_receivers(service: ServiceDep, caller: CallerDep) -> ReceiversOut:
    """The project's receivers and the operator's (PACELINE_WEBHOOK_URL), with their health.

    Secrets are not shown.
    """
    with service.store.read() as conn:
        shown = receivers.without_secrets(conn, caller.project)
        health = receivers.health(conn, [receiver.endpoint_id for receiver in shown])
        counts = deliveries.counts(conn, caller.project)
    items = [
        ReceiverOut.of(receiver, health.get(receiver.endpoint_id), counts, caller)
        for receiver in shown
    ]
    return ReceiversOut(items=items)


@router.get("/receivers/{receiver_id}", summary="Get a receiver")
def get_receiver(
    receiver_id: ReceiverId, service: ServiceDep, caller: CallerDep
) -> ReceiverDetailOut:
    """The receiver and its health, without secrets."""
    with service.store.read() as conn:
        return receiver_out(conn, caller, receiver_id)


@router.post(
    "/receivers", summary="Create a receiver of alerts", status_code=201, responses=refusals(409)
)
def create_receiver(
    given: ReceiverIn, service: ServiceDep, caller: CallerDep
) -> CreatedReceiverOut:
    """Alerts that are already firing are sent to it, too. The signing secret is shown only here.

    Its address is connected to once, without a message: `health` says if that failed.
    """
    receiver = given.receiver(caller.project, service.guard, service.mail)
    why = why_not_reached(service.guard, receiver)
    with service.store.write() as conn:
        receivers.add(conn, receiver)
        receivers.note_not_reached(conn, receiver.endpoint_id, why)
        audit_receiver(conn, service, caller, "create", receiver, **receiver_audit(receiver))
        known = receiver_out(conn, caller, receiver.endpoint_id)
    secret = receiver.secrets[0] if receiver.format in SIGNED_FORMATS else None
    return CreatedReceiverOut(secret=secret, **dict(known))


@router.patch("/receivers/{receiver_id}", summary="Change a receiver", responses=refusals(409))
def change_receiver(
    receiver_id: ReceiverId, change: ReceiverChange, service: ServiceDep, caller: CallerDep
) -> ReceiverDetailOut:
    """Omitted fields stay unchanged. Queued messages go to the new address at once.

    A new address, secret or header resets the count of failures. A new address is connected to
    once, as that of a new receiver.
    """
    is_moved, why = _why_not_reached_anew(service, caller, receiver_id, change)
    with service.store.write() as conn:
        known = own_receiver(conn, caller, receiver_id)
        receiver = change.applied(known, service.guard, service.mail)
        is_anew = receivers.update(conn, receiver)
        if is_moved:
            receivers.note_not_reached(conn, receiver_id, why)
        if is_anew:
            pull_forward(conn, receiver_id, now_s=service.database_time(conn), after_s=0.0)
        changes = receiver_changes(known, receiver)
        audit_receiver(conn, service, caller, "change", receiver, changes=changes)
        return receiver_out(conn, caller, receiver_id)


def _why_not_reached_anew(
    service: Service, caller: Principal, receiver_id: str, change: ReceiverChange
) -> tuple[bool, str | None]:
    """Whether the change moves the receiver, and why it is not reached there.

    Before the transaction of the change, which must not last as long as a connection.
    """
    if change.url is None or receiver_id == SETTINGS_RECEIVER_ID:
        return False, None
    with service.store.read() as conn:
        known = receivers.get(conn, caller.project, receiver_id)
    receiver = change.applied(known, service.guard, service.mail)
    if receiver.url == known.url:
        return False, None
    return True, why_not_reached(service.guard, receiver)


@router.delete(
    "/receivers/{receiver_id}",
    summary="Delete a receiver",
    status_code=204,
    responses=refusals(409),
)
def remove_receiver(receiver_id: ReceiverId, service: ServiceDep, caller: CallerDep) -> None:
    """The receiver gets no more messages; its past messages stay in the list of deliveries."""
    with service.store.write() as conn:
        receiver = own_receiver(conn, caller, receiver_id)
        receivers.remove(conn, caller.project, receiver_id)
        audit_receiver(conn, service, caller, "remove", receiver)


OLD_SECRET_VALID_S = 86_400.0


class TestDeliveryOut(ResponseModel):
    """The queued message; GET its delivery for the result."""

    delivery_id: str


@router.post(
    "/receivers/{receiver_id}/rotate",
    summary="Rotate a receiver's signing secret",
    responses=refusals(409),
)
def rotate_receiver_secret(
    receiver_id: ReceiverId, service: ServiceDep, caller: CallerDep
) -> RotatedSecretOut:
    """For a day, messages are signed with both the old and the new secret."""
    with service.store.write() as conn:
        now_s = service.database_time(conn)
        known = own_receiver(conn, caller, receiver_id)
        if known.locked is not None:
            raise SecretsLocked(known.locked)
        if known.format not in SIGNED_FORMATS:
            raise Conflict(f"format {known.format} does not sign: change its secret by PATCH")
        old = list(known.secrets_at(now_s)[:1])
        until_s = now_s + OLD_SECRET_VALID_S if old else None
        new = replace(known, secrets=(new_secret(), *old), old_secret_until_s=until_s)
        receivers.update(conn, new)
        audit_receiver(conn, service, caller, "rotate", new)
    return RotatedSecretOut(secret=new.secrets[0], old_is_good_until=timestamp_or_none(until_s))


@router.post(
    "/receivers/{receiver_id}/enable", summary="Re-enable a receiver", responses=refusals(409)
)
def enable_receiver(
    receiver_id: ReceiverId, service: ServiceDep, caller: CallerDep
) -> ReceiverDetailOut:
    """Re-enables a receiver that is disabled, resting or off, and resets its count of failures.

    Queued messages are sent at once. The operator's receiver needs the operator's token.
    """
    with service.store.write() as conn:
        receiver = testable_receiver(conn, caller, receiver_id)
        receivers.enable(conn, receiver_id)
        pull_forward(conn, receiver_id, now_s=service.database_time(conn), after_s=0.0)
        audit_receiver(conn, service, caller, "enable", receiver)
        return receiver_out(conn, caller, receiver_id)


@router.post(
    "/receivers/{receiver_id}/test",
    summary="Send a test message",
    status_code=202,
    responses=refusals(409),
)
def test_receiver(
    receiver_id: ReceiverId, service: ServiceDep, caller: CallerDep
) -> TestDeliveryOut:
    """Queues a test message; the delivery with the returned id has the result.

    A resting receiver gets only this message. At most ten tests and replays per project in ten
    minutes. The operator's receiver needs the operator's token.
    """
    with service.store.write() as conn:
        now_s = service.database_time(conn)
        receiver = testable_receiver(conn, caller, receiver_id)
        if receiver.locked is not None:
            raise SecretsLocked(receiver.locked)
        if receiver.format == "email":
            mail_route(service.mail, receiver)
        check_manual_send(conn, caller.project, now_s)
        if not receiver.is_enabled:
            raise Conflict("the receiver is disabled: POST to .../enable first")
        if not shards.count_live(conn, now_s=now_s):
            raise NoConsumer("no consumer is alive, and only consumers send: start one")
        notice = _test_notice(service, caller, receiver, now_s)
        message = render_notice(notice, receiver)
        delivery_id = outbox.add(conn, notice, message, receiver_id, job_id=None)
        receivers.probe_at(conn, receiver_id, at_s=now_s)
        audit_receiver(conn, service, caller, "test", receiver)
    return TestDeliveryOut(delivery_id=str(delivery_id))


@router.post(
    "/receiver-tests",
    summary="Send a test message to a receiver before it is created",
    responses=refusals(404, 409),
)
def test_new_receiver(given: ReceiverIn, service: ServiceDep, caller: CallerDep) -> ReceiverTestOut:
    """Sends one message with these settings, at once, and creates nothing.

    It counts as a test: at most ten in ten minutes. Formats that sign use a secret of this message
    alone, so a receiver that checks signatures refuses it.
    """
    return _sent_test(service, caller, given.receiver(caller.project, service.guard, service.mail))


@router.post(
    "/receivers/{receiver_id}/test-change",
    summary="Send a test message with changes that are not saved",
    responses=refusals(409),
)
def test_receiver_change(
    receiver_id: ReceiverId, change: ReceiverChange, service: ServiceDep, caller: CallerDep
) -> ReceiverTestOut:
    """Sends one message to the receiver as it would be with the change, and changes nothing.

    It counts as a test: at most ten in ten minutes.
    """
    if receiver_id == SETTINGS_RECEIVER_ID:
        raise Conflict("only the operator changes the receiver of PACELINE_WEBHOOK_URL")
    with service.store.read() as conn:
        known = receivers.get(conn, caller.project, receiver_id)
    return _sent_test(service, caller, change.applied(known, service.guard, service.mail))


def _sent_test(service: Service, caller: Principal, receiver: Receiver) -> ReceiverTestOut:
    with service.test_sends.slot():
        with service.store.write() as conn:
            now_s = service.database_time(conn)
            check_manual_send(conn, caller.project, now_s)
            address = public_address(receiver.format, receiver.url)
            entry = {"name": receiver.name, "address": address, "is_saved": False}
            write_audit(conn, caller, "endpoint.test", receiver.endpoint_id, now_s=now_s, **entry)
        notice = _test_notice(service, caller, receiver, now_s)
        transport = Transport(service.guard, service.mail)
        result = send(transport, receiver, render_notice(notice, receiver), notice.notice_id, now_s)
    return ReceiverTestOut.model_validate(result)
