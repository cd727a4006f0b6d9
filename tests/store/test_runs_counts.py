from dataclasses import replace

import pytest
from sqlalchemy.exc import IntegrityError

from app.store import dead_letters, runs
from app.store.runs import IngestCounts
from tests.store.factories import register

COUNTS = IngestCounts(
    accepted=2**40, duplicate=2, conflict=3, late=4, dead=5, lost_batches=6,
    last_conflict={"rank": 7, "batch_seq": 8, "at_s": 9.5},
)  # fmt: skip


@pytest.mark.sql_sensitive
def test_counts_of_a_run_are_read_back(store):
    register(store, "default/job")
    with store.write() as conn:
        assert runs.load(conn, "default/job", 1) == IngestCounts()
        runs.save(conn, "default/job", 1, COUNTS)
        runs.save(conn, "default/job", 1, more := replace(COUNTS, late=40))
        assert runs.load(conn, "default/job", 1) == more
        assert runs.load(conn, "default/job", 2) == IngestCounts()
    assert more.taken == 2**40 + 2 + 3 + 40 + 5


def test_counts_of_an_unregistered_run_are_refused(store):
    with pytest.raises(IntegrityError), store.write() as conn:
        runs.save(conn, "default/nobody", 1, COUNTS)


@pytest.mark.sql_sensitive
def test_service_counts_sum_all_runs_of_all_projects(store):
    for key in ("a/job", "a/zzz", "a-b/job", "a0/job"):
        register(store, key, run_key="one")
        register(store, key, run_key="two")
    with store.write() as conn:
        for n, key in enumerate(("a/job", "a/zzz", "a-b/job", "a0/job")):
            for epoch in (1, 2):
                runs.save(conn, key, epoch, IngestCounts(accepted=10**n, late=epoch))
        assert runs.service_counts(conn) == IngestCounts(accepted=2222, late=12)


def test_service_counts_keep_those_of_removed_runs(store):
    register(store, "default/job")
    with store.write() as conn:
        runs.save(conn, "default/job", 1, COUNTS)
        runs.add_to_project(conn, "default", IngestCounts(dead=100))
        before = runs.service_counts(conn)
        assert before == replace(COUNTS, dead=105, last_conflict=None)
        runs.remove(conn, "default/job", 1)
        assert runs.load(conn, "default/job", 1) == IngestCounts()
        assert runs.service_counts(conn) == before
        runs.remove(conn, "default/job", 1)
        assert runs.service_counts(conn) == before


@pytest.mark.sql_sensitive
def test_service_and_project_totals_are_summed_separately(store):
    with store.write() as conn:
        runs.add_to_total(conn, "fenced_commits", 1)
        runs.add_to_total(conn, "fenced_commits", 2**40)
        runs.add_to_total(conn, "entries_lost", 3)
        runs.add_to_project(conn, "default", IngestCounts(dead=4))
        dead_letters.begin_trials(conn, 0, ["1700000000000-0"], "p")  # a trial is no service total
        assert runs.service_totals(conn) == {"entries_lost": 3, "fenced_commits": 2**40 + 1}
        assert runs.summed_project_totals(conn) == {"dead": 4}
