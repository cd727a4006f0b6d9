import pytest

from app.store import service_state


@pytest.mark.sql_sensitive
def test_key_is_created_once_and_shared(store):
    with store.read() as conn:
        assert service_state.find_key(conn, "pictures") is None
    with store.write() as conn:
        made = service_state.find_or_make_key(conn, "pictures")
    with store.write() as conn:
        assert service_state.find_or_make_key(conn, "pictures") == made
        assert service_state.find_key(conn, "pictures") == made
        assert service_state.find_or_make_key(conn, "another") != made
    assert len(made) == 32


def test_uncommitted_key_is_not_found(store):
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


def test_address_of_the_pages_is_that_of_the_last_process(store):
    with store.write() as conn:
        assert service_state.find_pages_url(conn) is None
        for url in ("http://a:8642", "http://b:8642"):
            service_state.save_pages_url(conn, url)
        assert service_state.find_pages_url(conn) == "http://b:8642"
