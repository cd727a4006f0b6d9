"""LookupCache: one lookup for concurrent callers, stale values in outages, errors not cached."""

import asyncio

import pytest

from app.api.http.caching import RETRY_STORE_S, LookupCache
from app.errors import StoreUnavailable
from tests.api.server import Clock

pytestmark = pytest.mark.anyio


class Source:
    """Answers each lookup with its number; raises `error` while that is set."""

    def __init__(self):
        self.number, self.error, self.go_on = 0, None, asyncio.Event()
        self.go_on.set()

    async def __call__(self, key):
        self.number += 1
        number = self.number
        await self.go_on.wait()
        if self.error is not None:
            raise self.error
        return number


@pytest.fixture
def clock(anyio_backend):
    return Clock()


@pytest.fixture
async def source(anyio_backend):
    return Source()


async def test_value_is_fresh_from_the_start_of_its_lookup(source, clock):
    cache = LookupCache(source, fresh_s=2.0, monotonic=clock)
    begin_s = clock.now_s
    assert [await cache.get("a"), await cache.get("a"), await cache.get("b")] == [1, 1, 2]
    assert (cache.fresh_until_s("a"), cache.fresh_until_s("none")) == (begin_s + 2.0, 0.0)
    clock.now_s += 2.0
    assert await cache.get("a") == 3


async def test_concurrent_callers_share_one_lookup_even_when_it_hangs(source, clock):
    cache = LookupCache(source, fresh_s=0.0, monotonic=clock)
    source.go_on.clear()
    callers = [asyncio.create_task(cache.get("a")) for _ in range(10)]
    await asyncio.sleep(0)
    clock.now_s += 60.0
    callers.append(asyncio.create_task(cache.get("a")))
    await asyncio.sleep(0)
    callers.pop(0).cancel()
    source.go_on.set()
    assert set(await asyncio.gather(*callers)) == {1}


async def test_errors_are_cached_only_on_request(source, clock):
    source.error = ValueError("broken")
    for keep_errors, num_lookups in ((False, 2), (True, 1)):
        source.number = 0
        cache = LookupCache(source, fresh_s=2.0, keep_errors=keep_errors, monotonic=clock)
        for _ in range(2):
            with pytest.raises(ValueError, match="broken"):
                await cache.get("a")
        assert source.number == num_lookups


async def test_rejected_value_is_returned_and_not_cached(source, clock):
    cache = LookupCache(source, fresh_s=2.0, keep_if=lambda value: value > 1, monotonic=clock)
    assert [await cache.get("a") for _ in range(3)] == [1, 2, 2]


async def test_stale_value_is_returned_while_the_store_is_away(source, clock):
    cache = LookupCache(source, fresh_s=2.0, stale_s=60.0, monotonic=clock)
    assert await cache.get("a") == 1
    clock.now_s += 2.0
    source.error = StoreUnavailable("down")
    assert [await cache.get("a"), await cache.get("a")] == [1, 1]
    assert (source.number, cache.is_away()) == (2, True)  # the second call made no lookup
    with pytest.raises(StoreUnavailable):
        await cache.get("unknown")
    clock.now_s += RETRY_STORE_S
    source.error = None
    assert await cache.get("a") == 4
    assert not cache.is_away()


async def test_stale_value_expires(source, clock):
    cache = LookupCache(source, fresh_s=2.0, stale_s=60.0, monotonic=clock)
    await cache.get("a")
    source.error = StoreUnavailable("down")
    clock.now_s += 60.0
    with pytest.raises(StoreUnavailable):
        await cache.get("a")


async def test_get_now_never_returns_a_cached_or_stale_value(source, clock):
    cache = LookupCache(source, fresh_s=2.0, stale_s=60.0, monotonic=clock)
    assert [await cache.get("a"), await cache.get_now("a"), await cache.get("a")] == [1, 2, 2]
    source.error = StoreUnavailable("down")
    with pytest.raises(StoreUnavailable):
        await cache.get_now("a")


async def test_forgotten_key_is_looked_up_again_and_has_no_stale_value(source, clock):
    cache = LookupCache(source, fresh_s=2.0, stale_s=60.0, monotonic=clock)
    await cache.get("a")
    cache.forget("a")
    assert await cache.get("a") == 2
    cache.forget("a")
    source.error = StoreUnavailable("down")
    with pytest.raises(StoreUnavailable):
        await cache.get("a")
