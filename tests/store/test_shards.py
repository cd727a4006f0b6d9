import threading

import pytest

from app.errors import LeaseLost
from app.store import shards

LEASE_S = 15.0


def acquire(store, owner, *, now_s, shard=3):
    with store.write() as conn:
        return shards.acquire(conn, shard, owner, now_s=now_s, lease_s=LEASE_S)


@pytest.mark.sql_sensitive
def test_a_shard_has_one_owner_until_the_lease_lapses(store):
    first = acquire(store, "a", now_s=100.0)
    assert first is not None
    assert acquire(store, "b", now_s=100.0 + LEASE_S) is None
    second = acquire(store, "b", now_s=100.1 + LEASE_S)
    assert second is not None
    assert second > first


def test_restarted_consumer_gets_its_shard_under_a_new_fence(store):
    first = acquire(store, "a", now_s=100.0)
    assert acquire(store, "a", now_s=101.0) == first + 1


def test_a_shard_that_goes_to_and_fro_is_counted_and_known_for_a_minute(store):
    for number in range(4):
        with store.write() as conn:
            assert shards.moves(conn, now_s=110.0) == (number, [])
        assert acquire(store, "ab"[number % 2], now_s=100.0 + (LEASE_S + 0.1) * number)
    with store.write() as conn:
        assert shards.moves(conn, now_s=159.0) == (4, [3])
        assert shards.moves(conn, now_s=160.1) == (4, [])


def test_renewed_lease_counts_from_its_renewal(store):
    fence = acquire(store, "a", now_s=100.0)
    with store.write() as conn:
        shards.renew(conn, 3, "a", fence, now_s=110.0, lease_s=LEASE_S)
    assert acquire(store, "b", now_s=120.0) is None


@pytest.mark.sql_sensitive
def test_consumer_that_was_frozen_past_its_lease_cannot_commit(store):
    old = acquire(store, "a", now_s=100.0)
    new = acquire(store, "b", now_s=200.0)
    with store.write() as conn:
        shards.check(conn, 3, "b", new)
        for owner, fence in (("a", old), ("a", new), ("b", old)):
            with pytest.raises(LeaseLost):
                shards.check(conn, 3, owner, fence)
        with pytest.raises(LeaseLost):
            shards.renew(conn, 3, "a", old, now_s=201.0, lease_s=LEASE_S)


def test_released_shard_is_free_and_its_fence_invalid(store):
    fence = acquire(store, "a", now_s=100.0)
    with store.write() as conn:
        shards.release(conn, 3, fence)
        with pytest.raises(LeaseLost):
            shards.check(conn, 3, "a", fence)
    assert acquire(store, "b", now_s=100.0) == fence + 1


@pytest.mark.sql_sensitive
def test_late_release_does_not_affect_the_next_owner(store):
    old = acquire(store, "a", now_s=100.0)
    new = acquire(store, "b", now_s=200.0)
    with store.write() as conn:
        shards.release(conn, 3, old)
        shards.check(conn, 3, "b", new)


@pytest.mark.sql_sensitive
def test_shard_cannot_change_owner_between_check_and_commit(store):
    fence = acquire(store, "a", now_s=100.0)
    done: list[str] = []
    begun = threading.Event()

    def take_over():
        begun.set()
        acquire(store, "b", now_s=200.0)
        done.append("taken")

    thread = threading.Thread(target=take_over)
    with store.write() as conn:
        shards.check(conn, 3, "a", fence)
        thread.start()
        begun.wait()
        thread.join(0.2)
        done.append("committed")
    thread.join()
    assert done == ["committed", "taken"]


def test_consumers_are_alive_until_their_heartbeat_lapses_or_they_leave(store):
    with store.write() as conn:
        for owner in ("a", "b", "b", "c"):
            shards.heartbeat(conn, owner, now_s=100.0, lease_s=LEASE_S)
        assert shards.count_live(conn, now_s=100.0 + LEASE_S) == 3
        shards.forget_consumer(conn, "c")
        shards.heartbeat(conn, "a", now_s=110.0, lease_s=LEASE_S)
        assert shards.count_live(conn, now_s=120.0) == 1


@pytest.mark.sql_sensitive
def test_entries_of_the_last_commit_are_known_to_the_next_owner(store):
    acquire(store, "a", now_s=100.0)
    with store.write() as conn:
        assert shards.committed(conn, 3) == set()
        shards.note_committed(conn, 3, ["1-0", "2-0"])
        shards.note_committed(conn, 3, ["3-0"])
    acquire(store, "b", now_s=200.0)
    with store.read() as conn:
        assert shards.committed(conn, 3) == {"3-0"}
        assert shards.committed(conn, 4) == set()


def test_lease_by_a_clock_ahead_is_ignored(store):
    acquire(store, "a", now_s=3700.0)
    assert acquire(store, "b", now_s=100.0) is not None
