from app.store import dead_letters, runs


def test_trials_count_each_other_process_once_until_their_end(store):
    with store.write() as conn:
        for process in ("a", "a", "b"):
            dead_letters.begin_trials(conn, 0, ["5-0", "6-0"], process)
        dead_letters.begin_trials(conn, 1, ["5-0"], "c")
        assert dead_letters.trials(conn, 0, "c") == {"5-0": 2, "6-0": 2}
        assert dead_letters.trials(conn, 0, "b") == {"5-0": 1, "6-0": 1}
        dead_letters.end_trials(conn, 0, {"5-0"})
        assert dead_letters.trials(conn, 0, "c") == {"6-0": 2}
        dead_letters.end_trials(conn, 0)
        assert [dead_letters.trials(conn, shard, "d") for shard in (0, 1)] == [{}, {"5-0": 1}]
        assert runs.service_totals(conn) == {}
