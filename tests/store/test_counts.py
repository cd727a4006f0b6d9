from dataclasses import replace

import pytest
from sqlalchemy.exc import IntegrityError

from app.store import counts, projects, totals, trials
from app.store.counts import Counts
from tests.store.factories import register

COUNTS = Counts(
    accepted=2**40, duplicate=2, conflict=3, late=4, dead=5, lost_batches=6,
    last_conflict={"rank": 7, "batch_seq": 8, "at_s": 9.5},
)  # fmt: skip


def test_what_became_of_the_operations_of_a_run_is_read_as_it_was_saved(store):
    register(store, "default/job")
    with store.write() as conn:
        assert counts.load(conn, "default/job", 1) == Counts()
        counts.save(conn, "default/job", 1, COUNTS)
        counts.save(conn, "default/job", 1, more := replace(COUNTS, late=40))
        assert counts.load(conn, "default/job", 1) == more
        assert counts.load(conn, "default/job", 2) == Counts()
    assert more.taken == 2**40 + 2 + 3 + 40 + 5


def test_a_run_that_never_registered_counts_nothing(store):
    with pytest.raises(IntegrityError), store.write() as conn:
        counts.save(conn, "default/nobody", 1, COUNTS)


def test_sums_are_of_each_projects_own_runs(store):
    # "a" and "a-b" sort around one another, "0" comes right after "/".
    with store.write() as conn:
        for project in ("a", "a-b", "a0", "none"):
            projects.make(conn, project, now_s=1.0)
    for key in ("a/job", "a/zzz", "a-b/job", "a0/job"):
        register(store, key, run_key="one")
        register(store, key, run_key="two")
    with store.write() as conn:
        for n, key in enumerate(("a/job", "a/zzz", "a-b/job", "a0/job")):
            for epoch in (1, 2):
                counts.save(conn, key, epoch, Counts(accepted=10**n, late=epoch))
        found = dict(counts.by_project(conn))
    assert {project: each.accepted for project, each in found.items()} == {
        "a": 22, "a-b": 200, "a0": 2000, "default": 0, "none": 0,
    }  # fmt: skip
    assert found["a"] == Counts(accepted=22, late=6)


def test_the_sums_of_a_project_do_not_go_down_when_a_run_is_removed(store):
    register(store, "default/job")
    with store.write() as conn:
        counts.save(conn, "default/job", 1, COUNTS)
        counts.add_to_project(conn, "default", Counts(dead=100))
        before = counts.by_project(conn)
        assert before == [("default", replace(COUNTS, dead=105, last_conflict=None))]
        counts.remove(conn, "default/job", 1)
        assert counts.load(conn, "default/job", 1) == Counts()
        assert counts.by_project(conn) == before
        counts.remove(conn, "default/job", 1)
        assert counts.by_project(conn) == before


def test_totals_only_grow_and_are_of_the_whole_service(store):
    with store.write() as conn:
        totals.add(conn, "fenced_commits", 1)
        totals.add(conn, "fenced_commits", 2**40)
        totals.add(conn, "entries_lost", 3)
        counts.add_to_project(conn, "default", Counts(dead=4))
        trials.begin(conn, 0, "1700000000000-0", "p")  # counted there, and no count of the service
        assert totals.all(conn) == {"entries_lost": 3, "fenced_commits": 2**40 + 1}
        assert totals.parts(conn, "default") == {"dead": 4}
        assert totals.parts(conn, "fault") == {}
