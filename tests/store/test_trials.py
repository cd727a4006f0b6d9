from app.store import totals, trials


def test_each_process_counts_once_until_one_says_how_it_ended(store):
    with store.write() as conn:
        begun = [trials.begin(conn, 0, "5-0", process) for process in ("a", "a", "b", "b", "c")]
        assert begun == [1, 1, 2, 2, 3]
        trials.end(conn, 0, "5-0")
        assert trials.begin(conn, 0, "5-0", "d") == 1


def test_entries_and_shards_are_told_apart(store):
    with store.write() as conn:
        trials.begin(conn, 0, "5-0", "a")
        assert trials.begin(conn, 0, "5-00", "a") == 1
        assert trials.begin(conn, 1, "5-0", "b") == 1
        trials.end(conn, 0, "5-0")
        assert trials.begin(conn, 1, "5-0", "c") == 2
        assert totals.all(conn) == {}
