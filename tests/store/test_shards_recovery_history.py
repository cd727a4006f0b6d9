"""Stored history of a run's earlier windows."""

from app.store import shards
from tests.store.factories import register


def test_the_newest_history_of_each_run_is_kept(store):
    for run_key in ("a", "b"):
        register(store, run_key=run_key)
    with store.write() as conn:
        assert shards.load_history(conn, "job", 1) is None
        for epoch, blob in ((1, b"old"), (2, b"\0two"), (1, b"\xffone")):
            shards.save_history(conn, "job", epoch, through_step=2**53, blob=blob)
        assert [shards.load_history(conn, "job", epoch) for epoch in (1, 2)] == [
            b"\xffone",
            b"\0two",
        ]
