"""Alerts, receivers and messages as a consumer writes them, for tests of the API."""

from typing import Any

from app.alerts.alert import AlertState
from app.store import shards
from app.store.alerting import alerts, outbox, receivers
from app.trace.job import job_key
from tests.api.server import NOW_S, Api
from tests.store import factories

SECRET = "whsec_" + "c2VjcmV0" * 4
SLOW = factories.SLOW


def fire(
    api: Api, job: str = "job-a", rule: str = "slowdown", subject: str = "", **given: Any
) -> AlertState:
    """Save a firing alert of a job (or one in `phase`) with its transition."""
    key = job_key("default", job)
    labels = {"job": job, "rule": rule, "severity": "warning"}
    state = factories.alert(key, rule, subject, **{"detail": SLOW, "labels": labels} | given)
    with api.store.write() as conn:
        alerts.save(conn, [state])
        transition = factories.event(key, rule, subject, kind=state.phase, detail=SLOW, at_s=NOW_S)
        alerts.add_event(conn, transition)
    return state


def resolve(api: Api, state: AlertState) -> None:
    """Resolve the alert."""
    transition = factories.event(
        state.job_id, state.rule, state.subject, kind="resolved", at_s=NOW_S + 9
    )
    with api.store.write() as conn:
        alerts.remove(conn, [state.fingerprint])
        alerts.add_event(conn, transition)


def add_receiver(api: Api, endpoint_id: str = "ep_1", **given: Any) -> str:
    """Add a receiver of the project's alerts."""
    made = factories.webhook_receiver(endpoint_id, **{"secrets": (SECRET,)} | given)
    with api.store.write() as conn:
        receivers.add(conn, made)
    return endpoint_id


def send(api: Api, endpoint_id: str = "ep_1", job: str | None = "job-a", **given: Any) -> str:
    """Add a due message; return its id."""
    values: dict[str, Any] = {
        "notice_id": f"notice-{job}-{len(given)}",
        "rule": "slowdown",
        "kind": "firing",
        "fingerprints": ["0123456789abcdef"],
        "now_s": NOW_S,
        "job_id": None if job is None else job_key("default", job),
    }
    with api.store.write() as conn:
        delivery_id = factories.add_message(conn, endpoint_id, **values | given)
    assert delivery_id is not None
    return str(delivery_id)


def attempt(
    api: Api, *, detail: str | None = None, next_at_s: float | None = None, now_s: float = NOW_S
) -> None:
    """Deliver all due messages, or fail them with this detail."""
    with api.store.write() as conn:
        for each in outbox.claim(conn, now_s=now_s, lease_s=30.0, limit=10):
            if detail is None:
                outbox.mark_delivered(conn, each, now_s=now_s)
            else:
                outbox.mark_failed(conn, each, detail=detail, next_at_s=next_at_s, now_s=now_s)


def add_consumer(api: Api) -> None:
    """Record a live consumer."""
    with api.store.write() as conn:
        shards.heartbeat(conn, "consumer-0", now_s=api.clock(), lease_s=15)
