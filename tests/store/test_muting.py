from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from app.alerts.matchers import Matcher
from app.errors import Conflict, InvalidRequest, SilenceNotFound
from app.store import muting
from tests.store.factories import silence


@pytest.fixture
def added(store):
    def add(*silences):
        with store.write() as conn:
            for each in silences:
                muting.add(conn, each)

    return add


def test_a_silence_holds_from_its_start_to_its_end_in_its_project(store, added):
    own, other = silence("aa"), silence("bb", project="other")
    added(own, other, silence("cc", starts_s=150.0))
    with store.read() as conn:

        def active(now_s, project="default"):
            return [each.silence_id for each in muting.active(conn, project, now_s=now_s)]

        assert [active(now_s) for now_s in (99.9, 100.0, 150.0, 199.9, 200.0)] == [
            [], ["aa"], ["aa", "cc"], ["aa", "cc"], [],
        ]  # fmt: skip
        assert active(150.0, "other") == ["bb"]
        assert muting.active(conn, "default", now_s=100.0) == [own]
        with pytest.raises(SilenceNotFound, match="bb"):
            muting.get(conn, "default", "bb")


def test_a_silence_that_is_ended_is_over_at_once_and_stays_over(store, added):
    added(silence("aa"), silence("to-come", starts_s=150.0), silence("bb", project="other"))
    with store.write() as conn:
        muting.end(conn, "default", "aa", now_s=120.0)
        muting.end(conn, "default", "aa", now_s=130.0)
        muting.end(conn, "default", "to-come", now_s=120.0)
        assert muting.get(conn, "default", "aa").ends_s == 120.0
        assert muting.active(conn, "default", now_s=160.0) == []
        for nobodys in ("bb", "nothing"):
            with pytest.raises(SilenceNotFound):
                muting.end(conn, "default", nobodys, now_s=120.0)
        assert muting.get(conn, "other", "bb").ends_s == 200.0


def test_silences_are_listed_with_those_that_end_last_first(store, added):
    added(*(silence(f"{n}", ends_s=200.0 + n // 2) for n in range(5)), silence("x", project="b"))
    with store.read() as conn:
        first, cursor = muting.page(conn, "default", limit=3)
        rest, end = muting.page(conn, "default", cursor=cursor, limit=3)
        assert [each.silence_id for each in first + rest] == ["4", "3", "2", "1", "0"]
        assert end is None
        late, _ = muting.page(conn, "default", ends_after_s=200.0)
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
def test_what_is_too_long_or_no_text_is_refused(store, wrong):
    with pytest.raises(InvalidRequest), store.write() as conn:
        muting.add(conn, silence(**wrong))


def test_a_project_has_so_many_silences_that_are_not_over_and_no_more(store, added):
    added(*(silence(f"{n}") for n in range(muting.MAX_SILENCES)))
    added(silence("another", project="other"))
    with pytest.raises(Conflict, match="end one first"):
        added(silence("one-more"))
    added(silence("later", created_s=200.0, starts_s=200.0, ends_s=201.0))


def test_all_silences_of_a_project_have_so_many_matchers_and_no_more(store, added):
    many = (Matcher("job", "x"),) * 32
    added(*(silence(f"{n}", matchers=many) for n in range(muting.MAX_MATCHERS_IN_ALL // 32)))
    with pytest.raises(Conflict, match="1000 matchers"):
        added(silence("one-more", matchers=many))
    added(silence("small", matchers=many[:8]), silence("o", project="other", matchers=many))


def test_a_silence_that_is_committed_is_seen_by_whoever_asks_then(store):
    """In one transaction that began before, too: a sender asks right after it has claimed."""
    if store.is_sqlite:
        pytest.skip("a write there waits for every other one")
    with store.write() as conn:
        assert muting.active(conn, "default", now_s=150.0) == []
        with ThreadPoolExecutor(1) as pool:
            pool.submit(_add, store, replace(silence(), comment="meanwhile")).result()
        [found] = muting.active(conn, "default", now_s=150.0)
    assert found.comment == "meanwhile"


def _add(store, given):
    with store.write() as conn:
        muting.add(conn, given)
