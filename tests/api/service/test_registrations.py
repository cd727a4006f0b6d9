"""Known jobs can push without the database; refusals need it."""

import pytest

from app.api.service.service import JOB_STALE_S, RegistrationCache
from app.errors import JobNotFound, StoreUnavailable
from tests.api.server import json_batch
from tests.api.stores import CountingStore

pytestmark = pytest.mark.anyio

JOB = "default/llm-70b"


@pytest.fixture
async def store(api, tmp_path):
    await api.register()
    store = CountingStore(f"sqlite:///{tmp_path / 'paceline.db'}")
    yield store
    store.close()


@pytest.fixture
def found(api, store):
    return RegistrationCache(store, monotonic=api.clock)


async def test_known_job_is_found_for_an_hour_without_the_store(api, store, found):
    known = await found.get(JOB)
    store.is_up = False
    for _ in range(4):
        api.clock.now_s += JOB_STALE_S / 4 - 1
        assert await found.get(JOB) == known
    api.clock.now_s += 5
    with pytest.raises(StoreUnavailable):
        await found.get(JOB)


async def test_unknown_job_is_not_found_without_the_store(store, found):
    store.is_up = False
    with pytest.raises(StoreUnavailable):
        await found.get(JOB)
    store.is_up = True
    with pytest.raises(JobNotFound):
        await found.get("default/other")


async def test_get_now_needs_the_store(api, store, found):
    known = await found.get(JOB)
    store.is_up = False
    with pytest.raises(StoreUnavailable):
        await found.get_now(JOB)
    assert await found.get(JOB) == known


async def test_batches_are_accepted_while_the_store_is_away(api, monkeypatch):
    await api.register()
    assert (await api.push(json_batch())).status_code == 202

    def fail(*_):
        raise StoreUnavailable("down")

    monkeypatch.setattr(api.store, "read", fail)
    api.monotonic.now_s += 60
    assert (await api.push(json_batch(batch_seq=1))).status_code == 202
    assert (await api.push(json_batch(batch_seq=2, epoch=7))).status_code == 503
