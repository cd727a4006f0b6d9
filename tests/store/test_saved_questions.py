"""Saved questions: stored by job, listed newest first, deleted on request."""

import pytest

from app.errors import Conflict, InvalidRequest, JobNotFound, QuestionNotFound
from app.store import saved_questions
from app.store.database import to_cursor
from app.store.saved_questions import MAX_SAVED
from app.store.tables import saved_questions as table
from tests.store.factories import register

IDEAL = {"edits": [{"change": {"kind": "ideal"}}]}


def saved(store, job_id="default/a", name="all ideal", now_s=1.0):
    with store.write() as conn:
        return saved_questions.save(
            conn, job_id, name=name, window_id="1-0", question=IDEAL, now_s=now_s
        )


def names(store, job_id="default/a", **page):
    with store.read() as conn:
        found, cursor = saved_questions.page(conn, job_id, **page)
    return [each.name for each in found], cursor


def test_saved_question_is_read_back(store):
    register(store, "default/a")
    kept = saved(store)
    with store.read() as conn:
        assert saved_questions.find(conn, "default/a", kept.question_id) == kept
    assert (kept.name, kept.window_id, kept.question) == ("all ideal", "1-0", IDEAL)


def test_saved_questions_are_paged_newest_first(store):
    register(store, "default/a")
    for number in range(5):
        # Two at the same time: the cursor still loses none.
        saved(store, name=str(number), now_s=float(number // 2))
    first, cursor = names(store, limit=2)
    second, cursor = names(store, limit=2, cursor=cursor)
    third, end = names(store, limit=2, cursor=cursor)
    assert sorted(first + second + third) == ["0", "1", "2", "3", "4"]
    assert first[0] == "4"
    assert end is None


def test_saved_questions_of_another_job_are_hidden(store):
    register(store, "default/a")
    register(store, "other/a")
    kept = saved(store)
    assert names(store, "other/a") == ([], None)
    with store.write() as conn, pytest.raises(QuestionNotFound):
        saved_questions.remove(conn, "other/a", kept.question_id)
    assert names(store)[0] == ["all ideal"]
    with store.write() as conn:
        saved_questions.remove(conn, "default/a", kept.question_id)
    assert names(store)[0] == []


def test_saved_questions_of_a_job_are_limited(store):
    register(store, "default/a")
    register(store, "default/b")
    full = {"job_id": "default/a", "name": "n", "window_id": "1-0", "question": IDEAL}
    rows = [full | {"question_id": f"{at:024x}", "saved_s": 1.0} for at in range(MAX_SAVED - 1)]
    with store.write() as conn:
        conn.execute(table.insert(), rows)
    saved(store)
    with pytest.raises(Conflict, match="delete one first"):
        saved(store)
    assert saved(store, "default/b").name == "all ideal"


def test_saved_questions_need_an_existing_job(store):
    with pytest.raises(JobNotFound):
        saved(store)
    with pytest.raises(JobNotFound):
        names(store)


@pytest.mark.parametrize("cursor", ["x", to_cursor("a", 1), to_cursor(1.0, "\0")])
def test_a_cursor_of_another_list_is_refused(store, cursor):
    register(store, "default/a")
    with pytest.raises(InvalidRequest):
        names(store, cursor=cursor)
