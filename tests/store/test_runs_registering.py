from concurrent.futures import ThreadPoolExecutor

import pytest

from app.errors import Conflict, EpochSuperseded, InvalidRequest, JobLimit, JobNotFound, RunLimit
from app.store import jobs, runs
from app.trace.job import Parallelism
from app.trace.ops import BUILT_IN, OpTypes
from tests.store.factories import OWN, register, registration


def test_all_ranks_of_a_run_get_the_same_epoch_and_a_restart_the_next(store):
    assert [register(store, run_key=key) for key in ("a", "a", "b", "b")] == [1, 1, 2, 2]


@pytest.mark.sql_sensitive
def test_concurrent_registrations_of_a_run_get_the_same_epoch(store):
    with ThreadPoolExecutor(8) as pool:
        epochs = list(pool.map(lambda _: register(store, run_key="a"), range(16)))
    assert epochs == [1] * 16


def test_rank_of_an_older_run_is_refused_as_superseded(store):
    register(store, run_key="a")
    register(store, run_key="b")
    with pytest.raises(EpochSuperseded, match="epoch 2, not 1"):
        register(store, run_key="a")


def test_ranks_of_a_run_must_register_the_same_sizes(store):
    register(store)
    with pytest.raises(Conflict, match="other parallel sizes"):
        register(store, parallelism=Parallelism(dp_size=4, pp_size=2))


def test_ranks_of_a_run_must_register_the_same_op_types(store):
    register(store, op_types=OWN)
    register(store, op_types=OpTypes(OWN.user[::-1]))
    for other in (BUILT_IN, OpTypes(OWN.user[:1])):
        with pytest.raises(Conflict, match="other op_types: all its ranks must name the same"):
            register(store, op_types=other)
    with pytest.raises(Conflict, match="other parallel sizes"):
        register(store, op_types=OWN, parallelism=Parallelism(2, 2, ep_size=2))
    with store.read() as conn:
        assert jobs.registration(conn, "job", 1).op_types == OWN, "in the order that came first"


def test_each_run_of_a_job_has_its_own_op_types(store):
    register(store, run_key="a", op_types=OWN)
    register(store, run_key="b")
    with store.read() as conn:
        assert jobs.registration(conn, "job", 1).op_types == OWN
        assert jobs.registration(conn, "job", 2).op_types is BUILT_IN
        assert jobs.get(conn, "job").op_types is BUILT_IN


@pytest.mark.parametrize(
    "given",
    [
        {"name": "a\0"},
        {"run_key": "\0"},
        {"framework": "\0"},
        {"labels": {"\0": ""}},
        {"labels": {"a": "\0"}},
        {"name": "\ud800"},
    ],
    ids=repr,
)
def test_text_that_cannot_be_stored_is_refused(store, given):
    with pytest.raises(InvalidRequest, match="cannot be stored"):
        register(store, **given)


@pytest.mark.sql_sensitive
def test_active_jobs_of_a_project_are_limited_and_restarts_exempt(store):
    def begin(job_id, run_key="a", *, now_s=100.0):
        with store.write() as conn:
            given = registration(run_key=run_key)
            return runs.register(conn, job_id, given, now_s=now_s, max_active_jobs=2)

    begin("a/1")
    begin("a/2")
    with pytest.raises(JobLimit, match=r"2 jobs that are active or .*, and may have 2"):
        begin("a/3")
    with store.read() as conn, pytest.raises(JobNotFound):
        jobs.get(conn, "a/3")
    assert begin("a/2") == (1, False)
    assert begin("a/2", "b") == (2, True)
    begin("b/1")
    with store.write() as conn:
        runs.end(conn, "a/1", now_s=101.0)
    with pytest.raises(JobLimit):
        begin("a/3")  # an ended job counts for a day too
    with store.write() as conn:
        runs.note_data(conn, "a/2", last_data_s=200.0, last_step=None, epoch=2)
    tomorrow_s = 100.0 + runs.ACTIVE_FOR_S  # the others sent nothing for a day
    begin("a/3", now_s=tomorrow_s)
    with pytest.raises(JobLimit):
        begin("a/4", now_s=tomorrow_s)


@pytest.mark.sql_sensitive
def test_new_runs_of_a_job_per_hour_are_limited(store, monkeypatch):
    monkeypatch.setattr(runs, "MAX_NEW_RUNS", 6)

    def begin(number, now_s):
        with store.write() as conn:
            given = registration(run_key=str(number))
            return runs.register(conn, "a/1", given, now_s=now_s, max_active_jobs=1)

    for number in range(runs.MAX_NEW_RUNS):
        begin(number, 100.0)
    with pytest.raises(RunLimit, match="6 runs within an hour"):
        begin("one more", 101.0)
    begin(runs.MAX_NEW_RUNS - 1, 101.0)  # a repeated registration is no new run
    begin("one more", 100.0 + runs.NEW_RUNS_WITHIN_S)
