"""A job that is known goes on pushing while the database is away, and no refusal rests on that."""

import pytest

from app.api.registrations import GOOD_WITHOUT_STORE_S, REMEMBER_S, Registrations
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
    return Registrations(store, monotonic=api.clock)


async def test_a_known_job_is_found_for_an_hour_without_the_store(api, store, found):
    known = await found.find(JOB)
    store.is_up = False
    for _ in range(4):
        api.clock.now_s += GOOD_WITHOUT_STORE_S / 4 - 1
        assert await found.find(JOB) == known
    api.clock.now_s += 5
    with pytest.raises(StoreUnavailable):
        await found.find(JOB)


async def test_the_store_is_asked_once_a_second_while_it_is_away(api, store, found):
    await found.find(JOB)
    store.is_up = False
    api.clock.now_s += REMEMBER_S
    before = store.num_reads
    for _ in range(50):
        api.clock.now_s += 0.1
        await found.find(JOB)
    assert 4 <= store.num_reads - before <= 6


async def test_a_job_that_was_never_heard_of_is_not_made_up(store, found):
    store.is_up = False
    with pytest.raises(StoreUnavailable):
        await found.find(JOB)
    store.is_up = True
    with pytest.raises(JobNotFound):
        await found.find("default/other")


async def test_a_final_refusal_waits_for_the_store(api, store, found):
    known = await found.find(JOB)
    store.is_up = False
    with pytest.raises(StoreUnavailable):
        await found.find_anew(JOB)
    assert await found.find(JOB) == known


async def test_once_the_store_is_back_what_has_changed_is_seen(api, store, found):
    await found.find(JOB)
    store.is_up = False
    api.clock.now_s += REMEMBER_S
    await found.find(JOB)
    await api.register(run_key="run-2")
    store.is_up = True
    api.clock.now_s += 1
    assert (await found.find(JOB)).epoch == 2


async def test_batches_are_taken_while_the_store_is_away(api, monkeypatch):
    await api.register()
    assert (await api.push(json_batch())).status_code == 202

    def gone(*_):
        raise StoreUnavailable("down")

    monkeypatch.setattr(api.store, "read", gone)
    api.monotonic.now_s += 60
    assert (await api.push(json_batch(batch_seq=1))).status_code == 202
    assert (await api.push(json_batch(batch_seq=2, epoch=7))).status_code == 503
