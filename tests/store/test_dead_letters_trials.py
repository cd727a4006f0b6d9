from app.store import dead_letters, runs


def test_trials_count_each_process_once_and_restart_after_their_end(store):
    with store.write() as conn:
        begun = [
            dead_letters.begin_trial(conn, 0, "5-0", process)
            for process in ("a", "a", "b", "b", "c")
        ]
        assert begun == [1, 1, 2, 2, 3]
        dead_letters.end_trials(conn, 0, "5-0")
        assert dead_letters.begin_trial(conn, 0, "5-0", "d") == 1


def test_trials_are_counted_by_entry_and_shard(store):
    with store.write() as conn:
        dead_letters.begin_trial(conn, 0, "5-0", "a")
        assert dead_letters.begin_trial(conn, 0, "5-00", "a") == 1
        assert dead_letters.begin_trial(conn, 1, "5-0", "b") == 1
        dead_letters.end_trials(conn, 0, "5-0")
        assert dead_letters.begin_trial(conn, 1, "5-0", "c") == 2
        assert runs.service_totals(conn) == {}
