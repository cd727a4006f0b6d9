"""Host of each worker."""

import pytest

from app.store import hosts, runs
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


@pytest.mark.parametrize("how", ["ended", "superseded"])
def test_hosts_of_runs_that_are_over_are_not_disputed(store, how):
    def disputed(by="default"):
        with store.read() as conn:
            return hosts.named_by_other_projects(conn, by, ["host-7"])

    epoch = register(store, "other/a")
    with store.write() as conn:
        hosts.add_to_run(conn, "other/a", epoch, ["host-7", "host-8"])
    assert (disputed(), disputed("other")) == ({"host-7"}, set())
    if how == "ended":
        with store.write() as conn:
            runs.end(conn, "other/a", now_s=200.0)
    else:
        register(store, "other/a", run_key="run-2")
    assert disputed() == set()
