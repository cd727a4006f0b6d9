"""Which windows can be replayed, and how often a replay is built."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event
from types import SimpleNamespace

import pytest

from app.api.service import replays as module
from app.api.service.replays import BYTES_PER_OP, ReplayCache
from app.engine.replays import prepare
from app.errors import CallerGone, Conflict, NoPlace, OperationsDamaged
from app.store import hosts
from app.store.objects import moves
from app.work_budget import WorkBudget, within
from tests.api import recorded
from tests.api.server import Clock as ManualClock
from tests.api.server import closed_again, recorded_record, window_record, with_result
from tests.engine.clocks.pipeline_job import simulated_pipeline
from tests.engine.clocks.shifted_windows import Clock, worker_is_host
from tests.engine.clocks.shifted_windows import recorded as shown

pytestmark = pytest.mark.anyio

JOB = "default/llm-70b"
ROUNDING_S = 20e-6  # of stored times, each by up to 1 us, along a step's chain


@pytest.fixture
def built(monkeypatch):
    """Ids of built windows, in order."""
    found = []

    def counted(window):
        found.append(window.id)
        return prepare(window)

    monkeypatch.setattr(module, "prepare", counted)
    return found


async def test_replay_equals_the_analysed_window(api):
    await api.register(name="LLM", gpus=16)
    window = recorded.window(100, epoch=1)
    recorded.save(api, window)
    replay = ReplayCache(api.store).get(JOB, "1-100")
    assert replay.steps == (100, 101)
    assert replay.window.id == "1-100"
    assert replay.window.job.name == "LLM"
    assert replay.window.job.num_gpus == 16
    assert replay.window.trace.num_ops == window.trace.num_ops
    assert replay.simulated_s.tolist() == pytest.approx([7.5, 7.5])


async def test_replay_uses_the_clock_of_the_analysis(api):
    job = simulated_pipeline(2, 2, num_steps=2)
    clocks = {worker_is_host(dp, p): Clock((dp - 2 * p) * 10**8) for dp in (0, 1) for p in (0, 1)}
    window = shown(job, clocks, step_s=0.0)
    await api.register()
    recorded.save(api, window)
    with api.store.write() as conn:
        hosts.save(conn, JOB, 1, dict(window.hosts))
    analysed, replay = prepare(window), ReplayCache(api.store).get(JOB, window.id)
    assert replay.window.hosts == window.hosts
    assert replay.clocks.offset_s == pytest.approx(analysed.clocks.offset_s)
    assert max(replay.clocks.offset_s.values()) > 0.09
    assert replay.simulated_s == pytest.approx(analysed.simulated_s, abs=ROUNDING_S)
    assert replay.recorded_s == pytest.approx(analysed.recorded_s, abs=ROUNDING_S)


async def test_latest_is_the_newest_closed_window_of_the_current_run(api):
    await api.register()
    recorded.save(api, recorded.window(0), recorded.window(2), recorded.window(4, state="open"))
    assert ReplayCache(api.store).get(JOB, "latest").window.id == "1-2"
    await api.register(run_key="run-2")
    with pytest.raises(Conflict, match="no closed window in its current run"):
        ReplayCache(api.store).get(JOB, "latest")
    recorded.save(api, recorded.window(0, epoch=2))
    assert ReplayCache(api.store).get(JOB, "latest").window.id == "2-0"
    assert ReplayCache(api.store).get(JOB, "1-0").window.id == "1-0"


async def test_open_window_is_a_conflict_naming_the_newest_closed_one(api):
    await api.register()
    recorded.save(api, recorded.window(2, state="open"))
    with pytest.raises(Conflict, match=r"window 1-2 is still open.*none has closed yet"):
        ReplayCache(api.store).get(JOB, "1-2")
    recorded.save(api, recorded.window(0))
    with pytest.raises(Conflict, match="the newest closed one is 1-0"):
        ReplayCache(api.store).get(JOB, "1-2")


async def test_window_without_steps_gives_the_reason(api):
    await api.register()
    api.save_window(closed_without_steps("rank 2 did not report", "rank 3 did not report"))
    why = "window 1-0 has no step whose operations can be replayed: step 0: rank 2 did not report"
    with pytest.raises(Conflict, match=rf"^{why}$"):
        ReplayCache(api.store).get(JOB, "1-0")
    with pytest.raises(Conflict, match=rf"closed windows .* but none to replay: {why}$"):
        ReplayCache(api.store).get(JOB, "latest")
    recorded.save(api, recorded.window(2, state="open"))
    with pytest.raises(Conflict, match="none that has closed can be replayed"):
        ReplayCache(api.store).get(JOB, "1-2")
    await api.register(run_key="run-2")
    with pytest.raises(Conflict, match="no closed window in its current run yet"):
        ReplayCache(api.store).get(JOB, "latest")


async def test_deleted_operations_are_a_conflict_and_the_result_stays(api):
    await api.register()
    record = recorded_record(recorded.window(0))
    api.save_window(dataclasses.replace(record, trace=None))
    for window_id in ("1-0", "latest"):
        with pytest.raises(
            Conflict, match=r"operations of window 1-0 have been deleted .* result is"
        ):
            ReplayCache(api.store).get(JOB, window_id)


async def test_operations_of_other_steps_are_damaged(api):
    await api.register()
    other = recorded_record(recorded.window(100))
    api.save_window(dataclasses.replace(recorded_record(recorded.window(0)), trace=other.trace))
    with pytest.raises(OperationsDamaged, match="window 1-0 are of other steps"):
        ReplayCache(api.store).get(JOB, "1-0")


def closed_without_steps(*reasons):
    """A window from step 0 on, all of whose steps were skipped."""
    record = window_record(0, slowdown=None)
    skipped = [{"step": step, "reason": reason} for step, reason in enumerate(reasons)]
    return with_result(record, skipped_steps=skipped)


async def test_a_window_is_built_once_and_again_for_a_new_revision(api, built):
    await api.register()
    record = recorded_record(recorded.window())
    api.save_window(record)
    replays = ReplayCache(api.store)
    first = replays.get(JOB, "1-0")
    assert replays.get(JOB, "latest") is first
    assert replays.questions(JOB, "latest") is replays.questions(JOB, "1-0")
    api.save_window(closed_again(record))
    assert replays.get(JOB, "1-0") is not first
    assert built == ["1-0", "1-0"]


async def test_least_recently_used_replay_is_evicted(api, built):
    await api.register()
    windows = [recorded.window(first_step) for first_step in (0, 2, 4)]
    recorded.save(api, *windows)
    room = 2 * windows[0].trace.num_ops * BYTES_PER_OP
    replays = ReplayCache(api.store, max_bytes=room)
    for window_id in ("1-0", "1-2", "1-0", "1-4", "1-0", "1-4", "1-2"):
        replays.get(JOB, window_id)
    assert built == ["1-0", "1-2", "1-4", "1-2"]


NUM_CALLERS = 8


async def test_concurrent_callers_share_one_build(api, built):
    await api.register()
    recorded.save(api, recorded.window())
    replays, together = ReplayCache(api.store), Barrier(NUM_CALLERS)

    def get(_):
        together.wait()
        return replays.get(JOB, "1-0")

    with ThreadPoolExecutor(NUM_CALLERS) as pool:
        found = list(pool.map(get, range(NUM_CALLERS)))
    assert built == ["1-0"]
    assert all(each is found[0] for each in found)


@pytest.fixture
def held_build(monkeypatch):
    """The build of window 1-0 begins, sets the first event, and waits for the second."""
    begun, goes_on = Event(), Event()

    def held(window):
        if window.id == "1-0":
            begun.set()
            assert goes_on.wait(60.0)
        return prepare(window)

    monkeypatch.setattr(module, "prepare", held)
    yield begun, goes_on
    goes_on.set()


async def test_caller_who_waits_for_the_build_of_another_waits_within_its_budget(
    api, held_build, monkeypatch
):
    begun, goes_on = held_build
    await api.register()
    recorded.save(api, recorded.window(0), recorded.window(2))
    replays, clock = ReplayCache(api.store), ManualClock()

    def asked(budget, when_fetched):
        def fetch(bucket, found):
            when_fetched()
            return moves.fetch(bucket, found)

        monkeypatch.setattr(module, "moves", SimpleNamespace(find=moves.find, fetch=fetch))
        with within(budget):
            return replays.get(JOB, "1-2")

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(replays.get, JOB, "1-0")
        assert begun.wait(60.0)
        budget = WorkBudget(60.0)
        with pytest.raises(CallerGone):
            pool.submit(asked, budget, budget.cancel).result(60.0)
        budget = WorkBudget(60.0, monotonic=clock)
        with pytest.raises(NoPlace, match="others computed for so long"):
            pool.submit(asked, budget, lambda: setattr(clock, "now_s", clock() + 61.0)).result(60.0)
        goes_on.set()
        assert first.result(60.0).window.id == "1-0"
    assert asked(None, lambda: None).window.id == "1-2"


async def test_operations_that_are_long_in_coming_keep_no_other_build_waiting(api, monkeypatch):
    await api.register()
    recorded.save(api, recorded.window(0), recorded.window(2))
    begun, goes_on = Event(), Event()

    def fetch(bucket, found):
        if not begun.is_set():
            begun.set()
            assert goes_on.wait(60.0)
        return moves.fetch(bucket, found)

    monkeypatch.setattr(module, "moves", SimpleNamespace(find=moves.find, fetch=fetch))
    replays = ReplayCache(api.store)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(replays.get, JOB, "1-0")
        try:
            assert begun.wait(60.0)
            assert replays.get(JOB, "1-2").window.id == "1-2"
            assert not slow.done()
        finally:
            goes_on.set()
        assert slow.result(60.0).window.id == "1-0"
