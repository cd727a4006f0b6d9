"""What is written down of the whole service, and of a job's condition, is read back."""

from dataclasses import replace
from typing import get_args

import pytest

from app.store import counts, dead_letters, endpoints, jobs, outbox, service_state, shards, silent
from app.store import totals as totals_of
from app.store.counts import Counts
from app.store.dead_letters import DeadLetter
from app.store.notifying import Notifying, Outcome
from tests.store.factories import endpoint, register, tell

LETTER = DeadLetter("job", 1, "1-0", 5, 3, "broken", 90.0, 95.0, b"body")


@pytest.fixture
def state(store):
    """A function that reads the state at a time."""

    def read(now_s=100.0):
        with store.read() as conn:
            return service_state.read(conn, num_shards=4, lease_s=15.0, now_s=now_s)

    return read


def test_a_new_service_has_done_nothing(state):
    assert state() == service_state.ServiceState(
        counts=Counts(),
        totals={},
        dead_letters=0,
        outbox_due=0,
        outbox_oldest_s=None,
        live_consumers=0,
        unheld_shards=(0, 1, 2, 3),
        notifying=Notifying(
            firing=dict.fromkeys(("info", "warning", "critical"), 0),
            disabled_endpoints=0,
            outcomes=dict.fromkeys(get_args(Outcome), 0),
        ),
    )


def test_counts_are_summed_over_runs_projects_and_what_is_no_longer_kept(store, state):
    register(store, "default/a")
    register(store, "default/b")
    with store.write() as conn:
        counts.save(conn, "default/a", 1, Counts(1, 10, 100, 1_000, 10_000, 3))
        counts.save(conn, "default/b", 1, Counts(2, 20, 200, 2_000, 20_000, 4))
        counts.add_to_project(conn, "other", Counts(accepted=4, dead=40_000))
        totals_of.add(conn, "fenced_commits", 7)
    assert state().counts == Counts(7, 30, 300, 3_000, 70_000, 7)
    assert state().totals == {"fenced_commits": 7}
    with store.write() as conn:
        counts.remove(conn, "default/a", 1)
    assert state().counts == Counts(7, 30, 300, 3_000, 70_000, 7)


def test_shards_are_unheld_from_a_lease_after_the_lease_on(store, state):
    with store.write() as conn:
        shards.heartbeat(conn, "a", now_s=85.0, lease_s=15.0)
        for shard in (0, 2):
            shards.acquire(conn, shard, "a", now_s=85.0, lease_s=15.0)
    assert (state(100.0).live_consumers, state(100.0).unheld_shards) == (1, (1, 3))
    assert (state(101.0).live_consumers, state(115.0).unheld_shards) == (0, (1, 3))
    assert state(116.0).unheld_shards == (0, 1, 2, 3)


def test_what_is_still_to_be_sent_has_an_age(store, state):
    with store.write() as conn:
        endpoints.add(conn, endpoint())
        for at_s in (70.0, 80.0):
            tell(conn, notice_id=f"notice-{at_s}", now_s=at_s)
    assert (state().outbox_due, state().outbox_oldest_s) == (2, 30.0)
    with store.write() as conn:
        [delivery, *_] = outbox.claim(conn, now_s=90.0, lease_s=30.0, limit=1)
        outbox.delivered(conn, delivery, now_s=91.0)
    assert (state().outbox_due, state().outbox_oldest_s) == (1, 20.0)


def test_letters_that_somebody_has_dealt_with_no_longer_wait(store, state):
    with store.write() as conn:
        dead_letters.add(conn, [LETTER, replace(LETTER, entry_id="2-0")])
    assert state().dead_letters == 2
    with store.write() as conn:
        [letter, _] = dead_letters.page(conn)[0]
        dead_letters.mark(conn, letter.letter_id, "dropped", now_s=99.0)
    assert state().dead_letters == 1


def test_a_job_says_who_is_silent_and_what_became_of_its_operations(store):
    epoch = register(store, "job")
    sample = {"rank": 3, "batch_seq": 9}
    with store.write() as conn:
        before = jobs.get(conn, "job")
        silent.save(
            conn,
            "job",
            epoch,
            silent_ranks=(3, 5),
            silent_workers=(1, 2),
            silent_since_s=50.0,
            stalled_since_s=None,
        )
        counts.save(conn, "job", epoch, Counts(accepted=5, conflict=2, last_conflict=sample))
    with store.read() as conn:
        after = jobs.get(conn, "job")
    assert (before.silent_ranks, before.stalled_since_s, before.counts) == (None, None, None)
    assert (list(after.silent_ranks or ()), after.silent_since_s) == ([3, 5], 50.0)
    assert after.silent_workers == [1, 2]
    assert after.counts == Counts(accepted=5, conflict=2, last_conflict=sample)


def test_a_new_run_begins_without_what_was_counted_of_the_one_before(store):
    epoch = register(store, "job")
    with store.write() as conn:
        counts.save(conn, "job", epoch, Counts(accepted=5))
        silent.save(
            conn,
            "job",
            epoch,
            silent_ranks=(),
            silent_workers=(),
            silent_since_s=None,
            stalled_since_s=50.0,
        )
    register(store, "job", run_key="run-2")
    with store.read() as conn:
        job = jobs.get(conn, "job")
    assert (job.counts, job.stalled_since_s) == (None, None)
