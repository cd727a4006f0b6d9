import asyncio
import itertools
import threading

import pytest

from app.api.routes.health import ReadinessCheck, check_readiness, room_check
from app.api.service.status import ServiceStatus, SharedQuery
from app.errors import StoreUnavailable
from app.ingest.queue import Lag
from app.store import as_of, shards
from app.store.as_of import BEHIND_AFTER_S
from app.store.database import Store, is_migrated
from app.store.disk.usage import DiskWatch
from tests.api.server import NOW_S, json_batch, running
from tests.ingest.memory_queue import MemoryQueue

pytestmark = pytest.mark.anyio

NUM_SHARDS = 4


def consume(api, *, num_shards=NUM_SHARDS, lease_until_s=NOW_S + 15):
    """Save heartbeat and leases of a consumer with `num_shards` shards."""
    with api.store.write() as conn:
        shards.heartbeat(conn, "consumer-0", now_s=lease_until_s - 15, lease_s=15)
        for shard in range(num_shards):
            shards.acquire(conn, shard, "consumer-0", now_s=lease_until_s - 15, lease_s=15)


async def readiness(api):
    answer = await api.client.get("/readyz")
    return answer.status_code, answer.json()


async def test_healthy_service_is_ready(api):
    consume(api)
    async with api.anonymous_client() as client:
        assert (await client.get("/healthz")).json() == {"status": "ok"}
        ready = await client.get("/readyz")
    assert ready.status_code == 200
    shown = ready.json()
    assert (shown["status"], shown["degraded"]) == ("ready", [])
    assert {name: check["ok"] for name, check in shown["checks"].items()} == dict.fromkeys(
        ["queue", "room", "store", "consumers", "shards", "backlog", "disk", "durability"], True
    )
    assert shown["checks"]["consumers"]["sentence"] == "1 is alive"


async def test_process_without_a_queue_is_alive_and_not_ready(api):
    api.queue.is_up = False
    assert (await api.client.get("/healthz")).status_code == 200
    ready = await api.client.get("/readyz")
    assert ready.status_code == 503
    assert ready.headers["retry-after"]
    assert "queue" in ready.json()["detail"]
    assert ready.json()["checks"]["store"]["ok"]
    assert "not known" in ready.json()["checks"]["backlog"]["sentence"]
    api.queue.is_up = True
    assert (await api.client.get("/readyz")).status_code == 200


async def test_service_without_tables_is_not_ready(anyio_backend, tmp_path):
    async with running(f"sqlite:///{tmp_path / 'new.db'}") as api:
        ready = await api.client.get("/readyz")
        assert ready.status_code == 503
        assert "paceline migrate" in ready.json()["checks"]["store"]["sentence"]
        assert (await api.client.get("/api/v1/jobs")).status_code == 503


async def test_unavailable_store_gives_503_with_retry_after(anyio_backend, tmp_path):
    async with running(f"sqlite:///{tmp_path / 'none' / 'new.db'}") as api:
        answer = await api.client.get("/api/v1/jobs")
        assert answer.status_code == 503
        assert answer.json()["code"] == "store_unavailable"
        assert answer.headers["retry-after"]


async def test_service_without_a_consumer_is_ready_and_degraded(api):
    status, shown = await readiness(api)
    assert (status, shown["status"]) == (200, "ready")
    assert shown["degraded"] == ["consumers", "shards"]
    assert shown["checks"]["shards"]["sentence"] == "no consumer works on 4 of 4 parts of the queue"


async def test_consumer_with_an_expired_lease_is_not_counted(api):
    consume(api)
    api.clock.now_s = NOW_S + 16
    assert (await readiness(api))[1]["degraded"] == ["consumers", "backlog"]
    api.clock.now_s = NOW_S + 31
    assert (await readiness(api))[1]["degraded"] == ["consumers", "shards", "backlog"]


async def test_old_backlog_is_reported(api):
    consume(api)
    epoch, began_s = await api.register(), api.queue.clock_s()
    api.queue.clock_s = lambda: began_s
    assert (await api.push(json_batch(epoch=epoch))).status_code == 202
    api.queue.clock_s = lambda: began_s + BEHIND_AFTER_S + 1
    status, shown = await readiness(api)
    assert (status, shown["degraded"]) == (200, ["backlog"])
    assert shown["checks"]["backlog"]["sentence"] == "1 batch waits, the oldest for 16 seconds"
    with api.store.write() as conn:
        as_of.note_taken(conn, "consumer-0", {0: 240.0}, now_s=NOW_S)
    _, shown = await readiness(api)
    assert shown["checks"]["backlog"]["sentence"].startswith("Paceline is 4 minutes behind")


async def test_full_queue_is_not_ready(api):
    consume(api)
    api.queue.max_entries = 0
    status, shown = await readiness(api)
    assert status == 503
    assert shown["detail"] == "room: 4 of 4 parts of the queue are full until consumers catch up"


async def test_one_full_queue_server_of_several_stays_ready():
    whole, part = (room_check(Lag((9, 9), (1.0, 1.0), full)) for full in ((0, 1), (1,)))
    assert (whole.ok, whole.ingest_needs) == (False, True)
    assert (part.ok, part.ingest_needs) == (False, False)


@pytest.fixture
def watch_of(empty_database):
    """A function that makes a watch over an empty store and an empty queue."""
    url = f"sqlite:///{empty_database}"
    store = Store(url)
    parts = {
        "is_migrated": lambda: is_migrated(url),
        "num_shards": NUM_SHARDS,
        "lease_s": 15.0,
        "allow_lossy": False,
        "disk": DiskWatch(),
        "now_s": lambda: NOW_S,
        "monotonic": lambda: 0.0,
    }
    yield lambda **changes: ServiceStatus(store, MemoryQueue(NUM_SHARDS).writer, **parts | changes)
    store.close()


async def test_hanging_store_holds_one_thread(anyio_backend, watch_of, monkeypatch):
    monkeypatch.setitem(SharedQuery.__init__.__kwdefaults__, "max_wait_s", 60.0)
    go_on, is_asked, num_asked = threading.Event(), threading.Event(), itertools.count(1)

    def is_migrated():
        next(num_asked)
        is_asked.set()
        return go_on.wait()

    watch = watch_of(is_migrated=is_migrated)
    waiting = [asyncio.create_task(check_readiness(watch)) for _ in range(100)]
    await asyncio.to_thread(is_asked.wait)
    assert not any(answer.done() for answer in waiting)
    go_on.set()
    for answer in waiting:
        assert all(check.ok for check in await answer if check.ingest_needs)
    assert next(num_asked) == 2


async def test_hanging_store_times_out(anyio_backend):
    never = asyncio.Event()
    late = StoreUnavailable("too late")
    shared = SharedQuery(never.wait, fresh_s=0.0, late=late, monotonic=lambda: 0.0, max_wait_s=0.2)
    with pytest.raises(StoreUnavailable, match="too late"):
        await shared.get()
    never.set()
    assert await shared.get()


async def test_allow_lossy_is_reported_as_degraded(anyio_backend, watch_of):
    strict, lossy = (
        await check_readiness(watch_of()),
        await check_readiness(watch_of(allow_lossy=True)),
    )
    assert strict[-1] == ReadinessCheck(
        "durability", True, "a crash loses nothing that was acknowledged"
    )
    assert lossy[-1].name == "durability"
    assert not lossy[-1].ok
    assert not lossy[-1].ingest_needs
    assert "--allow-lossy or PACELINE_ALLOW_LOSSY" in lossy[-1].sentence
    assert "keeps what it takes" in strict[0].sentence
    assert not any("keeps" in check.sentence for check in lossy)
