from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from app.alerts.labels import Matcher
from app.errors import Conflict, InvalidRequest, SilenceNotFound
from app.store.alerting import silences as stored_silences
from tests.store.factories import silence


@pytest.fixture
def added(store):
    def add(*silences):
        with store.write() as conn:
            for each in silences:
                stored_silences.add(conn, each)

    return add


def test_a_silence_holds_from_its_start_to_its_end_in_its_project(store, added):
    own, other = silence("aa"), silence("bb", project="other")
    added(own, other, silence("cc", starts_s=150.0))
    with store.read() as conn:

        def active(now_s, project="default"):
            return [each.silence_id for each in stored_silences.active(conn, project, now_s=now_s)]

        assert [active(now_s) for now_s in (99.9, 100.0, 150.0, 199.9, 200.0)] == [
            [], ["aa"], ["aa", "cc"], ["aa", "cc"], [],
        ]  # fmt: skip
        assert active(150.0, "other") == ["bb"]
        assert stored_silences.active(conn, "default", now_s=100.0) == [own]
        with pytest.raises(SilenceNotFound, match="bb"):
            stored_silences.get(conn, "default", "bb")


def test_ended_silence_stays_ended(store, added):
    added(silence("aa"), silence("to-come", starts_s=150.0), silence("bb", project="other"))
    with store.write() as conn:
        stored_silences.end(conn, "default", "aa", now_s=120.0)
        stored_silences.end(conn, "default", "aa", now_s=130.0)
        stored_silences.end(conn, "default", "to-come", now_s=120.0)
        assert stored_silences.get(conn, "default", "aa").ends_s == 120.0
        assert stored_silences.active(conn, "default", now_s=160.0) == []
        for nobodys in ("bb", "nothing"):
            with pytest.raises(SilenceNotFound):
                stored_silences.end(conn, "default", nobodys, now_s=120.0)
        assert stored_silences.get(conn, "other", "bb").ends_s == 200.0


@pytest.mark.sql_sensitive
def test_silences_are_listed_with_those_that_end_last_first(store, added):
    added(*(silence(f"{n}", ends_s=200.0 + n // 2) for n in range(5)), silence("x", project="b"))
    with store.read() as conn:
        first, cursor = stored_silences.page(conn, "default", limit=3)
        rest, end = stored_silences.page(conn, "default", cursor=cursor, limit=3)
        assert [each.silence_id for each in first + rest] == ["4", "3", "2", "1", "0"]
        assert end is None
        late, _ = stored_silences.page(conn, "default", ends_after_s=200.0)
        assert [each.silence_id for each in late] == ["4", "3", "2"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"ends_s": 100.0},
        {"ends_s": 100.0 + 30 * 86_400 + 1},
        {"matchers": (Matcher("job", "x"),) * 33},
        {"matchers": (Matcher("job", "x" * 257),)},
        {"matchers": (Matcher("\0", "x"),)},
        {"author": "x" * 257},
        {"comment": "x" * 2001},
        {"comment": "\ud800"},
    ],
)
def test_silence_with_invalid_text_is_refused(store, wrong):
    with pytest.raises(InvalidRequest), store.write() as conn:
        stored_silences.add(conn, silence(**wrong))


def test_silences_of_a_project_are_limited(added, monkeypatch):
    monkeypatch.setattr(stored_silences, "MAX_SILENCES", 5)
    added(*(silence(f"{n}") for n in range(stored_silences.MAX_SILENCES)))
    added(silence("another", project="other"))
    with pytest.raises(Conflict, match="end one first"):
        added(silence("one-more"))
    added(silence("later", created_s=200.0, starts_s=200.0, ends_s=201.0))


def test_matchers_of_all_silences_are_limited(added):
    many = (Matcher("job", "x"),) * 32
    added(
        *(silence(f"{n}", matchers=many) for n in range(stored_silences.MAX_TOTAL_MATCHERS // 32))
    )
    with pytest.raises(Conflict, match="1000 matchers"):
        added(silence("one-more", matchers=many))
    added(silence("small", matchers=many[:8]), silence("o", project="other", matchers=many))


@pytest.mark.sql_sensitive
def test_committed_silence_is_seen_at_once(store):
    """Also in a transaction begun earlier: a sender checks silences right after its claim."""
    if store.is_sqlite:
        pytest.skip("a write there waits for every other one")
    with store.write() as conn:
        assert stored_silences.active(conn, "default", now_s=150.0) == []
        with ThreadPoolExecutor(1) as pool:
            pool.submit(_add, store, replace(silence(), comment="meanwhile")).result()
        [found] = stored_silences.active(conn, "default", now_s=150.0)
    assert found.comment == "meanwhile"


def _add(store, given):
    with store.write() as conn:
        stored_silences.add(conn, given)
