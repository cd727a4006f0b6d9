"""Assembly of steps and windows: worked examples."""

from dataclasses import replace

import numpy as np
import pytest

from app.ingest.assembly.assembler import SpooledBatch, pack_spool, unpack_spool
from app.ingest.assembly.window_codec import unpack_window
from app.trace.job import Job, Parallelism
from tests.ingest.factories import (
    REVISE_FOR_S,
    ClosedWindows,
    assembler,
    batch,
    feed,
    rows_of,
    step_batches,
)

FIRST_DEADLINE_S = 50.0  # ten times the deadline
STEP_DEADLINE_S = 5.0


def num_rows(step, workers=range(4)):
    return sum(len(rows_of(worker, step)) for worker in workers)


def test_nothing_settles_before_the_last_worker_has_reported():
    run = assembler()
    assert feed(run, step_batches(0, [0, 1, 2])) == []
    [change] = feed(run, step_batches(0, [3]))
    assert change.window.state == "open"
    assert change.window.id == "1-0"
    assert change.window.steps == (0,)
    assert change.window.trace.num_ops == num_rows(0)
    assert change.ops is None


def test_each_complete_step_makes_a_revision_and_the_last_closes_the_window():
    run = assembler()
    changes = [change for step in range(3) for change in feed(run, step_batches(step))]
    assert [change.window.revision for change in changes] == [1, 2, 3]
    assert [change.window.state for change in changes] == ["open", "open", "complete"]
    assert changes[-1].window.steps == (0, 1, 2)
    assert not changes[-1].window.skipped


def test_window_has_hosts_and_the_start_time_of_each_step():
    run = assembler()
    [change] = feed(run, [each for step in (0, 1) for each in step_batches(step)])
    window = change.window
    assert window.hosts == {divmod(worker, 2): f"node-{worker}" for worker in range(4)}
    # Worker 0 begins first, with the GC pause 11 ns before its first operation.
    assert window.origin_ns == tuple(1_700_000_000 * 10**9 + step * 10**9 - 11 for step in (0, 1))
    assert [window.trace.start_s[window.trace.step == step].min() for step in (0, 1)] == [0.0, 0.0]


def test_many_steps_at_once_give_only_the_newest_revision_of_each_window():
    run = assembler()
    changes = feed(run, [each for step in range(4) for each in step_batches(step)])
    assert [(c.window.id, c.window.revision, c.window.state) for c in changes] == [
        ("1-0", 3, "complete"),
        ("1-3", 1, "open"),
    ]


def test_open_window_can_be_reported_later():
    run = assembler()
    for each in step_batches(0):
        run.add(each, 0.0)
    assert run.settle(0.0, tells_open=False) == []
    assert run.is_dirty
    assert run.has_unreported_steps
    [change] = run.settle(0.0)
    assert (change.window.steps, change.window.revision) == ((0,), 1)
    assert not run.has_unreported_steps


def test_repeated_batch_counts_once():
    run = assembler()
    first = step_batches(0)[0]
    assert run.add(first, 0.0).verdict == "new"
    assert run.add(first, 0.0).verdict == "duplicate"
    [change] = feed(run, step_batches(0))
    assert change.window.trace.num_ops == num_rows(0)


def test_times_count_from_the_first_start_of_the_step_on_any_worker():
    run = assembler(job=Job.of("small", Parallelism(dp_size=1, pp_size=2)))
    job = Job.of("small", Parallelism(dp_size=1, pp_size=2))
    changes = feed(
        run,
        [
            batch(0, 0, [(4, "optimizer", 1_000_000_500, 250, 0)], [(4, 1)], job=job),
            batch(1, 0, [(4, "gc-pause", 1_000_000_000, 10, 0)], [(4, 1)], job=job),
        ],
    )
    trace = changes[0].window.trace
    assert trace.start_s.tolist() == [500 * 1e-9, 0.0]
    assert trace.duration_s.tolist() == [250 * 1e-9, 10 * 1e-9]
    assert trace.rank.tolist() == [0, 10]


def test_a_step_waits_while_an_earlier_batch_of_some_worker_is_missing():
    run = assembler()
    early, late = step_batches(0, [3])[0], step_batches(1, [3])[0]
    feed(run, step_batches(0, [0, 1, 2]) + step_batches(1, [0, 1, 2]))
    assert feed(run, [late]) == []
    [change] = feed(run, [early])
    assert change.window.steps == (0, 1)


def test_step_undeclared_by_an_advancing_worker_is_skipped_at_once():
    run = assembler()
    changes = feed(run, step_batches(0, [0, 1, 2]) + step_batches(1, [0, 1, 2]))
    changes = feed(run, step_batches(1, [3], seq=0))
    [change] = changes
    assert change.window.steps == (1,)
    [skipped] = change.window.skipped
    assert skipped.step == 0
    assert skipped.missing == (30,)
    assert "rank 30 did not report the step" in skipped.reason
    assert change.window.missing == [30]
    assert (change.window.first_step, change.window.revision) == (0, 2)


def test_fewer_operations_than_declared_make_a_step_skipped():
    run = assembler()
    short = batch(3, 0, rows_of(3, 0), [(0, 99)])
    [change] = feed(run, [*step_batches(0, [0, 1, 2]), short])
    assert change.window.steps == ()
    assert change.window.trace.num_ops == 0
    assert "another number of operations" in change.window.skipped[0].reason


def test_the_same_operation_twice_makes_a_step_skipped():
    run = assembler()
    rows = [(0, "optimizer", 5, 1, 0), (0, "optimizer", 5, 1, 0)]
    [change] = feed(run, [*step_batches(0, [0, 1, 2]), batch(3, 0, rows, [(0, 2)])])
    assert "two operations of the same type" in change.window.skipped[0].reason


def test_worker_with_zero_declared_operations_is_not_missing():
    run = assembler()
    [change] = feed(run, [*step_batches(0, [0, 1, 2]), batch(3, 0, [], [(0, 0)])])
    assert change.window.steps == (0,)


def test_first_step_has_ten_times_the_deadline():
    run = assembler()
    feed(run, step_batches(0, [0, 1, 2]), now_s=100.0)
    assert run.next_deadline_s() == 100.0 + FIRST_DEADLINE_S
    assert run.settle(100.0 + FIRST_DEADLINE_S - 0.1) == []
    [change] = run.settle(100.0 + FIRST_DEADLINE_S)
    [skipped] = change.window.skipped
    assert skipped.missing == (1 * 2 + 1,)  # never seen, so its usual rank
    assert "in time" in skipped.reason
    assert run.next_deadline_s() is None


def test_later_steps_are_skipped_at_the_deadline():
    run = assembler()
    feed(run, step_batches(0), now_s=0.0)
    feed(run, step_batches(1, [0, 1, 2]), now_s=1.0)
    assert run.next_deadline_s() == 1.0 + STEP_DEADLINE_S
    [change] = run.settle(1.0 + STEP_DEADLINE_S)
    assert change.window.steps == (0,)
    assert change.window.skipped[0].missing == (30,)


@pytest.mark.parametrize(("step_s", "deadline_s"), [(20, 60.0), (86_400, 60 * STEP_DEADLINE_S)])
def test_deadline_of_long_steps_is_three_times_their_length_up_to_a_limit(step_s, deadline_s):
    run = assembler()
    job_rows = [(0, "optimizer", 0, step_s * 10**9, 0)]
    feed(run, [batch(worker, 0, job_rows, [(0, 1)]) for worker in range(4)])
    feed(run, step_batches(1, [0]), now_s=0.0)
    assert run.next_deadline_s() == pytest.approx(deadline_s)


def test_lost_batch_delays_a_step_only_until_its_deadline():
    run = assembler()
    feed(run, step_batches(0, [0, 1, 2]) + step_batches(0, [3], seq=1))
    [change] = run.settle(FIRST_DEADLINE_S)
    assert change.window.steps == (0,)  # all declared operations had arrived
    [change] = feed(run, [*step_batches(1, [0, 1, 2]), *step_batches(1, [3], seq=2)], now_s=51.0)
    assert change.window.steps == (0, 1)  # the missing batch is not waited for again


def test_late_data_completes_a_skipped_step_of_the_open_window():
    run = assembler()
    feed(run, step_batches(0, [0, 1, 2]))
    [before] = run.settle(FIRST_DEADLINE_S)
    late = step_batches(0, [3])[0]
    assert run.add(late, 51.0)[:4] == ("new", [], 0, 0)
    [change] = run.settle(51.0)
    assert change.window.steps == (0,)
    assert change.window.skipped == ()
    assert change.window.trace.num_ops == num_rows(0)
    assert change.window.revision == before.window.revision + 1


def test_completing_the_last_incomplete_step_closes_the_window():
    run = assembler()
    feed(run, step_batches(0, [0, 1, 2]))
    run.settle(FIRST_DEADLINE_S)
    feed(run, [*step_batches(1, [0, 1, 2]), *step_batches(2, [0, 1, 2])])
    feed(run, step_batches(1, [3], seq=1) + step_batches(2, [3], seq=2), now_s=51.0)
    run.settle(200.0)
    [change] = feed(run, step_batches(0, [3], seq=0), now_s=201.0)
    assert (change.window.state, change.window.steps) == ("complete", (0, 1, 2))


def test_operations_beyond_the_declared_number_are_late():
    run = assembler()
    feed(run, step_batches(0))
    more = batch(3, 1, [(0, "gc-pause", 5, 5, 7)])
    assert run.add(more, 1.0)[:4] == ("new", [0], 1, 0)
    assert run.settle(1.0) == []


@pytest.fixture
def incomplete_run():
    """A run with a closed window that lacks rank 30 in all steps; settled at 50 s."""
    closed = ClosedWindows()
    run = assembler(closed=closed)
    for step in range(3):
        feed(run, step_batches(step, [0, 1, 2]))
    changes = run.settle(FIRST_DEADLINE_S)
    closed.save(changes)
    assert [(c.window.state, c.window.revision) for c in changes] == [("incomplete", 3)]
    return run, closed


def test_late_data_revises_a_closed_window(incomplete_run):
    run, closed = incomplete_run
    changes = feed(run, step_batches(1, [3], seq=1), now_s=60.0)
    closed.save(changes)
    [change] = changes
    assert (change.window.first_step, change.window.revision) == (0, 4)
    assert (change.window.state, change.window.steps) == ("incomplete", (1,))
    assert [skipped.step for skipped in change.window.skipped] == [0, 2]
    changes = feed(run, [*step_batches(2, [3], seq=2), *step_batches(0, [3], seq=0)], now_s=70.0)
    [change] = changes
    assert (change.window.state, change.window.steps) == ("complete", (0, 1, 2))
    assert (change.window.revision, change.window.missing) == (5, [])


def test_extra_data_of_a_complete_rank_does_not_spoil_a_step(incomplete_run):
    run, _ = incomplete_run
    more = batch(0, 3, [(1, "gc-pause", 5, 5, 7)])
    assert run.add(more, 60.0)[:4] == ("new", [1], 1, -1)
    [change] = feed(run, step_batches(1, [3], seq=1), now_s=60.0)
    assert change.window.steps == (1,)


def test_revised_window_equals_one_without_late_data(incomplete_run):
    run, closed = incomplete_run
    for seq, step in ((1, 1), (0, 0), (2, 2)):
        closed.save(feed(run, step_batches(step, [3], seq=seq), now_s=60.0))
    whole = feed(assembler(), [each for step in range(3) for each in step_batches(step)])
    assert closed.ops[0] == whole[-1].ops


def test_window_is_final_after_the_revision_period(incomplete_run):
    run, _ = incomplete_run
    run.settle(FIRST_DEADLINE_S + REVISE_FOR_S + 1)
    late = step_batches(1, [3], seq=1)[0]
    assert run.add(late, 700.0)[:4] == ("new", [1], len(rows_of(3, 1)), -1)
    assert run.settle(700.0) == []


def test_reused_batch_number_is_a_conflict_and_the_first_wins():
    run = assembler()
    first, other = step_batches(0)[0], batch(0, 0, [(0, "optimizer", 9, 9, 9)], [(0, 1)])
    assert run.add(first, 0.0, digest=-1).verdict == "new"
    assert run.add(other, 0.0, digest=-2).verdict == "conflict"
    assert run.add(first, 0.0, digest=-1).verdict == "duplicate"
    [change] = feed(run, step_batches(0, [1, 2, 3]))
    assert change.window.trace.num_ops == num_rows(0)


def test_lowest_rank_counts_among_peers_recording_the_same_work():
    run = assembler()
    rows = rows_of(3, 0)
    done = ((0, len(rows)),)
    peers = [replace(batch(3, 0, rows, done), rank=rank) for rank in (31, 30, 32)]
    [change] = feed(run, [*step_batches(0, [0, 1, 2]), *peers])
    assert change.window.steps == (0,)
    assert change.window.trace.num_ops == num_rows(0)
    assert set(change.window.trace.rank.tolist()) == {0, 10, 20, 30}


def test_a_peer_that_declares_nothing_keeps_no_step_incomplete():
    run = assembler()
    rows = rows_of(3, 0)
    undeclared, declared = (
        replace(batch(3, 0, rows, done), rank=rank)
        for rank, done in ((30, ()), (31, ((0, len(rows)),)))
    )
    feed(run, [*step_batches(0, [0, 1, 2]), undeclared, declared])
    [change] = run.settle(FIRST_DEADLINE_S)
    assert change.window.skipped == ()
    assert set(change.window.trace.rank.tolist()) == {0, 10, 20, 31}


def test_runaway_worker_hits_the_open_step_limit(monkeypatch):
    monkeypatch.setattr("app.ingest.assembly.steps.MAX_OPEN_STEPS", 5)
    run = assembler()
    changes = feed(run, [step_batches(step, [0])[0] for step in range(20)])
    skipped = [each.step for change in changes for each in change.window.skipped]
    assert skipped == list(range(15))


def test_window_closes_early_at_the_operation_limit(monkeypatch):
    monkeypatch.setattr("app.ingest.assembly.windows.MAX_WINDOW_OPS", 2 * num_rows(0) + 1)
    run = assembler(window_steps=100)
    changes = feed(run, [each for step in range(5) for each in step_batches(step)])
    assert [len(change.window.steps) for change in changes] == [2, 2, 1]
    assert [change.window.state for change in changes] == ["complete", "complete", "open"]


def test_a_large_window_is_packed_beside_its_analysis_to_the_same_bytes(monkeypatch):
    def closed():
        changes = feed(assembler(), [each for step in range(3) for each in step_batches(step)])
        return [change for change in changes if change.window.state == "complete"]

    [small] = closed()
    monkeypatch.setattr("app.ingest.assembly.windows.LARGE_OPS", 0)
    [large] = closed()
    assert large.ops == small.ops


def test_what_fails_in_packing_a_large_window_fails_before_it_is_saved(monkeypatch):
    def fail(*_):
        raise RuntimeError("no room")

    monkeypatch.setattr("app.ingest.assembly.windows.LARGE_OPS", 0)
    monkeypatch.setattr("app.ingest.assembly.windows.pack_window", fail)
    [change] = feed(assembler(), [each for step in range(3) for each in step_batches(step)])
    with pytest.raises(RuntimeError, match="no room"):
        change.finish_packing()


def test_a_packing_that_no_thread_could_be_started_for_keeps_no_other_waiting(monkeypatch):
    class NoThread:
        def submit(self, *_, **__):
            raise RuntimeError("can't start new thread")

    steps = [each for step in range(3) for each in step_batches(step)]
    monkeypatch.setattr("app.ingest.assembly.windows.LARGE_OPS", 0)
    with monkeypatch.context() as without_threads:
        without_threads.setattr("app.ingest.assembly.windows._PACKER", NoThread())
        with pytest.raises(RuntimeError, match="new thread"):
            feed(assembler(), steps)
    for _ in range(2):
        [change] = feed(assembler(), steps)
        assert change.ops is not None


def test_spooled_batches_of_megabytes_are_read_again():
    batches = [SpooledBatch(bytes([number]) * 400_000, [number]) for number in range(8)]
    assert unpack_spool(pack_spool(batches)) == batches


def test_optional_columns_are_stored():
    run = assembler(job=Job.of("small", Parallelism(dp_size=1, pp_size=2)))
    job = Job.of("small", Parallelism(dp_size=1, pp_size=2))
    plain = batch(0, 0, [(0, "optimizer", 5, 1, 0)], [(0, 1)], job=job)
    rich = batch(1, 0, [(0, "forward-compute", 5, 1, 0)], [(0, 1)], job=job)
    rich = replace(rich, columns=replace(rich.columns, tokens=np.array([4096])))
    run.add(plain, 0.0)
    run.add(rich, 0.0)
    [change] = run.finish(0.0, "complete")
    assert change.ops is not None
    table = unpack_window(*change.ops).ops
    assert table.tokens is not None
    assert table.tokens.tolist() == [-1, 4096]
    assert table.bytes is None


@pytest.mark.parametrize(
    ("ending", "skipped", "state"),
    [
        ("complete", False, "complete"),
        ("complete", True, "incomplete"),
        ("superseded", False, "superseded"),
        ("superseded", True, "superseded"),
    ],
)
def test_the_end_of_a_run_closes_the_open_window(ending, skipped, state):
    run = assembler()
    feed(run, step_batches(0))
    if skipped:
        feed(run, step_batches(1, [0, 1, 2]))
    [change] = run.finish(1.0, ending)
    assert change.window.state == state
    assert change.window.revision == 2
    assert change.window.missing == ([30] if skipped else [])
    assert change.ops is not None


def test_batch_of_an_unknown_worker_is_late():
    run = assembler()
    stranger = batch(9, 0, rows_of(9, 0), [(0, 4)])
    assert run.add(stranger, 0.0)[:4] == ("stranger", [], stranger.columns.num_ops, -1)
    [change] = feed(run, step_batches(0))
    assert change.window.trace.num_ops == num_rows(0)


def test_rank_that_claims_another_place_changes_nothing_of_it():
    run = assembler()
    first = step_batches(0)
    feed(run, first)
    thief, robbed = first[0].rank, first[-1]
    claim = replace(robbed, rank=thief, batch_seq=robbed.batch_seq + 1, host="thief")
    assert run.add(claim, 0.0)[:4] == ("stranger", [], claim.columns.num_ops, -1)
    assert "thief" not in run.tracker.hosts().values()


def test_step_of_1024_workers_has_all_operations():
    job = Job.of("large", Parallelism(dp_size=64, pp_size=16))
    run = assembler(job=job, window_steps=8)
    rows = [(0, "forward-compute", seq, 1, seq) for seq in range(100)]
    batches = [batch(worker, 0, rows, [(0, 100)], job=job) for worker in range(1024)]
    [change] = feed(run, batches)
    assert change.window.trace.num_ops == 102_400
