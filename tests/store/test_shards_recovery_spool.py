from app.store import shards
from app.store.shards import SpoolRow
from tests.store.factories import register


def row(turn, *, job_id="job", last_step=0, blob=b"\0blob"):
    return SpoolRow(job_id, 1, turn, last_step, blob)


def test_spooled_batches_come_back_in_order_of_turns(store):
    register(store)
    with store.write() as conn:
        shards.add_spooled(conn, [row(2, blob=b"b"), row(1, blob=b"a")])
        shards.add_spooled(conn, [])
        shards.add_spooled(conn, [row(10, blob=b"c")])
        assert shards.spooled_batches(conn, "job", 1) == [(1, b"a"), (2, b"b"), (10, b"c")]
        assert shards.spooled_batches(conn, "job", 2) == []


def test_spooled_rows_are_removed_with_the_window_of_their_last_step(store):
    register(store)
    with store.write() as conn:
        shards.add_spooled(conn, [row(1, last_step=-1), row(2, last_step=7), row(3, last_step=8)])
        shards.forget_spooled(conn, "job", 1, through_step=7)
        assert [turn for turn, _ in shards.spooled_batches(conn, "job", 1)] == [3]


def test_runs_with_spooled_batches_are_listed_once(store):
    for job_id in ("a", "b", "c"):
        register(store, job_id)
    with store.write() as conn:
        shards.add_spooled(conn, [row(turn, job_id=job_id) for job_id in "ab" for turn in (1, 2)])
        assert shards.spooled_runs(conn) == [("a", 1), ("b", 1)]


def test_the_last_state_of_each_run_is_kept(store):
    for key in ("a", "b"):
        register(store, run_key=key)
    with store.write() as conn:
        assert shards.load_assembler(conn, "job", 1) is None
        for epoch, blob in ((1, b"old"), (2, b"\0two"), (1, b"one")):
            shards.save_assembler(conn, "job", epoch, blob)
        assert [shards.load_assembler(conn, "job", epoch) for epoch in (1, 2)] == [
            b"one",
            b"\0two",
        ]
