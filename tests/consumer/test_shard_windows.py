from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from app.alerts.rule import default_rules
from app.api.service.replays import ReplayCache, WindowKey
from app.consumer.context import MAX_WITHOUT_PROGRESS_S
from app.diagnosis.job_history import History
from app.ingest.assembly.assembler import pack_spool, unpack_spool
from app.ingest.assembly.window_codec import unpack_window
from app.monitor import analysed, observe
from app.store import windows
from app.trace.window import Window
from tests.consumer.jobs import HEALTHY, SIZES, SLOW
from tests.consumer.twin import DEADLINE_S, step_batches


def saved(twin, window_id="latest"):
    with twin.store.read() as conn:
        return windows.get(conn, "job", window_id, per_step=True).as_json()


def test_each_complete_step_revises_the_figures_of_its_window(twin):
    twin.register("job", SIZES)
    consumer = twin.consumer()
    seen: list[Any] = []
    for step in range(4):
        first, *others = step_batches(HEALTHY, step)
        twin.append("job", first)
        twin.turns(consumer, num_turns=1)
        assert twin.windows("first_step", "revision", "state") == seen[-1:], "not complete yet"
        twin.append("job", *others)
        twin.turns(consumer, num_turns=1)
        [summary] = twin.windows("first_step", "revision", "state")
        seen.append(summary)
        if step == 2:
            break
    assert seen == [(0, 1, "open"), (0, 2, "open"), (0, 3, "complete")]
    window_messages = [
        (m["event"], m["window"], m["revision"], m["state"]) for m in twin.announced.messages
    ]
    assert window_messages == [("window", "1-0", *rest) for _, *rest in seen]


def test_stored_window_equals_the_offline_analysis_of_its_steps(twin):
    twin.register("job", SIZES)
    twin.push("job", SLOW, *range(4))
    twin.turns(twin.consumer())
    closed = Window(
        SLOW.job, 1, 0, (0, 1, 2), SLOW.make(range(3)), (), "complete", 3, origin_ns=(0, 0, 0)
    )
    still_open = Window(SLOW.job, 1, 3, (3,), SLOW.make([3]), (), "open", 1, origin_ns=(0,))
    history = History()
    for window in (closed, still_open):
        _, result, recent = analysed(window, history)
        assert recent is not None
        history = history.extended(recent)
        # Offline the clock is not known.
        timed, offline = saved(twin, window.id), result.as_json()
        assert all(timed.pop("step_started_s"))
        assert not any(offline.pop("step_started_s"))
        want, got = leaves(offline), leaves(timed)
        figures = {at: leaf for at, leaf in want.items() if isinstance(leaf, float)}
        assert got | figures == want
        assert {at: got[at] for at in figures} == pytest.approx(figures, rel=1e-6, abs=1e-6)


def leaves(value, path=""):
    """Leaf values by path."""
    if not isinstance(value, dict | list):
        return {path: value}
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    return {path: len(value)} | {
        at: leaf for name, part in parts for at, leaf in leaves(part, f"{path}.{name}").items()
    }


def test_every_step_is_in_the_series_with_its_window(twin):
    twin.register("job", SIZES)
    twin.push("job", HEALTHY, *range(4))
    twin.turns(twin.consumer())
    with twin.store.read() as conn:
        series = windows.step_series(conn, "job")
    assert [(row.step, row.window_id) for row in series] == [
        (0, "1-0"),
        (1, "1-0"),
        (2, "1-0"),
        (3, "1-3"),
    ]
    times = saved(twin, "1-0")["step_time_s"]
    assert [row.recorded_s for row in series[:3]] == times["recorded"]
    assert [row.simulated_s for row in series[:3]] == times["simulated"]
    assert [row.slowdown for row in series[:3]] == saved(twin, "1-0")["step_slowdown"]


def test_spooled_batches_become_stored_operations_when_a_window_closes(twin):
    twin.register("job", SIZES)
    consumer = twin.consumer()
    twin.push("job", HEALTHY, 0, 1)
    twin.turns(consumer)
    kept = [unpack_spool(blob) for (blob,) in twin.rows("spool", "blob")]
    assert sum(map(len, kept)) == 2 * SIZES.num_workers
    assert twin.windows("first_step", "trace") == [(0, None)]
    twin.push("job", HEALTHY, 2)
    twin.turns(consumer)
    assert twin.rows("spool") == []
    [(_, blob)] = twin.windows("first_step", "trace")
    assert len(unpack_window(blob).ops.step) == HEALTHY.make(range(3)).num_ops
    assert twin.queue.reader.backlog(0) == 0


def test_a_large_window_that_cannot_be_packed_stops_no_other_job(twin, monkeypatch):
    def fail(table, _):
        raise RuntimeError("no room")

    for job in ("job", "other"):
        twin.register(job, SIZES)
    twin.push("job", HEALTHY, 0, 1)
    consumer = twin.consumer()
    twin.turns(consumer)
    monkeypatch.setattr("app.ingest.assembly.windows.LARGE_OPS", 0)
    monkeypatch.setattr("app.ingest.assembly.windows.pack_window", fail)
    twin.push("other", HEALTHY, 0)
    twin.append("job", *step_batches(HEALTHY, 2))
    twin.turns(consumer)
    assert [each[0] for each in twin.rows("dead_letters", "job_id")] == ["job"]
    assert twin.windows("first_step", "state", "trace") == [(0, "open", None)] * 2
    assert twin.queue.reader.backlog(0) == 0


def test_a_turn_of_many_jobs_is_no_hang(twin, monkeypatch):
    """Each job's work is far shorter than what the watchdog waits, all of it together longer."""
    progress = []

    def slow(function):
        def run(*args, **options):
            twin.pass_time(MAX_WITHOUT_PROGRESS_S / 2)
            return function(*args, **options)

        return run

    monkeypatch.setattr("app.consumer.shard.observe", slow(observe))
    monkeypatch.setattr("app.consumer.commit.pack_spool", slow(pack_spool))
    twin.context = replace(twin.context, note_progress=lambda: progress.append(twin.clock()))
    for number in range(4):
        twin.register(f"job-{number}", SIZES)
        twin.push(f"job-{number}", HEALTHY, *range(6))
    consumer = twin.consumer()
    began_s = twin.clock()
    twin.turns(consumer, num_turns=1)
    assert twin.clock() - began_s > 4 * MAX_WITHOUT_PROGRESS_S
    gaps_s = [after - before for before, after in pairwise([began_s, *progress, twin.clock()])]
    assert max(gaps_s) < MAX_WITHOUT_PROGRESS_S


def test_step_without_a_stage_is_skipped_and_names_its_ranks(twin):
    twin.register("job", SIZES)
    consumer = twin.consumer()
    twin.push("job", HEALTHY, 0)
    ours, one, ours_too, other = step_batches(HEALTHY, 1)
    twin.append("job", one, other)
    twin.turns(consumer, num_turns=3, each_s=DEADLINE_S)
    [skipped] = saved(twin)["skipped_steps"]
    named = f"ranks {ours.rank}, {ours_too.rank}"
    assert skipped == {"step": 1, "reason": f"{named} did not report the step in time"}
    assert (saved(twin)["steps"], saved(twin)["imputed"]) == ([0], None)
    with twin.store.read() as conn:
        last = windows.step_series(conn, "job")[-1]
    assert (last.step, last.slowdown, last.skipped_reason) == (1, None, skipped["reason"])


def test_step_without_one_rank_is_analysed_and_names_the_rank(twin):
    twin.register("job", SIZES)
    consumer = twin.consumer()
    twin.push("job", HEALTHY, 0)
    silent, *others = step_batches(HEALTHY, 1)
    twin.append("job", *others)
    twin.turns(consumer, num_turns=2, each_s=DEADLINE_S / 2 - 1)
    assert saved(twin)["steps"] == [0], "before the deadline"
    twin.turns(consumer, num_turns=2)
    twin.turns(consumer, num_turns=1)
    result = saved(twin)
    assert (result["steps"], result["skipped_steps"]) == ([0, 1], [])
    assert result["window"]["missing"] == [silent.rank]
    [lacking], [worker] = result["imputed"]["steps"], result["imputed"]["workers"]
    assert lacking["reason"] == f"rank {silent.rank} did not report the step in time"
    assert (worker["rank"], worker["dp_rank"], worker["stage"]) == (silent.rank, 0, 0)
    assert result["per_step"]["worker_slowdown"][1][0][0] is None
    assert None not in result["per_step"]["worker_slowdown"][0][0]


def test_nothing_is_missing_while_batches_wait(twin):
    twin.register("job", SIZES)
    shard = twin.shard_work()
    twin.push("job", HEALTHY, 0)
    late, *others = step_batches(HEALTHY, 1)
    twin.append("job", *others, late)
    *first, last = twin.entries()
    for entries in (first, first[:0]):  # an overloaded consumer's turns outlast the deadline
        shard.take(entries, more_waits=True)
        twin.pass_time(2 * DEADLINE_S)
        shard.tick()
    assert (saved(twin)["steps"], saved(twin)["imputed"]) == ([0], None)
    shard.take([last])
    shard.tick()
    assert (saved(twin)["steps"], saved(twin)["imputed"]) == ([0, 1], None)


def test_late_data_takes_the_place_of_what_was_imputed(twin):
    twin.register("job", SIZES)
    consumer = twin.consumer()
    twin.push("job", SLOW, 0)
    late, *others = step_batches(SLOW, 1)
    twin.append("job", *others)
    twin.turns(consumer, num_turns=3, each_s=DEADLINE_S)
    assert saved(twin)["imputed"] is not None
    twin.append("job", late)
    twin.turns(consumer)
    again = saved(twin)
    assert (again["imputed"], again["window"]["missing"]) == (None, [])
    twin.register("job", SIZES, "run-2")
    for step in range(2):
        twin.append("job", *step_batches(SLOW, step, epoch=2))
    twin.turns(consumer)
    at_once = saved(twin)
    assert again["worker_slowdown"] == at_once["worker_slowdown"]


def test_stored_window_is_replayed_with_what_was_imputed(make_twin):
    twin = make_twin(window_steps=2)
    twin.register("job", SIZES)
    consumer = twin.consumer()
    for step in range(2):
        batches = step_batches(SLOW, step)
        del batches[1]
        twin.append("job", *batches)
    twin.turns(consumer, num_turns=2, each_s=10 * DEADLINE_S)
    result = saved(twin)
    window = ReplayCache(twin.store).load(WindowKey("job", "1-0", result["window"]["revision"]))
    assert (window.steps, window.missing) == ((), [result["imputed"]["workers"][0]["rank"]])
    again = analysed(window, History())[1].as_json()
    assert (again["imputed"], again["steps"]) == (result["imputed"], result["steps"])
    # Stored times are rounded to a microsecond, the result's are not.
    for name in ("slowdown", "worker_slowdown"):
        was, now = (np.array(each[name], np.float64) for each in (result, again))  # None is NaN
        np.testing.assert_allclose(now, was, rtol=1e-4, err_msg=name)
    for name, times_s in result["step_time_s"].items():
        assert again["step_time_s"][name] == pytest.approx(times_s, abs=20e-6), name


def test_job_without_one_of_its_ranks_has_the_figures_and_alerts_of_the_others(make_twin):
    twin = make_twin(window_steps=2, default_rules=default_rules(windows=1, for_s=0.0))
    whole = make_twin(window_steps=2)
    for each in (twin, whole):
        each.register("job", SIZES)
    consumer = twin.consumer()
    for step in range(14):
        batches = step_batches(SLOW, step)
        whole.append("job", *batches)
        del batches[1]  # dp 0, stage 1; slow is dp 1, stage 0
        twin.append("job", *batches)
        twin.turns(consumer, num_turns=2, each_s=DEADLINE_S)
    whole.turns(whole.consumer())
    ours, theirs = saved(twin, "1-6"), saved(whole, "1-6")
    assert ours["window"]["state"] == "incomplete"
    assert ours["slowdown"] == pytest.approx(theirs["slowdown"], abs=0.01)
    assert ours["worker_slowdown"][0][1] is None
    assert ours["worker_slowdown"][1] == pytest.approx(theirs["worker_slowdown"][1], abs=0.01)
    firing = {row[0] for row in twin.rows("alerts", "rule", "phase") if row[1] == "firing"}
    assert {"slowdown", "silent-worker"} <= firing


@pytest.mark.parametrize("num_steps", [3, 5])
def test_the_end_of_a_job_closes_its_last_window(twin, num_steps):
    twin.register("job", SIZES)
    consumer = twin.consumer()
    twin.push("job", HEALTHY, *range(num_steps))
    twin.end("job")
    twin.turns(consumer)
    found = twin.windows("first_step", "state", "num_steps", "trace")
    assert {state for _, state, _, _ in found} == {"complete"}
    assert sum(count for _, _, count, _ in found) == num_steps
    assert all(blob is not None for *_, blob in found)
    assert twin.rows("runs", "is_closed") == [(True,)]
    assert twin.rows("spool") == []


def test_a_new_run_supersedes_the_old_ones_open_window(twin):
    consumer = twin.consumer()
    assert twin.register("job", SIZES) == 1
    twin.push("job", HEALTHY, *range(4))
    twin.turns(consumer)
    assert twin.register("job", SIZES, "run-2") == 2
    twin.push("job", HEALTHY, 0, epoch=2)
    twin.turns(consumer)
    assert twin.windows("epoch", "first_step", "state", "revision") == [
        (1, 0, "complete", 3),
        (1, 3, "superseded", 2),
        (2, 0, "open", 1),
    ]
    assert twin.rows("runs", "epoch", "is_closed") == [(1, True), (2, False)]


@pytest.mark.parametrize("how", ["ended", "superseded"])
def test_batches_acknowledged_before_the_end_are_in_the_last_window(twin, how):
    twin.register("job", SIZES)
    slow_reader = twin.shard_work()
    twin.push("job", HEALTHY, 0)
    held_up = twin.entries()
    if how == "ended":
        twin.end("job")
    else:
        twin.register("job", SIZES, "run-2")
    for _ in range(3):
        slow_reader.tick()
        twin.pass_time(1.0)
        # Batches of other jobs neither advance nor delay the end.
        twin.append_bytes("another", b"")
        twin.context.queue.done(0, [entry.entry_id for entry in twin.entries()])
    assert twin.windows() == []
    slow_reader.take(held_up)
    twin.append_bytes("another", b"")
    slow_reader.tick()
    state = "complete" if how == "ended" else "superseded"
    assert twin.windows("state", "num_steps") == [(state, 1)]


def test_hosts_are_saved_as_reported_by_workers(twin):
    twin.register("job", SIZES)
    for number, batch in enumerate(step_batches(HEALTHY, 0)):
        twin.append("job", replace(batch, host=f"host-{number}"))
    twin.turns(twin.consumer())
    [(names,)] = twin.rows("hosts", "names")
    assert names == [[0, 0, "host-0"], [0, 1, "host-1"], [1, 0, "host-2"], [1, 1, "host-3"]]
