"""A store with jobs, alerts and receivers in every state, for the tests of /metrics."""

from msgspec import structs

from app.api.service.job_state import JobState
from app.result.brief import brief_of
from app.result.finding import Culprit
from app.store import fleet, hosts, projects, runs, shards, windows
from app.store.alerting import alerts, receivers, service_watches
from app.store.database import Store
from app.trace.job import job_key
from tests.api.server import window_record
from tests.results import finding
from tests.store import factories

CONSUMER = "consumer-0"
FINDING = finding(
    cost=0.15,
    onset_step=0,
    sentence="dp 1, stage 1 on gpu-node-7 is 1.3x slower than its peers",
    culprits=[Culprit(1, 1, "gpu-node-7")],
)


def add_job(
    store: Store,
    job: str,
    *,
    now_s: float,
    project: str = "default",
    slowdown: float = 1.25,
    state: JobState | None = None,
    num_gpus: int = 4,
) -> None:
    """A job with one window; a straggler unless its slowdown or its state says otherwise."""
    key = job_key(project, job)
    record = window_record(slowdown=slowdown)
    result = structs.replace(record.result, findings=(FINDING,) if slowdown > 1.1 else ())
    with store.write() as conn:
        projects.create_if_missing(conn, project, now_s=now_s)
        runs.register(conn, key, factories.registration(name=job, num_gpus=num_gpus), now_s=now_s)
        windows.save(conn, key, record)
        fleet.save_brief(conn, key, 1, 0, brief_of(result, num_gpus=num_gpus))
        hosts.save(conn, key, 1, {(1, 1): "gpu-node-7"})
        runs.note_data(conn, key, last_data_s=now_s, last_step=1, epoch=1)
        if state in ("stalled", "silent"):
            stalled = runs.SilentRanks(stalled_since_s=now_s)
            silence = stalled if state == "stalled" else runs.SilentRanks((3,), (3,), now_s)
            runs.save_silent_ranks(conn, key, 1, silence)
        elif state == "finished":
            runs.end(conn, key, now_s=now_s)


def stock(store: Store, *, now_s: float) -> None:
    """Jobs in two projects, a firing alert, notifications and a disabled receiver."""
    add_job(store, "slow", now_s=now_s)
    add_job(store, "well", slowdown=1.01, now_s=now_s)
    add_job(store, "hung", state="stalled", now_s=now_s)
    add_job(store, "half", state="silent", now_s=now_s)
    add_job(store, "done", state="finished", now_s=now_s)
    add_job(store, "theirs", project="research", slowdown=1.5, now_s=now_s)
    with store.write() as conn:
        alerts.save(conn, [factories.alert("default/slow", severity="critical")])
        receivers.add(conn, factories.webhook_receiver("ep_1"))
        receivers.disable(conn, "ep_1", reason="it answered 410", now_s=now_s)
        runs.count_deliveries(conn, "delivered", 5)
        runs.count_deliveries(conn, "failed", 2)
        shards.heartbeat(conn, CONSUMER, now_s=now_s, lease_s=3600.0)
        number = service_watches.claim_round(conn, now_s=now_s, every_s=300.0, lease_s=60.0)
        assert number is not None
        service_watches.finish_round(
            conn, number, now_s=now_s, took_s=2.0, missing=None, num_shards=4
        )
