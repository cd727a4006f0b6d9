"""Score reports of other tools: stored by job, newest first, the oldest removed over a limit."""

from typing import Any

import pytest

from app.errors import InvalidRequest, JobNotFound, ReportNotFound
from app.store import retention, scores
from app.store.database import now_s as database_now_s
from app.store.database import to_cursor
from app.store.retention import RetentionLimits
from app.store.scores import MAX_REPORTS, MAX_SCORES
from app.store.tables import score_reports
from app.trace.readers.importing import MissingData
from app.trace.readers.scores.score_report import Score, ScoreReport
from tests.store.factories import register


def score(rank=0, **changes):
    usual: dict[str, Any] = {"node": "hö\N{SNOWMAN}", "section": "GPU kernels", "metric": "m"}
    usual |= {"unit": None, "value": 0.1 + 0.2, "mean": 1e-300, "score": 0.5, "slowdown": 2.0}
    return Score(
        **{"rank": rank, **usual, "num": 1, "of": 2, "step": 2**53, "at_s": None} | changes
    )


def report(*found, source="nvrx"):
    lacks = (MissingData("3 of 9 scores", "shown without"),)
    return ScoreReport(source, found or (score(),), num_reports=3, missing=lacks)


def add(store, job_id="default/a", *, now_s=1.0, **more):
    with store.write() as conn:
        return scores.add(conn, job_id, report(**more), now_s=now_s)


def test_score_report_is_read_back(store):
    register(store, "default/a")
    found = (score(7), score(None, node="host-a, process 3", value=None, score=None, slowdown=None))
    with store.write() as conn:
        kept = scores.add(conn, "default/a", report(*found), now_s=1.0)
    with store.read() as conn:
        assert scores.scores_of(conn, "default/a", kept.report_id) == (kept, [*found])
        assert scores.page(conn, "default/a") == ([kept], None)
    assert (kept.epoch, kept.num_scores, kept.num_reports) == (1, 2, 3)
    assert kept.lacks == (MissingData("3 of 9 scores", "shown without"),)


def test_a_report_of_another_release_can_be_read(store):
    # Stored with an unknown field and without a known one.
    kept_fields = ["rank", "section", "metric", "colour", "value", "num", "of", "at_s"]
    rows = [[7, "fwd", "late-by", "red", 0.5, 1, 2, 3.5]]
    register(store, "default/a")
    kept = add(store)
    with store.write() as conn:
        packed = {"fields": kept_fields, "rows": rows}
        conn.execute(score_reports.update().values(scores=packed))
    with store.read() as conn:
        _, [found] = scores.scores_of(conn, "default/a", kept.report_id)
    assert found == Score(7, None, "fwd", "late-by", None, 0.5, None, None, None, 1, 2, None, 3.5)


def test_newest_report_of_each_tool_is_found(store):
    register(store, "default/a")
    register(store, "other/a")
    for now_s, source in ((1.0, "nvrx"), (2.0, "own"), (3.0, "nvrx"), (4.0, "own")):
        add(store, source=source, now_s=now_s)
    add(store, "other/a", now_s=5.0)
    with store.read() as conn:
        found = [(each.source, each.received_s) for each in scores.newest(conn, "default/a")]
    assert found == [("nvrx", 3.0), ("own", 4.0)]


def test_score_reports_are_paged_newest_first(store):
    register(store, "default/a")
    for number in range(5):
        add(store, now_s=float(number // 2), source="own" if number == 1 else "nvrx")
    with store.read() as conn:
        first, cursor = scores.page(conn, "default/a", limit=2)
        second, cursor = scores.page(conn, "default/a", limit=2, cursor=cursor)
        third, end = scores.page(conn, "default/a", limit=2, cursor=cursor)
        own, _ = scores.page(conn, "default/a", source="own")
    found = [each.received_s for each in (*first, *second, *third)]
    assert (found, end) == ([2.0, 1.0, 1.0, 0.0, 0.0], None)
    assert [each.source for each in own] == ["own"]


def test_oldest_reports_over_the_limit_are_removed(store):
    register(store, "default/a")
    oldest = add(store, now_s=0.5)
    with store.write() as conn:
        kept = conn.execute(score_reports.select()).one()._mapping
        rows = [{**kept, "report_id": f"{at:024x}", "received_s": 1.0} for at in range(MAX_REPORTS)]
        conn.execute(score_reports.insert(), rows[1:])
    add(store, now_s=2.0)
    with store.read() as conn:
        found, _ = scores.page(conn, "default/a", limit=2 * MAX_REPORTS)
        with pytest.raises(ReportNotFound):
            scores.scores_of(conn, "default/a", oldest.report_id)
    assert len(found) == MAX_REPORTS


def test_empty_and_oversized_reports_are_refused(store):
    register(store, "default/a")
    for found in ((), tuple(score(rank) for rank in range(MAX_SCORES + 1))):
        with store.write() as conn, pytest.raises(InvalidRequest, match="score"):
            scores.add(conn, "default/a", ScoreReport("own", found, 1), now_s=1.0)


def test_score_reports_need_an_existing_job(store):
    register(store, "other/a")
    kept = add(store, "other/a")
    with pytest.raises(JobNotFound):
        add(store)
    with store.read() as conn:
        for ask in (scores.page, scores.newest):
            with pytest.raises(JobNotFound):
                ask(conn, "default/a")
        with pytest.raises(JobNotFound):
            scores.scores_of(conn, "default/a", kept.report_id)


@pytest.mark.parametrize("cursor", ["x", to_cursor("a", 1), to_cursor(1.0, "\0")])
def test_a_cursor_of_another_list_is_refused(store, cursor):
    register(store, "default/a")
    with store.read() as conn, pytest.raises(InvalidRequest):
        scores.page(conn, "default/a", cursor=cursor)


def test_score_reports_expire_with_results(store):
    register(store, "default/a")
    with store.read() as conn:
        now_s = database_now_s(conn)
    add(store, now_s=now_s - 5 * 86_400)
    fresh = add(store, now_s=now_s - 3 * 86_400)
    keep = RetentionLimits(raw_days=1.0, results_days=4.0)
    assert [(each.kind, each.number) for each in retention.count_old(store, keep)] == [
        ("scores", 1)
    ]
    assert [(each.kind, each.number) for each in retention.sweep(store, keep)] == [("scores", 1)]
    with store.read() as conn:
        assert scores.page(conn, "default/a")[0] == [fresh]
