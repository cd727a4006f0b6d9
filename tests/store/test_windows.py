import pytest
from msgspec.structs import replace

from app.errors import JobNotFound, WindowNotFound
from app.result.stored import join_by_step
from app.store import runs, windows
from tests.results import window_result
from tests.store.factories import register, registration, window


def named(name, **given):
    return window_result(job={"name": name}, **given)


@pytest.fixture
def conn(store):
    register(store)
    with store.write() as conn:
        yield conn


def test_a_window_is_read_as_it_was_saved(conn):
    record = window(8, trace=b"\0\1ops", state="complete", last_step=15)
    assert windows.save(conn, "job", record)
    assert windows.get(conn, "job", "1-8") == record.result
    with_steps = windows.get(conn, "job", "1-8", per_step=True)
    assert with_steps == join_by_step(record.result, record.per_step)
    assert windows.trace(conn, "job", "1-8") == b"\0\1ops"
    summary = windows.summary(conn, "job", "1-8")
    assert summary.window_id == "1-8"
    for name in summary.__slots__:
        assert name == "window_id" or getattr(summary, name) == getattr(record, name)


@pytest.mark.sql_sensitive
def test_only_a_higher_revision_replaces_a_window(conn):
    assert windows.save(conn, "job", window(revision=2, slowdown=1.2))
    assert not windows.save(conn, "job", window(revision=2, slowdown=9.0))
    assert not windows.save(conn, "job", window(revision=1, slowdown=9.0))
    assert windows.summary(conn, "job", "1-0").slowdown == 1.2
    assert windows.save(conn, "job", window(revision=3, slowdown=None, per_step=None))
    assert windows.summary(conn, "job", "1-0").slowdown is None
    assert windows.get(conn, "job", "1-0", per_step=True).per_step is None


def test_figures_by_step_skips_windows_without_figures(conn):
    for first_step in (0, 8, 16, 24):
        result = window_result(steps=[first_step, first_step + 7])
        windows.save(conn, "job", window(first_step, last_step=first_step + 7, result=result))
    runs.register(conn, "job", registration(run_key="run-2"), now_s=200.0)
    windows.save(conn, "job", window(12, epoch=2))
    windows.save(conn, "job", window(32, slowdown=None, per_step=None))
    found = windows.figures_by_step(conn, "job", 1, "stage_slowdown", [24, 8, 16, 32, 12])
    assert [steps for steps, _ in found] == [[8, 15], [16, 23], [24, 31]]
    assert found[0][1] == [[1.0, 1.25]]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_windows_with_non_finite_numbers_are_refused(conn, bad):
    not_finite = replace(window_result(), slowdown=bad)
    for record in (window(slowdown=bad), window(result=not_finite), window(updated_s=bad)):
        with pytest.raises(Exception, match=r"finite|JSON"):
            windows.save(conn, "job", record)


@pytest.mark.sql_sensitive
def test_latest_is_the_newest_window_of_the_current_run_that_has_figures(store):
    register(store, run_key="a")
    with store.write() as conn:
        windows.save(conn, "job", window(80, result=named("first run")))
    register(store, run_key="b")
    with store.write() as conn:
        with pytest.raises(WindowNotFound):
            windows.get(conn, "job", "latest")
        windows.save(conn, "job", window(0, epoch=2, slowdown=None, result=named("no figures")))
        assert windows.get(conn, "job", "latest") == named("no figures")
        windows.save(conn, "job", window(8, epoch=2, result=named("figures", slowdown=1.0)))
        windows.save(conn, "job", window(16, epoch=2, slowdown=None))
        assert windows.get(conn, "job", "latest").job.name == "figures"


@pytest.mark.parametrize(
    "window_id", ["1-7", "2-0", "nothing", "1", "-1", "1--1", "1-0x", "01-0", "1-" + "9" * 30, "\0"]
)
def test_an_unknown_window_is_not_found(conn, window_id):
    windows.save(conn, "job", window())
    with pytest.raises(WindowNotFound):
        windows.get(conn, "job", window_id)


def test_windows_of_an_unknown_job_are_not_found(conn):
    for ask in (windows.get, windows.trace, windows.summary):
        with pytest.raises(JobNotFound):
            ask(conn, "nobody", "latest")
    with pytest.raises(JobNotFound):
        windows.page(conn, "nobody")


@pytest.mark.sql_sensitive
def test_pages_have_every_window_once_newest_first(store):
    for key in ("a", "b"):
        register(store, run_key=key)
    with store.write() as conn:
        for epoch in (1, 2):
            for first_step in (0, 8, 16):
                windows.save(conn, "job", window(first_step, epoch=epoch))
        seen, cursor = [], None
        for _ in range(3):
            found, cursor = windows.page(conn, "job", cursor=cursor, limit=2)
            seen += [summary.window_id for summary in found]
    assert seen == ["2-16", "2-8", "2-0", "1-16", "1-8", "1-0"]
    assert cursor is None
