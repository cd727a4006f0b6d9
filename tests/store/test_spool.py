from app.store import spool
from app.store.spool import SpoolRow
from tests.store.factories import register


def row(turn, *, job_id="job", last_step=0, blob=b"\0blob"):
    return SpoolRow(job_id, 1, turn, last_step, blob)


def test_what_was_taken_comes_back_in_the_order_of_the_turns(store):
    register(store)
    with store.write() as conn:
        spool.add(conn, [row(2, blob=b"b"), row(1, blob=b"a")])
        spool.add(conn, [])
        spool.add(conn, [row(10, blob=b"c")])
        assert spool.load(conn, "job", 1) == [(1, b"a"), (2, b"b"), (10, b"c")]
        assert spool.load(conn, "job", 2) == []


def test_a_row_goes_with_the_window_of_its_last_step(store):
    register(store)
    with store.write() as conn:
        spool.add(conn, [row(1, last_step=-1), row(2, last_step=7), row(3, last_step=8)])
        spool.forget(conn, "job", 1, through_step=7)
        assert [turn for turn, _ in spool.load(conn, "job", 1)] == [3]


def test_runs_with_open_windows_are_named_once(store):
    for job_id in ("a", "b", "c"):
        register(store, job_id)
    with store.write() as conn:
        spool.add(conn, [row(turn, job_id=job_id) for job_id in "ab" for turn in (1, 2)])
        assert spool.jobs(conn) == [("a", 1), ("b", 1)]


def test_the_last_state_of_each_run_is_kept(store):
    for key in ("a", "b"):
        register(store, run_key=key)
    with store.write() as conn:
        assert spool.load_state(conn, "job", 1) is None
        for epoch, blob in ((1, b"old"), (2, b"\0two"), (1, b"one")):
            spool.save_state(conn, "job", epoch, blob)
        assert [spool.load_state(conn, "job", epoch) for epoch in (1, 2)] == [b"one", b"\0two"]
