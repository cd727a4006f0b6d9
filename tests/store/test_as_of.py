import pytest

from app.store import as_of, shards

pytestmark = pytest.mark.sql_sensitive


def test_a_bout_of_refusals_has_its_beginning_and_is_forgotten_after_it(store):
    def refused(now_s, *jobs):
        with store.write() as conn:
            as_of.note_refused(conn, jobs, now_s=now_s)
            found = as_of.read(conn, num_shards=1, now_s=now_s).refused
        return {name: (each.since_s, each.last_s) for name, each in found.items()}

    assert refused(100.0, "a", "b") == {"a": (100.0, 100.0), "b": (100.0, 100.0)}
    assert refused(130.0, "a") == {"a": (100.0, 130.0), "b": (100.0, 100.0)}
    assert refused(160.0) == {"a": (100.0, 130.0)}
    assert refused(180.0) == {}, "its workers have tried again since"
    assert refused(500.0, "a") == {"a": (500.0, 500.0)}


def test_only_who_holds_a_shard_says_up_to_when_it_is_taken(store):
    with store.write() as conn:
        shards.acquire(conn, 1, "me", now_s=100.0, lease_s=15.0)
        as_of.note_taken(conn, "me", {0: 0.0, 1: 40.0}, now_s=100.0)
        as_of.note_taken(conn, "another", {1: 0.0}, now_s=100.0)
        found = as_of.read(conn, num_shards=2, now_s=100.0)
        shards.acquire(conn, 0, "me", now_s=70.0, lease_s=15.0)
        new = as_of.read(conn, num_shards=2, now_s=100.0)
    assert list(found.by_shard) == [None, 60.0]
    assert list(new.by_shard) == [70.0, 60.0], "before its first owner nothing came"
    assert found.of_service == as_of.AsOf(60.0, 40.0)
