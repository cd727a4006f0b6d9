from dataclasses import fields

import pytest

from app.errors import InvalidRequest, JobNotFound
from app.store import jobs, runs, windows
from app.trace.job import Parallelism
from app.trace.ops import FIRST_USER_CODE, Axis, OpKind, OpSpec, OpTypes
from tests.store.factories import OWN, register, registration, window


def test_job_is_read_back_as_registered(store):
    given = registration(
        framework="megatron",
        labels={"team": "speech", "Ä": "é"},
        num_gpus=32,
        parallelism=Parallelism(4, 2, ep_size=2),
        op_types=OWN,
    )
    with store.write() as conn:
        assert runs.register(conn, "job", given, now_s=100.5) == (1, True)
    with store.read() as conn:
        record = jobs.get(conn, "job")
        assert jobs.registration(conn, "job", 1) == given
    for field in fields(given):
        assert getattr(record, field.name) == getattr(given, field.name)
    assert (record.epoch, record.registered_s) == (1, 100.5)
    unknown = (record.ended_s, record.last_data_s, record.last_step, record.latest)
    assert unknown == (None,) * 4


def test_run_with_a_custom_type_named_like_a_built_in_one_is_read(store):
    register(store, op_types=OpTypes((OpSpec("gc", OpKind.COLLECTIVE, Axis.EP, stream="gc"),)))
    with store.read() as conn:
        assert jobs.registration(conn, "job", 1).job.op_types.codes["gc"] == FIRST_USER_CODE


def test_new_run_starts_without_the_figures_of_the_previous_one(store):
    register(store, run_key="a", name="old")
    with store.write() as conn:
        runs.note_data(conn, "job", last_data_s=5.0, last_step=9, epoch=1)
        runs.end(conn, "job", now_s=6.0)
        windows.save(conn, "job", window())
    register(store, run_key="b", name="new")
    with store.read() as conn:
        record = jobs.get(conn, "job")
    assert (record.name, record.epoch, record.last_step) == ("new", 2, None)
    assert (record.last_data_s, record.ended_s, record.latest) == (None, None, None)


@pytest.mark.sql_sensitive
def test_last_data_time_and_last_step_never_decrease(store):
    register(store)
    with store.write() as conn:
        runs.note_data(conn, "job", last_data_s=5.0, last_step=9, epoch=1)
        runs.note_data(conn, "job", last_data_s=4.0, last_step=8, epoch=1)
        runs.note_data(conn, "job", last_data_s=6.0, last_step=None, epoch=1)
        record = jobs.get(conn, "job")
    assert (record.last_data_s, record.last_step) == (6.0, 9)


def test_first_end_time_of_a_job_is_kept(store):
    register(store)
    with store.write() as conn:
        runs.end(conn, "job", now_s=6.0)
        runs.end(conn, "job", now_s=7.0)
        assert jobs.get(conn, "job").ended_s == 6.0


def test_an_unknown_job_is_not_found(store):
    with store.write() as conn:
        with pytest.raises(JobNotFound):
            jobs.get(conn, "nobody")
        with pytest.raises(JobNotFound):
            runs.end(conn, "nobody", now_s=1.0)
        with pytest.raises(JobNotFound):
            jobs.registration(conn, "nobody", 1)


@pytest.mark.sql_sensitive
def test_pages_have_every_job_once_in_byte_order(store):
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


@pytest.mark.parametrize(
    "cursor", ["", "x", "bm8", "WzFd", "WyJcdTAwMDAiXQ", "WyJhIiwgImIiXQ", "é"]
)
def test_invalid_cursor_is_refused(store, cursor):
    with store.read() as conn, pytest.raises(InvalidRequest, match="cursor"):
        jobs.page(conn, cursor=cursor, limit=2)


@pytest.mark.sql_sensitive
def test_a_job_shows_its_open_window_only_before_the_first_closed_one_with_figures(store):
    register(store, "default/job")
    with store.write() as conn:
        windows.save(conn, "default/job", window(0, slowdown=1.3, revision=3))
        first = jobs.get(conn, "default/job").latest
        assert first is not None
        assert (first.window_id, first.slowdown) == ("1-0", 1.3)
        for record in (
            window(0, slowdown=1.1, state="complete", revision=4),
            window(8, slowdown=1.2, revision=3),
            window(16, slowdown=None, verdict=None),
        ):
            windows.save(conn, "default/job", record)
        latest = jobs.get(conn, "default/job").latest
        assert latest == windows.summary(conn, "default/job", "1-0")
        assert [record.latest for record in jobs.page(conn)[0]] == [latest]
    assert (latest.slowdown, latest.window_id) == (1.1, "1-0")
