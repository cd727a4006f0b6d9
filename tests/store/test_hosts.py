"""Host of each worker."""

from app.store import hosts
from tests.store.factories import register


def test_hosts_are_empty_until_saved(store):
    register(store)
    with store.read() as conn:
        assert hosts.load(conn, "job", 1) == {}


def test_the_newest_hosts_are_kept(store):
    register(store)
    with store.write() as conn:
        hosts.save(conn, "job", 1, {(0, 1): "host-a"})
        hosts.save(conn, "job", 1, {(0, 1): "host-b", (3, 0): "host-<c>"})
    with store.read() as conn:
        assert hosts.load(conn, "job", 1) == {(0, 1): "host-b", (3, 0): "host-<c>"}
