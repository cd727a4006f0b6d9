from app.store import batches
from app.store.batches import BatchRow
from tests.store.factories import register


def batch(rank, batch_seq, *, job_id="job", body=b"body"):
    return BatchRow(job_id, 1, rank, batch_seq, body)


def test_batches_come_back_by_rank_and_then_in_the_order_of_sending(store):
    register(store)
    with store.write() as conn:
        batches.add(
            conn, [batch(1, 0, body=b"c"), batch(0, 10, body=b"b"), batch(0, 9, body=b"\0a")]
        )
        assert batches.load(conn, "job", 1) == [b"\0a", b"b", b"c"]


def test_a_batch_that_comes_twice_is_kept_once(store):
    register(store)
    with store.write() as conn:
        batches.add(conn, [batch(0, 0)])
        batches.add(conn, [batch(0, 0, body=b"again"), batch(0, 1)])
        batches.add(conn, [])
        assert batches.load(conn, "job", 1) == [b"body", b"body"]


def test_batches_are_let_go_of_one_by_one(store):
    register(store)
    with store.write() as conn:
        batches.add(conn, [batch(0, 0, body=b"a"), batch(0, 1, body=b"b"), batch(1, 0, body=b"c")])
        batches.remove(conn, [("job", 1, 0, 0), ("job", 1, 1, 0), ("job", 1, 9, 9)])
        batches.remove(conn, [])
        assert batches.load(conn, "job", 1) == [b"b"]


def test_runs_with_open_batches_are_named_once(store):
    for job_id in ("a", "b", "c"):
        register(store, job_id)
    with store.write() as conn:
        batches.add(conn, [batch(rank, 0, job_id=job_id) for job_id in "ab" for rank in (0, 1)])
        assert batches.jobs(conn) == [("a", 1), ("b", 1)]


def test_the_last_cursor_of_each_run_is_kept(store):
    for key in ("a", "b"):
        register(store, run_key=key)
    with store.write() as conn:
        assert batches.load_cursors(conn, "job") == {}
        for epoch, blob in ((1, b"old"), (2, b"\0two"), (1, b"one")):
            batches.save_cursor(conn, "job", epoch, blob)
        assert batches.load_cursors(conn, "job") == {1: b"one", 2: b"\0two"}
