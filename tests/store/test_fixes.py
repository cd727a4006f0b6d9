"""Predictions of fixes: one followed at a time, outcomes kept as history."""

import time
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import text

from app.advice.outcome import SeenWindow
from app.errors import Conflict, FixNotFound, InvalidRequest, JobNotFound
from app.store import fixes, retention
from app.store.database import to_cursor
from app.store.fixes import EXPIRES_AFTER_S
from app.store.retention import RetentionLimits
from tests.store.factories import prediction, register

JOB = "default/a"
DAY_S = 86_400.0
SEEN = SeenWindow(2, 16, 8, 2.05, "applied", ("gc-pause",))


@pytest.fixture
def job(store):
    register(store, JOB)
    return store


def save(store, found=None, *, job_id=JOB, now_s=1.0, **given):
    with store.write() as conn:
        return fixes.save_prediction(
            conn, job_id, prediction(**given) if found is None else found, now_s=now_s
        )


def update(store, record, now_s=2.0, **changes):
    with store.write() as conn:
        return fixes.save(
            conn, record.with_tracked(replace(record.tracked, **changes)), now_s=now_s
        )


def live(store, job_id=JOB, now_s=3.0):
    with store.write() as conn:
        return fixes.live(conn, job_id, now_s=now_s)


def listed(store, now_s=3.0, **given):
    with store.read() as conn:
        found, cursor = fixes.page(conn, "default", now_s=now_s, **given)
    return [each.tracked.fix for each in found], cursor


def test_progress_is_read_back(job):
    values: dict[str, Any] = {
        "state": "applied",
        "windows": (SEEN,),
        "num_there": 3,
        "applied_epoch": 2,
        "applied_step": 16,
        "achieved": 1.17,
        "note": "a note",
    }
    record = update(job, save(job), **values)
    assert live(job) == [record]
    assert record.tracked == replace(prediction().tracked, **values)
    assert record.updated_s == 2.0


def test_newer_prediction_replaces_the_open_one_of_the_same_fix(job):
    first = save(job)
    update(job, first, num_there=2)
    again = save(job, first_step=8, now_s=5.0)
    assert (again.fix_id, again.predicted_s, again.updated_s) == (first.fix_id, 1.0, 5.0)
    assert (again.tracked.first_step, again.tracked.num_there) == (8, 2)
    save(job, fix="planned-gc")
    assert [each.tracked.fix for each in live(job)] == ["planned-gc", "replace-worker"]


def test_fix_that_is_being_measured_keeps_its_prediction(job):
    update(job, save(job), state="applied", applied_epoch=2, applied_step=16)
    with pytest.raises(Conflict, match="being measured"):
        save(job, first_step=24)


def test_outcome_stays_beside_a_new_prediction(job):
    update(job, save(job), state="measured", achieved=1.1)
    new = save(job, first_step=24, now_s=4.0)
    assert live(job) == [new]
    assert listed(job)[0] == ["replace-worker"] * 2


def test_predictions_of_other_jobs_are_not_touched(job):
    register(job, "default/b")
    save(job)
    other = save(job, job_id="default/b")
    assert live(job, "default/b") == [other]


def test_open_prediction_expires_and_can_be_made_again(job):
    record = save(job)
    later_s = 2.0 + EXPIRES_AFTER_S
    assert live(job, now_s=later_s) == []
    assert record.state_at(later_s) == "expired"
    assert listed(job, later_s, state="expired")[0] == ["replace-worker"]
    assert listed(job, later_s, state="open")[0] == []
    again = save(job, now_s=later_s)
    assert live(job, now_s=later_s) == [again]
    assert again.predicted_s == later_s


def test_open_prediction_expires_though_windows_go_on_to_change_it(job):
    record = save(job)
    for day in range(5, 35, 5):
        record = update(job, record, now_s=day * DAY_S, num_there=day)
    assert record.state_at(31 * DAY_S) == "expired"
    assert live(job, now_s=31 * DAY_S) == []
    assert listed(job, 31 * DAY_S, state="expired")[0] == ["replace-worker"]
    assert listed(job, 31 * DAY_S, state="open")[0] == []


def test_prediction_for_a_newer_window_begins_the_time_anew(job):
    save(job)
    save(job, first_step=8, now_s=20 * DAY_S)
    [record] = live(job, now_s=31 * DAY_S)
    assert (record.predicted_s, record.renewed_s) == (1.0, 20 * DAY_S)


def test_open_prediction_is_not_moved_to_an_older_window(job):
    record = save(job, first_step=16)
    with pytest.raises(Conflict, match="window 1-16, which is newer than 1-8"):
        save(job, first_step=8)
    assert live(job) == [record]


def test_newest_place_counts_finished_predictions_and_unreadable_ones(job):
    def newest():
        with job.read() as conn:
            return fixes.newest_place(conn, JOB)

    assert newest() is None
    record = save(job, first_step=8)
    assert newest() == (1, 8)
    record = update(job, record, state="measured", applied_epoch=2, applied_step=4)
    assert newest() == (2, 4)
    update(job, record, windows=(SEEN,))
    assert newest() == (2, 16)
    damage(job, record, windows="[")
    assert newest() == (2, 4)


def damage(store, record, **texts):
    with store.write() as conn:
        for name, value in texts.items():
            query = text(f"UPDATE fixes SET {name} = :value WHERE fix_id = :fix_id")
            conn.execute(query, {"value": value, "fix_id": record.fix_id})


@pytest.mark.parametrize("texts", [{"sign": "{"}, {"windows": "null"}], ids=str)
def test_unreadable_row_expires_and_stops_no_other(job, texts):
    bad, good = save(job), save(job, fix="planned-gc")
    damage(job, bad, **texts)
    assert listed(job)[0] == ["planned-gc"]
    assert live(job) == [good]
    assert listed(job, state="open")[0] == ["planned-gc"]
    with job.read() as conn:
        states = {row.fix: row.state for row in conn.execute(text("SELECT fix, state FROM fixes"))}
    assert states == {"replace-worker": "expired", "planned-gc": "open"}
    with job.write() as conn:
        assert fixes.remove(conn, JOB, bad.fix_id) == "replace-worker"


def test_page_has_the_newest_first_and_no_other_project(job):
    register(job, "research/a")
    save(job, job_id="research/a", fix="repair-link")
    for number, name in enumerate(("replace-worker", "planned-gc", "resplit-stages")):
        save(job, fix=name, now_s=float(number // 2))
    first, cursor = listed(job, limit=2)
    rest, end = listed(job, limit=2, cursor=cursor)
    assert first[0] == "resplit-stages"
    assert sorted(first + rest) == ["planned-gc", "replace-worker", "resplit-stages"]
    assert end is None
    assert listed(job, job_id=JOB)[0] == first + rest
    assert listed(job, state="measured") == ([], None)
    with pytest.raises(InvalidRequest):
        listed(job, cursor=to_cursor("x"))


def test_due_outcomes_are_notified_once(job):
    record = update(job, save(job), state="measured")
    with job.write() as conn:
        assert fixes.due_notices(conn, JOB) == []
        fixes.save(conn, replace(record, notice="due"), now_s=3.0)
        [due] = fixes.due_notices(conn, JOB)
        fixes.mark_notified(conn, [due.fix_id])
        assert fixes.due_notices(conn, JOB) == []


def test_deleted_prediction_is_gone(job):
    record = save(job)
    with job.write() as conn:
        assert fixes.remove(conn, JOB, record.fix_id) == "replace-worker"
    with pytest.raises(FixNotFound), job.write() as conn:
        fixes.remove(conn, JOB, record.fix_id)


def test_unknown_job_is_refused(job):
    with pytest.raises(JobNotFound):
        save(job, job_id="default/none")
    with pytest.raises(JobNotFound):
        listed(job, job_id="default/none")
    with pytest.raises(JobNotFound), job.write() as conn:
        fixes.remove(conn, "default/none", "ab")


def test_outcomes_expire_with_results(job):
    record = save(job, now_s=time.time() - 400 * DAY_S)
    kept = save(job, fix="planned-gc", now_s=time.time() - DAY_S)
    removed = list(retention.sweep(job, RetentionLimits(raw_days=14.0, results_days=180.0)))
    assert [(each.kind, each.number) for each in removed] == [("fixes", 1)]
    with job.read() as conn:
        assert fixes.page(conn, "default", now_s=time.time())[0] == [kept]
    assert record != kept
