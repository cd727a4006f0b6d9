"""ComputeCache: one computation per key, LRU eviction by size, and a TTL by compute time."""

import threading
from functools import partial

import pytest

from app.api.http.caching import ComputeCache
from app.api.service.service import TTL_PER_COMPUTE_S
from tests.api.server import Clock


class _NotKept(Exception):
    pass


def kept(cache, key):
    """The cached value, or None; nothing is computed."""

    def fail():
        raise _NotKept

    try:
        return cache.get(key, fail)
    except _NotKept:
        return None


class Compute:
    """Computes numbered values in `took_s` each."""

    def __init__(self, clock, took_s):
        self.clock, self.took_s, self.number = clock, took_s, 0

    def __call__(self):
        self.clock.now_s += self.took_s
        self.number += 1
        return self.number


def cost_aware(clock):
    return ComputeCache(max_size=10, ttl_per_compute_s=TTL_PER_COMPUTE_S, monotonic=clock)


def test_value_expires_after_100_times_its_compute_time():
    clock = Clock()
    cache, compute = cost_aware(clock), Compute(clock, 0.5)
    assert cache.get("a", compute) == 1
    clock.now_s += 0.5 * TTL_PER_COMPUTE_S - 0.1
    assert cache.get("a", compute) == 1
    clock.now_s += 0.2
    assert cache.get("a", compute) == 2


def test_values_that_nobody_asks_for_are_removed():
    clock = Clock()
    cache = ComputeCache[str, int](max_size=10, idle_s=60.0, monotonic=clock)
    compute = Compute(clock, 1.0)
    for key in ("revision 1", "used"):
        cache.get(key, compute)
    for _ in range(4):
        clock.now_s += 20.0
        assert cache.get("used", compute) == 2
    assert len(cache) == 1
    assert kept(cache, "revision 1") is None


def test_least_recently_used_values_are_evicted_by_size():
    cache = ComputeCache[str, str](max_size=10, size_of=len)
    for key in ("aaaa", "bbbb"):
        cache.get(key, partial(str, key))
    assert kept(cache, "aaaa") == "aaaa"
    cache.get("cccc", lambda: "cccc")
    assert (kept(cache, "aaaa"), kept(cache, "bbbb"), len(cache)) == ("aaaa", None, 2)


def test_newest_value_stays_although_it_is_larger_than_the_cache():
    cache = ComputeCache[str, str](max_size=3, size_of=len)
    cache.get("a", lambda: "a")
    cache.get("long", lambda: "a long one")
    assert (kept(cache, "a"), kept(cache, "long"), len(cache)) == (None, "a long one", 1)
    cache.get("b", lambda: "b")
    assert (kept(cache, "long"), kept(cache, "b")) == (None, "b")


def test_concurrent_caller_waits_for_the_running_computation():
    clock = Clock()
    cache, compute = cost_aware(clock), Compute(clock, 1.0)
    values = []
    second = threading.Thread(target=lambda: values.append(cache.get("a", compute)))

    def slow():
        second.start()
        second.join(0.2)
        assert second.is_alive()
        return compute()

    assert cache.get("a", slow) == 1
    second.join()
    assert values == [1]


def test_failed_computation_caches_nothing_and_frees_the_key():
    cache = ComputeCache[str, int](max_size=10)
    with pytest.raises(ZeroDivisionError):
        cache.get("a", lambda: 1 // 0)
    assert kept(cache, "a") is None
    assert cache.get("a", lambda: 1) == 1
    assert not cache._computing
