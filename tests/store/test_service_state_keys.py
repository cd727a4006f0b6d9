from app.store import service_state


def test_a_key_is_made_once_and_is_the_same_for_all(store):
    with store.read() as conn:
        assert service_state.find_key(conn, "pictures") is None
    with store.write() as conn:
        made = service_state.find_or_make_key(conn, "pictures")
    with store.write() as conn:
        assert service_state.find_or_make_key(conn, "pictures") == made
        assert service_state.find_key(conn, "pictures") == made
        assert service_state.find_or_make_key(conn, "another") != made
    assert len(made) == 32


def test_a_key_that_was_not_committed_is_none(store):
    class Stop(Exception):
        pass

    try:
        with store.write() as conn:
            service_state.find_or_make_key(conn, "pictures")
            raise Stop
    except Stop:
        pass
    with store.read() as conn:
        assert service_state.find_key(conn, "pictures") is None
