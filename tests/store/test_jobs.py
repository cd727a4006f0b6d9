from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields

import pytest

from app.errors import Conflict, EpochSuperseded, InvalidRequest, JobLimit, JobNotFound, RunLimit
from app.store import jobs, silent, windows
from app.trace import user_types
from app.trace.job import Parallelism
from app.trace.ops import BUILT_IN, FIRST_USER_CODE, Axis, Kind, OpSpec, OpTypes
from tests.store.factories import register, registration, window

OWN = user_types.parse(
    [
        {"name": "moe-all-to-all", "kind": "collective", "axis": "ep"},
        {"name": "router", "kind": "compute"},
    ]
)


def test_a_job_is_read_as_it_registered(store):
    given = registration(
        framework="megatron",
        labels={"team": "speech", "Ä": "é"},
        num_gpus=32,
        parallelism=Parallelism(4, 2, ep_size=2),
        op_types=OWN,
    )
    with store.write() as conn:
        assert jobs.register(conn, "job", given, now_s=100.5) == (1, True)
    with store.read() as conn:
        record = jobs.get(conn, "job")
        assert jobs.run(conn, "job", 1) == given
    for field in fields(given):
        assert getattr(record, field.name) == getattr(given, field.name)
    assert (record.epoch, record.registered_s) == (1, 100.5)
    unknown = (record.ended_s, record.last_data_s, record.last_step, record.latest)
    assert unknown == (None,) * 4


def test_all_ranks_of_a_run_get_the_same_epoch_and_a_restart_the_next(store):
    assert [register(store, run_key=key) for key in ("a", "a", "b", "b")] == [1, 1, 2, 2]


def test_ranks_that_register_at_once_get_the_same_epoch(store):
    with ThreadPoolExecutor(8) as pool:
        epochs = list(pool.map(lambda _: register(store, run_key="a"), range(16)))
    assert epochs == [1] * 16


def test_a_rank_of_an_older_run_is_told_that_it_is_superseded(store):
    register(store, run_key="a")
    register(store, run_key="b")
    with pytest.raises(EpochSuperseded, match="epoch 2, not 1"):
        register(store, run_key="a")


def test_ranks_of_one_run_may_not_disagree_about_its_sizes(store):
    register(store)
    with pytest.raises(Conflict, match="other parallel sizes"):
        register(store, parallelism=Parallelism(dp_size=4, pp_size=2))


def test_ranks_of_one_run_may_not_disagree_about_its_operation_types(store):
    register(store, op_types=OWN)
    register(store, op_types=OpTypes(OWN.user[::-1]))
    for other in (BUILT_IN, OpTypes(OWN.user[:1])):
        with pytest.raises(Conflict, match="other op_types: all its ranks must name the same"):
            register(store, op_types=other)
    with pytest.raises(Conflict, match="other parallel sizes"):
        register(store, op_types=OWN, parallelism=Parallelism(2, 2, ep_size=2))
    with store.read() as conn:
        assert jobs.run(conn, "job", 1).op_types == OWN, "in the order that came first"


def test_a_new_run_may_have_other_operation_types_and_the_old_one_keeps_its_own(store):
    register(store, run_key="a", op_types=OWN)
    register(store, run_key="b")
    with store.read() as conn:
        assert jobs.run(conn, "job", 1).op_types == OWN
        assert jobs.run(conn, "job", 2).op_types is BUILT_IN
        assert jobs.get(conn, "job").op_types is BUILT_IN


def test_a_run_is_read_though_a_built_in_type_has_got_the_name_of_its_own(store):
    register(store, op_types=OpTypes((OpSpec("gc", Kind.COLLECTIVE, Axis.EP, stream="gc"),)))
    with store.read() as conn:
        assert jobs.run(conn, "job", 1).job.op_types.codes["gc"] == FIRST_USER_CODE


def test_a_refused_registration_leaves_nothing_behind(store):
    with pytest.raises(InvalidRequest):
        register(store, name="a\0b")
    with store.read() as conn:
        assert jobs.page(conn) == ([], None)


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
def test_text_that_a_database_cannot_keep_is_refused(store, given):
    with pytest.raises(InvalidRequest, match="no text"):
        register(store, **given)


def test_a_new_run_begins_without_the_figures_of_the_one_before(store):
    register(store, run_key="a", name="old")
    with store.write() as conn:
        jobs.touch(conn, "job", last_data_s=5.0, last_step=9, epoch=1)
        jobs.end(conn, "job", now_s=6.0)
        windows.save(conn, "job", window())
    register(store, run_key="b", name="new")
    with store.read() as conn:
        record = jobs.get(conn, "job")
    assert (record.name, record.epoch, record.last_step) == ("new", 2, None)
    assert (record.last_data_s, record.ended_s, record.latest) == (None, None, None)


def test_times_and_steps_never_go_back(store):
    register(store)
    with store.write() as conn:
        jobs.touch(conn, "job", last_data_s=5.0, last_step=9, epoch=1)
        jobs.touch(conn, "job", last_data_s=4.0, last_step=8, epoch=1)
        jobs.touch(conn, "job", last_data_s=6.0, last_step=None, epoch=1)
        record = jobs.get(conn, "job")
    assert (record.last_data_s, record.last_step) == (6.0, 9)


def test_a_job_ends_once(store):
    register(store)
    with store.write() as conn:
        jobs.end(conn, "job", now_s=6.0)
        jobs.end(conn, "job", now_s=7.0)
        assert jobs.get(conn, "job").ended_s == 6.0


def test_an_unknown_job_is_not_found(store):
    with store.write() as conn:
        with pytest.raises(JobNotFound):
            jobs.get(conn, "nobody")
        with pytest.raises(JobNotFound):
            jobs.end(conn, "nobody", now_s=1.0)
        with pytest.raises(JobNotFound):
            jobs.run(conn, "nobody", 1)


def test_runs_that_are_over_are_unfinished_until_they_are_closed(store):
    register(store, "ended")
    register(store, "running")
    register(store, "restarted", run_key="a")
    register(store, "restarted", run_key="b")
    with store.write() as conn:
        jobs.end(conn, "ended", now_s=6.0)
        assert jobs.unfinished(conn) == [("ended", 1, False), ("restarted", 1, True)]
        jobs.mark_closed(conn, "ended", 1)
        assert jobs.unfinished(conn) == [("restarted", 1, True)]


def test_a_run_that_ended_before_the_next_began_was_not_superseded(store):
    register(store, run_key="a")
    with store.write() as conn:
        jobs.end(conn, "job", now_s=6.0)
    register(store, run_key="b")
    with store.read() as conn:
        assert jobs.unfinished(conn) == [("job", 1, False)]


def test_pages_hold_every_job_once_in_the_order_of_bytes(store):
    ids = ["Zeta", "a.b", "a-b", "a_b", "b", "B2", "B10"]
    for project in ("research", "research-2", "default"):
        for job_id in ids:
            register(store, f"{project}/{job_id}")
    seen, cursor = [], None
    with store.read() as conn:
        for _ in range(4):
            found, cursor = jobs.page(conn, project="research", cursor=cursor, limit=2)
            seen += [record.job_id for record in found]
    assert seen == [f"research/{job_id}" for job_id in sorted(ids)]
    assert cursor is None


def test_a_project_has_so_many_active_jobs_and_restarts_are_none(store):
    def begin(job_id, run_key="a", *, now_s=100.0):
        with store.write() as conn:
            given = registration(run_key=run_key)
            return jobs.register(conn, job_id, given, now_s=now_s, most_active=2)

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
        jobs.end(conn, "a/1", now_s=101.0)
    with pytest.raises(JobLimit):
        begin("a/3")  # an ended one counts for its day too
    with store.write() as conn:
        jobs.touch(conn, "a/2", last_data_s=200.0, last_step=None, epoch=2)
    tomorrow_s = 100.0 + jobs.ACTIVE_FOR_S  # of the others nothing was heard for a day
    begin("a/3", now_s=tomorrow_s)
    with pytest.raises(JobLimit):
        begin("a/4", now_s=tomorrow_s)


def test_a_job_begins_only_so_many_runs_in_an_hour(store):
    def begin(number, now_s):
        with store.write() as conn:
            given = registration(run_key=str(number))
            return jobs.register(conn, "a/1", given, now_s=now_s, most_active=1)

    for number in range(jobs.MAX_NEW_RUNS):
        begin(number, 100.0)
    with pytest.raises(RunLimit, match="600 runs within an hour"):
        begin("one more", 101.0)
    begin(jobs.MAX_NEW_RUNS - 1, 101.0)  # the same run again is no new one
    begin("one more", 100.0 + jobs.RUNS_WITHIN_S)


@pytest.mark.parametrize(
    "cursor", ["", "x", "bm8", "WzFd", "WyJcdTAwMDAiXQ", "WyJhIiwgImIiXQ", "é"]
)
def test_a_cursor_from_elsewhere_is_refused(store, cursor):
    with store.read() as conn, pytest.raises(InvalidRequest, match="cursor"):
        jobs.page(conn, cursor=cursor, limit=2)


def test_a_job_shows_the_newest_window_that_has_figures(store):
    register(store, "default/job")
    with store.write() as conn:
        for record in (
            window(0, slowdown=1.1, state="complete"),
            window(8, slowdown=1.2, revision=3),
            window(16, slowdown=None, verdict=None),
        ):
            windows.save(conn, "default/job", record)
        latest = jobs.get(conn, "default/job").latest
        assert latest == windows.summary(conn, "default/job", "1-8")
        assert [record.latest for record in jobs.page(conn)[0]] == [latest]
    assert (latest.slowdown, latest.window_id) == (1.2, "1-8")


def test_runs_are_watched_until_they_are_over_or_said_to_have_stalled(store):
    day_s = jobs.ACTIVE_FOR_S
    for name in ("sends", "starts", "hangs", "ended"):
        register(store, name, now_s=day_s)
    register(store, "forgotten", now_s=0.0)
    register(store, "restarted", now_s=day_s)
    register(store, "restarted", now_s=day_s + 1, run_key="run-2")
    now_s = day_s + 2
    with store.write() as conn:
        jobs.touch(conn, "sends", epoch=1, last_data_s=now_s, last_step=0)
        jobs.end(conn, "ended", now_s=now_s)
        silent.save(
            conn, "hangs", 1, silent_ranks=(), silent_workers=(), silent_since_s=None,
            stalled_since_s=day_s,
        )  # fmt: skip
        starting = [("restarted", 2), ("starts", 1)]
        assert jobs.watched(conn, now_s=now_s) == sorted([("sends", 1), *starting])
        assert jobs.starting(conn, now_s=now_s) == starting
        assert jobs.stalled(conn, now_s=now_s) == [("hangs", 1)]
        assert jobs.stalled(conn, now_s=now_s + day_s) == []
        assert jobs.heard(conn, "sends", 1) == (day_s, now_s)
        assert jobs.heard(conn, "restarted", 2) == (day_s + 1, None)


def test_a_start_goes_on_over_runs_that_failed_to_start(store):
    for number, at_s in enumerate((100.0, 200.0, 300.0), start=1):
        register(store, run_key=f"run-{number}", now_s=at_s)

    def since_s(epoch, within_s=1000.0):
        with store.read() as conn:
            return jobs.starting_since(conn, "job", epoch, within_s=within_s)

    assert [since_s(epoch) for epoch in (1, 2, 3)] == [100.0, 100.0, 100.0]
    assert [since_s(3, within_s) for within_s in (99.0, 100.0, 200.0)] == [300.0, 200.0, 100.0]
    with store.write() as conn:
        jobs.touch(conn, "job", epoch=1, last_data_s=150.0, last_step=None)
    assert since_s(3) == 200.0, "from the first one after those of which something came"
    with store.write() as conn:
        jobs.end(conn, "job", now_s=350.0)
    register(store, run_key="run-4", now_s=400.0)
    assert since_s(4) == 400.0, "or that ended"
