from app.store import runs
from tests.store.factories import register


def test_ended_runs_are_listed_until_closed(store):
    register(store, "ended")
    register(store, "running")
    register(store, "restarted", run_key="a")
    register(store, "restarted", run_key="b")
    with store.write() as conn:
        runs.end(conn, "ended", now_s=6.0)
        assert runs.ended_not_closed(conn) == [("ended", 1, False), ("restarted", 1, True)]
        runs.mark_closed(conn, "ended", 1)
        assert runs.ended_not_closed(conn) == [("restarted", 1, True)]


def test_run_that_ended_before_the_next_is_not_superseded(store):
    register(store, run_key="a")
    with store.write() as conn:
        runs.end(conn, "job", now_s=6.0)
    register(store, run_key="b")
    with store.read() as conn:
        assert runs.ended_not_closed(conn) == [("job", 1, False)]


def test_runs_are_watched_until_ended_or_stalled(store):
    day_s = runs.ACTIVE_FOR_S
    for name in ("sends", "starts", "hangs", "ended"):
        register(store, name, now_s=day_s)
    register(store, "forgotten", now_s=0.0)
    register(store, "restarted", now_s=day_s)
    register(store, "restarted", now_s=day_s + 1, run_key="run-2")
    now_s = day_s + 2
    with store.write() as conn:
        runs.note_data(conn, "sends", epoch=1, last_data_s=now_s, last_step=0)
        runs.end(conn, "ended", now_s=now_s)
        runs.save_silent_ranks(conn, "hangs", 1, runs.SilentRanks(stalled_since_s=day_s))
        starting = [("restarted", 2), ("starts", 1)]
        assert runs.watched(conn, now_s=now_s) == sorted([("sends", 1), *starting])
        assert runs.starting(conn, now_s=now_s) == starting
        assert runs.stalled(conn, now_s=now_s) == [("hangs", 1)]
        assert runs.stalled(conn, now_s=now_s + day_s) == []
        silent = runs.SilentRanks()
        assert runs.activity(conn, "sends", 1) == (day_s, now_s, 0, silent)
        assert runs.activity(conn, "restarted", 2) == (day_s + 1, None, None, silent)


def test_start_time_counts_from_the_first_failed_start(store):
    for number, at_s in enumerate((100.0, 200.0, 300.0), start=1):
        register(store, run_key=f"run-{number}", now_s=at_s)

    def since_s(epoch, within_s=1000.0):
        with store.read() as conn:
            return runs.starting_since(conn, "job", epoch, within_s=within_s)

    assert [since_s(epoch) for epoch in (1, 2, 3)] == [100.0, 100.0, 100.0]
    assert [since_s(3, within_s) for within_s in (99.0, 100.0, 200.0)] == [300.0, 200.0, 100.0]
    with store.write() as conn:
        runs.note_data(conn, "job", epoch=1, last_data_s=150.0, last_step=None)
    assert since_s(3) == 200.0, "from the first one after those of which something came"
    with store.write() as conn:
        runs.end(conn, "job", now_s=350.0)
    register(store, run_key="run-4", now_s=400.0)
    assert since_s(4) == 400.0, "or that ended"
