"""Stored state of the whole service and of a job's condition."""

from dataclasses import replace

import pytest

from app.store import dead_letters, jobs, runs, service_state, shards
from app.store.alerting import outbox, receivers
from app.store.runs import IngestCounts
from tests.store.factories import add_message, register, webhook_receiver
from tests.store.test_dead_letters import LETTER


@pytest.fixture
def state(store):
    """A function that reads the state at a given time."""

    def read(now_s=100.0):
        with store.read() as conn:
            return service_state.read(conn, num_shards=4, lease_s=15.0, now_s=now_s)

    return read


def test_shards_count_as_unheld_one_lease_after_lapsing(store, state):
    with store.write() as conn:
        shards.heartbeat(conn, "a", now_s=85.0, lease_s=15.0)
        for shard in (0, 2):
            shards.acquire(conn, shard, "a", now_s=85.0, lease_s=15.0)
    assert (state(100.0).live_consumers, state(100.0).unheld_shards) == (1, (1, 3))
    assert (state(101.0).live_consumers, state(115.0).unheld_shards) == (0, (1, 3))
    assert state(116.0).unheld_shards == (0, 1, 2, 3)


def test_outbox_age_is_that_of_the_oldest_due_message(store, state):
    with store.write() as conn:
        receivers.add(conn, webhook_receiver())
        for at_s in (70.0, 80.0):
            add_message(conn, notice_id=f"notice-{at_s}", now_s=at_s)
    assert (state().outbox_due, state().outbox_oldest_s) == (2, 30.0)
    with store.write() as conn:
        [delivery, *_] = outbox.claim(conn, now_s=90.0, lease_s=30.0, limit=1)
        outbox.mark_delivered(conn, delivery, now_s=91.0)
    assert (state().outbox_due, state().outbox_oldest_s) == (1, 20.0)


def test_settled_dead_letters_are_not_counted(store, state):
    with store.write() as conn:
        dead_letters.add(conn, [LETTER, replace(LETTER, entry_id="2-0")])
    assert state().dead_letters == 2
    with store.write() as conn:
        dead_letters.mark(conn, 1, "dropped", now_s=99.0)
    assert state().dead_letters == 1


def test_job_has_its_silent_ranks_and_counts(store):
    epoch = register(store, "job")
    sample = {"rank": 3, "batch_seq": 9}
    with store.write() as conn:
        before = jobs.get(conn, "job")
        runs.save_silent_ranks(conn, "job", epoch, runs.SilentRanks((3, 5), (1, 2), 50.0))
        runs.save(conn, "job", epoch, IngestCounts(accepted=5, conflict=2, last_conflict=sample))
    with store.read() as conn:
        after = jobs.get(conn, "job")
    assert (before.silent_ranks, before.stalled_since_s, before.counts) == (None, None, None)
    assert (list(after.silent_ranks or ()), after.silent_since_s) == ([3, 5], 50.0)
    assert after.silent_workers == (1, 2)
    assert after.counts == IngestCounts(accepted=5, conflict=2, last_conflict=sample)
