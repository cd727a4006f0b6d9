from app.store import jobs, registering, silent, watching
from tests.store.factories import register


def test_runs_that_are_over_are_unfinished_until_they_are_closed(store):
    register(store, "ended")
    register(store, "running")
    register(store, "restarted", run_key="a")
    register(store, "restarted", run_key="b")
    with store.write() as conn:
        jobs.end(conn, "ended", now_s=6.0)
        assert watching.unfinished(conn) == [("ended", 1, False), ("restarted", 1, True)]
        watching.mark_closed(conn, "ended", 1)
        assert watching.unfinished(conn) == [("restarted", 1, True)]


def test_a_run_that_ended_before_the_next_began_was_not_superseded(store):
    register(store, run_key="a")
    with store.write() as conn:
        jobs.end(conn, "job", now_s=6.0)
    register(store, run_key="b")
    with store.read() as conn:
        assert watching.unfinished(conn) == [("job", 1, False)]


def test_runs_are_watched_until_they_are_over_or_said_to_have_stalled(store):
    day_s = registering.ACTIVE_FOR_S
    for name in ("sends", "starts", "hangs", "ended"):
        register(store, name, now_s=day_s)
    register(store, "forgotten", now_s=0.0)
    register(store, "restarted", now_s=day_s)
    register(store, "restarted", now_s=day_s + 1, run_key="run-2")
    now_s = day_s + 2
    with store.write() as conn:
        jobs.touch(conn, "sends", epoch=1, last_data_s=now_s, last_step=0)
        jobs.end(conn, "ended", now_s=now_s)
        silent.save(
            conn, "hangs", 1, silent_ranks=(), silent_workers=(), silent_since_s=None,
            stalled_since_s=day_s,
        )  # fmt: skip
        starting = [("restarted", 2), ("starts", 1)]
        assert watching.watched(conn, now_s=now_s) == sorted([("sends", 1), *starting])
        assert watching.starting(conn, now_s=now_s) == starting
        assert watching.stalled(conn, now_s=now_s) == [("hangs", 1)]
        assert watching.stalled(conn, now_s=now_s + day_s) == []
        assert watching.heard(conn, "sends", 1) == (day_s, now_s)
        assert watching.heard(conn, "restarted", 2) == (day_s + 1, None)


def test_a_start_goes_on_over_runs_that_failed_to_start(store):
    for number, at_s in enumerate((100.0, 200.0, 300.0), start=1):
        register(store, run_key=f"run-{number}", now_s=at_s)

    def since_s(epoch, within_s=1000.0):
        with store.read() as conn:
            return watching.starting_since(conn, "job", epoch, within_s=within_s)

    assert [since_s(epoch) for epoch in (1, 2, 3)] == [100.0, 100.0, 100.0]
    assert [since_s(3, within_s) for within_s in (99.0, 100.0, 200.0)] == [300.0, 200.0, 100.0]
    with store.write() as conn:
        jobs.touch(conn, "job", epoch=1, last_data_s=150.0, last_step=None)
    assert since_s(3) == 200.0, "from the first one after those of which something came"
    with store.write() as conn:
        jobs.end(conn, "job", now_s=350.0)
    register(store, run_key="run-4", now_s=400.0)
    assert since_s(4) == 400.0, "or that ended"
