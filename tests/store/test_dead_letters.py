from dataclasses import replace

import pytest

from app.errors import InvalidRequest, NotFound
from app.store import dead_letters
from app.store.dead_letters import DeadLetter

LETTER = DeadLetter(
    job_id="default/nobody-knows-it",
    epoch=1,
    entry_id="1700000000000-0",
    num_ops=3,
    deliveries=3,
    reason="the operation type 'x' is not known to this version",
    received_s=1700000000.0,
    died_s=1700000009.0,
    body=b"\0\xff body",
)


def letters(number):
    """Dead letters of one job in order of arrival."""
    return [replace(LETTER, entry_id=f"170000000000{n}-0") for n in range(number)]


@pytest.fixture
def conn(store):
    with store.write() as conn:
        yield conn


def test_dead_letter_is_read_back(conn):
    unreadable = replace(LETTER, epoch=None, num_ops=0, entry_id="7-7", body=b"")
    assert dead_letters.add(conn, [LETTER, unreadable]) == [LETTER, unreadable]
    assert dead_letters.get(conn, 1) == LETTER
    assert dead_letters.get(conn, 2) == unreadable
    found = dead_letters.summary(conn, 1)
    for name in set(found.__slots__) & set(LETTER.__slots__):
        assert getattr(found, name) == getattr(LETTER, name)
    assert (found.state, found.settled_s, found.size_bytes) == ("dead", None, len(LETTER.body))


@pytest.mark.sql_sensitive
def test_dead_letter_keeps_a_body_of_the_largest_size(conn):
    body = bytes(range(256)) * (8 << 12)
    dead_letters.add(conn, [replace(LETTER, body=body)])
    assert len(body) == 8 << 20
    assert dead_letters.get(conn, 1).body == body
    assert dead_letters.summary(conn, 1).size_bytes == len(body)


@pytest.mark.sql_sensitive
def test_entry_that_fails_twice_is_one_dead_letter(conn):
    dead_letters.add(conn, [LETTER])
    assert dead_letters.add(conn, [replace(LETTER, reason="again")]) == []
    of_another = replace(LETTER, job_id="other/nobody-knows-it")
    assert dead_letters.add(conn, [LETTER, of_another]) == [of_another]
    assert dead_letters.get(conn, 1) == LETTER


@pytest.mark.sql_sensitive
def test_pages_have_every_dead_letter_of_a_state_once_oldest_first(conn):
    dead_letters.add(conn, letters(5))
    dead_letters.mark(conn, 2, "replayed", now_s=1.0)
    first, cursor = dead_letters.page(conn, state="dead", limit=3)
    rest, end = dead_letters.page(conn, state="dead", cursor=cursor, limit=3)
    assert [one.letter_id for one in [*first, *rest]] == [1, 3, 4, 5]
    assert end is None
    assert [one.letter_id for one in dead_letters.page(conn)[0]] == [1, 2, 3, 4, 5]
    with pytest.raises(InvalidRequest):
        dead_letters.page(conn, cursor="WyJhIl0")


def test_dead_letters_are_counted_by_state(conn):
    assert dead_letters.count(conn) == {"dead": 0, "replayed": 0, "dropped": 0}
    dead_letters.add(conn, letters(3))
    dead_letters.mark(conn, 1, "replayed", now_s=1.0)
    dead_letters.mark(conn, 3, "dropped", now_s=2.0)
    assert dead_letters.count(conn) == {"dead": 1, "replayed": 1, "dropped": 1}
    assert dead_letters.summary(conn, 3).settled_s == 2.0


def test_unknown_dead_letter_is_not_found(conn):
    for ask in (dead_letters.get, dead_letters.summary):
        with pytest.raises(NotFound, match="no dead letter 4"):
            ask(conn, 4)
    with pytest.raises(NotFound, match="no dead letter 4"):
        dead_letters.mark(conn, 4, "dropped", now_s=1.0)
