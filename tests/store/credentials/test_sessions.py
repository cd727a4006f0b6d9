"""Sessions of a token: the oldest ends when there are too many."""

from dataclasses import replace

from app.store.credentials import sessions
from app.store.credentials.sessions import MAX_PER_TOKEN, SessionRecord

NEWEST = MAX_PER_TOKEN + 1


def test_beyond_the_limit_the_oldest_session_ends_and_no_other_tokens(store):
    first = SessionRecord("00", "t1", "default", "browser", "::1", 1.0, 1e6, None, None, "digest")
    made = [replace(first, session_id=f"{n:04x}", created_s=float(n)) for n in range(1, NEWEST + 1)]
    with store.write() as conn:
        for record in (first, replace(first, session_id="ff", token_id="t2"), *made[1:]):
            sessions.begin(conn, record)
        good = sessions.active(conn, "default", now_s=float(NEWEST))
    assert {record.session_id for record in good} == {"ff", *(new.session_id for new in made[1:])}
