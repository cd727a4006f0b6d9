"""Recording plans, drop counts, and extensions that consumers can read."""

from threading import Thread

import pytest
from sqlalchemy import update

from app.errors import JobNotFound
from app.store import jobs, recordings, runs, shards
from app.store.recordings import MAX_PLANS, RecordingPlan, StepSample, plans_of_run
from app.store.tables import consumers
from tests.store.factories import register


def add(store, *, epoch=1, from_step=10, sample=None, by="me"):
    with store.write() as conn:
        runs.current_epoch(conn, "job", for_update=True)
        sample = sample or StepSample(every=10)
        return recordings.add(conn, "job", epoch, sample, from_step=from_step, now_s=1.5, by=by)


def plans(store):
    with store.read() as conn:
        return recordings.of_job(conn, "job")


def test_job_without_plans_has_none(store):
    register(store)
    assert plans(store) == []
    made = add(store, sample=StepSample(enabled=False))
    assert made == RecordingPlan(1, 1, 10, StepSample(enabled=False), 1.5, "me")
    assert plans(store) == [made]
    with store.read() as conn:
        assert jobs.get(conn, "job").plans == [made]


def test_plan_versions_increase_after_old_plans_are_removed(store):
    register(store)
    for number in range(MAX_PLANS + 3):
        add(store, from_step=number)
    kept = plans(store)
    assert [plan.version for plan in kept] == list(range(4, MAX_PLANS + 4))
    assert [plan.from_step for plan in kept] == list(range(3, MAX_PLANS + 3))


def test_later_run_starts_with_the_newest_earlier_plan():
    one, two = (RecordingPlan(v, 1, 100 * v, StepSample(every=v), 0.0, "") for v in (1, 2))
    own = RecordingPlan(3, 2, 7, StepSample(every=3), 0.0, "")
    assert plans_of_run([one, two], 1) == [one, two]
    assert plans_of_run([one, two], 2) == [RecordingPlan(2, 2, 0, StepSample(every=2), 0.0, "")]
    assert plans_of_run([one, two, own], 2)[1:] == [own]
    assert [plan.from_step for plan in plans_of_run([one, two, own], 5)] == [0]
    assert plans_of_run([], 1) == []


def test_unregistered_job_cannot_be_locked(store):
    with pytest.raises(JobNotFound), store.write() as conn:
        runs.current_epoch(conn, "job", for_update=True)


@pytest.mark.sql_sensitive
def test_concurrent_plans_get_successive_versions(store):
    register(store)
    threads = [Thread(target=add, args=[store], kwargs={"by": str(n)}) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [plan.version for plan in plans(store)] == [1, 2, 3, 4]
    assert {plan.set_by for plan in plans(store)} == {"0", "1", "2", "3"}


def test_drops_are_summed_over_the_ranks_of_a_worker(store):
    register(store)
    by_rank = [(0, 0, 0, 5), (1, 0, 0, 2), (2, 0, 1, 0), (3, 1, 0, 9)]
    with store.write() as conn:
        runs.save_drops(conn, "job", 1, by_rank[:1])
        runs.save_drops(conn, "job", 1, by_rank)
    with store.read() as conn:
        assert jobs.get(conn, "job").drops == (16, 2, [(1, 0, 9), (0, 0, 7)])
        assert runs.drops_of_worker(conn, "job", 1, 0, 0) == 7
        assert runs.drops_of_worker(conn, "job", 1, 0, 1) == 0
        assert runs.drops_of_worker(conn, "job", 1, 1, 1) is None
        assert runs.drops_of_worker(conn, "job", 2, 0, 0) is None


def test_drops_name_only_the_worst_workers(store):
    register(store)
    with store.write() as conn:
        runs.save_drops(conn, "job", 1, [(rank, rank, 0, rank % 40) for rank in range(100)])
    with store.read() as conn:
        found = jobs.get(conn, "job").drops
    assert found is not None
    assert (found.num_workers, len(found.worst)) == (97, runs.MAX_WORST)
    assert [each[0] for each in found.worst] == [39, 79, 38, 78, 37, 77, 36, 76]


def test_drops_are_of_one_run(store):
    register(store)
    with store.write() as conn:
        runs.save_drops(conn, "job", 1, [(0, 0, 0, 5)])
    register(store, run_key="run-2")
    with store.read() as conn:
        assert jobs.get(conn, "job").drops is None


def known(store, now_s=0.0):
    with store.read() as conn:
        return shards.extensions_known_to_all(conn, ["a", "b"], now_s=now_s)


def test_extensions_need_every_live_consumer(store):
    assert known(store) == ["a", "b"]  # a consumer that starts now has reported nothing yet
    with store.write() as conn:
        shards.heartbeat(conn, "new", now_s=0.0, lease_s=60.0, knows=["b", "a", "c"])
        shards.heartbeat(conn, "older", now_s=0.0, lease_s=30.0, knows=["b"])
    assert known(store) == ["b"]
    assert known(store, now_s=31.0) == ["a", "b"]


def test_older_consumer_knows_no_extensions(store):
    with store.write() as conn:
        shards.heartbeat(conn, "old", now_s=0.0, lease_s=60.0, knows=["a"])
        conn.execute(update(consumers).values(knows=None))
    assert known(store) == []
