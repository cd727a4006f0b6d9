"""Collectives inside groups in windows: no step waits for them or is completed by them."""

from dataclasses import replace

import numpy as np
import pytest

from app.ingest.assembly import op_table, windows
from app.ingest.assembly.assembler import EarlierBatch, RunAssembler, WindowRules
from app.ingest.assembly.op_table import GroupSlice, group_table_of_slices
from app.ingest.assembly.window_codec import pack_window, unpack_window
from app.ingest.batch import GroupRows, OpBatch
from app.trace.collectives import RankGroup, RankPlace
from app.trace.job import Job, Parallelism
from tests.ingest.factories import (
    DEADLINE_S,
    REVISE_FOR_S,
    WINDOW_STEPS,
    ClosedWindows,
    assembler,
    batch,
    columns,
    feed,
    step_batches,
)

# Workers 0 to 3 of two stages have the ranks 0, 10, 20, 30; each has a tensor-parallel peer.
JOB = Job.of("llm-70b", Parallelism(dp_size=2, pp_size=2, tp_size=2))
TP = [RankGroup("tp", "tp", (10 * worker, 10 * worker + 1)) for worker in range(4)]
AT_NS = 1_700_000_000_000_000_000


def rows_of(worker, rank, steps, *, per_step=2, is_alone=True, stay_ns=1000, local_rank=None):
    step = np.repeat(np.array(steps, np.int64), per_step)
    zeros, numbers = np.zeros(step.size, np.int64), np.tile(np.arange(per_step), len(steps))
    return GroupRows(
        groups=(TP[worker],),
        kinds=("all-reduce",),
        step=step,
        group=zeros,
        kind=zeros,
        sequence=numbers.astype(np.int64) * 3 + 7,  # the sender's own numbering
        start_ns=AT_NS + step * 10**9 + rank,
        duration_ns=np.full(step.size, stay_ns + rank, np.int64),
        num_bytes=np.full(step.size, 64, np.int64),
        local_rank=rank % 10 if local_rank is None else local_rank,
        is_alone=is_alone,
    )


def peer(worker, seq, steps, **options):
    """A batch of the worker's peer, which records only collectives."""
    dp_rank, stage = divmod(worker, 2)
    rows = rows_of(worker, 10 * worker + 1, steps, **options)
    return OpBatch(
        1, 10 * worker + 1, dp_rank, stage, f"peer-{worker}", seq, (), columns([]), collectives=rows
    )


def with_rows(each, steps):
    """A worker's batch with its own collective rows."""
    worker = each.dp_rank * 2 + each.stage
    return replace(each, collectives=rows_of(worker, each.rank, steps, is_alone=False))


def groups_run(closed=None, **options):
    return assembler(job=JOB, closed=closed, **options)


def restored(run, closed, before):
    rules = WindowRules(WINDOW_STEPS, DEADLINE_S, REVISE_FOR_S)
    return RunAssembler.restore(
        JOB, 1, rules, closed, blob=run.dump(run.turn), before=before, hosts={}, now_s=0.0
    )


# Untyped: none of these is None in these tests.
def stored(change):
    return unpack_window(*change.ops)


def collectives_of(window):
    return window.collectives


def row_counts(table):
    """Number of rows by step, and by rank."""
    return [
        dict(zip(*(each.tolist() for each in np.unique(of, return_counts=True)), strict=True))
        for of in (table.step, table.rank)
    ]


def test_collective_rows_are_in_the_window_beside_its_operations():
    closed, run = ClosedWindows(), groups_run()
    batches = [peer(worker, 0, [0, 2]) for worker in (0, 3)]
    for step in range(WINDOW_STEPS):
        for each in step_batches(step):
            batches.append(with_rows(each, [step]) if step != 1 else each)
    changes = feed(run, batches)
    closed.save(changes)
    [change] = [each for each in changes if each.ops is not None]
    window = change.window
    assert (window.state, window.steps, window.skipped) == ("complete", (0, 1, 2), ())
    assert window.trace.num_ops == stored(change).ops.num_ops  # collective rows are no operations
    table = collectives_of(window)
    assert row_counts(table) == [
        {0: 4 * 2 + 2 * 2, 2: 4 * 2 + 2 * 2},
        {0: 4, 1: 4, 10: 4, 20: 4, 30: 4, 31: 4},
    ]
    assert {*table.sequence.tolist()} == {0, 1}
    assert [each.name for each in table.groups] == [
        f"tp (ranks {10 * worker}, {10 * worker + 1})" for worker in range(4)
    ]
    assert table.place(31) == RankPlace(31, 1, 1, "peer-3", 1)
    assert table.place(30) == RankPlace(30, 1, 1, "node-3", 0)
    assert table.place(10).host == "node-1"
    mine = table.select(table.rank == 31)
    assert mine.stay_s == pytest.approx([1.031e-6] * 4)
    origins_ns = [
        ops.start_ns.min() for ops in (stored(change).ops.of_step(step) for step in (0, 2))
    ]
    started_s = [
        (AT_NS + 31 + step * 10**9 - origin_ns) * 1e-9
        for step, origin_ns in zip((0, 2), origins_ns, strict=True)
        for _ in range(2)
    ]
    assert mine.start_s == pytest.approx(started_s, abs=1e-12)
    assert window.hosts == {(0, 0): "node-0", (0, 1): "node-1", (1, 0): "node-2", (1, 1): "node-3"}
    assert collectives_of(window.only([2])).num_rows == 12
    again = stored(change).groups.collectives(window.steps, window.origin_ns)
    for name in ("group", "kind", "step", "sequence", "rank", "start_s", "stay_s", "num_bytes"):
        assert getattr(again, name).tolist() == getattr(table, name).tolist()
    assert (again.groups, again.kinds, again.places) == (table.groups, table.kinds, table.places)


def test_step_neither_waits_for_nor_is_completed_by_a_peer():
    run = groups_run()
    assert run.add(peer(0, 0, [0]), 0.0).verdict == "new"
    assert run.add(peer(1, 2, [0]), 0.0).verdict == "new"  # its earlier batches are missing
    assert run.settle(0.0) == []
    assert run.next_deadline_s() is None
    changes = feed(run, [each for step in range(2) for each in step_batches(step)])
    assert [change.window.steps for change in changes] == [(0, 1)]
    # A peer does not replace its worker: with three of four workers the step waits.
    assert feed(run, [*step_batches(2, range(3)), peer(3, 0, [2])]) == []
    assert run.tracker.ranks(range(4)) == (0, 10, 20, 30)


def test_run_without_collectives_stores_no_collectives():
    run = groups_run()
    changes = feed(run, [each for step in range(WINDOW_STEPS) for each in step_batches(step)])
    [change] = [each for each in changes if each.ops is not None]
    assert change.window.collectives is None
    assert change.ops == (pack_window(stored(change).ops), None)
    assert stored(change).groups is None
    assert run._closed.kept == []


def closed_run():
    """A run whose first window is closed, with rows of one peer in it."""
    closed, run = ClosedWindows(), groups_run()
    run = RunAssembler(JOB, 1, WindowRules(WINDOW_STEPS, DEADLINE_S, REVISE_FOR_S), closed)
    batches = [each for step in range(WINDOW_STEPS) for each in step_batches(step)]
    closed.save(feed(run, [peer(0, 0, [1]), *batches]))
    return closed, run


def test_collective_rows_after_the_close_revise_the_window():
    closed, run = closed_run()
    added = run.add(peer(2, 0, [0, 1]), 1.0)
    assert (added.groups, added.last_step) == ((4, 0, 0), -1)
    [change] = run.settle(1.0)
    closed.save([change])
    assert (change.window.state, change.window.revision) == ("complete", WINDOW_STEPS + 1)
    assert row_counts(change.window.collectives) == [{0: 2, 1: 4}, {1: 2, 21: 4}]
    assert run.settle(1.0) == []
    assert run.is_dirty


def test_repeated_collective_rows_use_up_the_revisions():
    _closed, run = closed_run()
    for number in range(1, windows.MAX_GROUP_REVISIONS + 1):
        assert run.add(peer(0, number, [1]), 1.0).groups == (2, 0, 0)
        assert run.settle(1.0) == []
    assert run.add(peer(0, 9, [1]), 1.0).groups == (0, 2, 0)
    assert run._closed.kept == []


def test_late_rows_beyond_the_limits_are_refused_and_counted(monkeypatch):
    closed, run = closed_run()
    monkeypatch.setattr(op_table, "MAX_RANK_ROWS", 5)
    assert run.add(peer(1, 0, [0, 1], per_step=3), 1.0).groups == (6, 0, 0)
    assert run.add(peer(1, 1, [0], per_step=3), 1.0).groups == (0, 0, 3)
    closed.save(run.settle(1.0))
    assert run.add(peer(1, 2, [0], per_step=3), 1.0).groups == (0, 0, 3)
    monkeypatch.setattr(op_table, "MAX_RUN_ROWS", 8)
    assert run.add(peer(2, 0, [0], per_step=3), 1.0).groups == (0, 0, 3)
    assert run.add(peer(2, 1, [0], per_step=2), 1.0).groups == (2, 0, 0)
    # A final window frees its room for the next windows.
    closed.save(run.settle(1.0))
    steps = range(WINDOW_STEPS, 2 * WINDOW_STEPS)
    at_s = 2 * REVISE_FOR_S
    closed.save(feed(run, [each for step in steps for each in step_batches(step)], at_s))
    closed.save(run.settle(at_s))
    assert run.add(peer(2, 2, [WINDOW_STEPS], per_step=5), at_s).groups == (5, 0, 0)


def test_windows_with_pending_rows_are_not_evicted(monkeypatch):
    closed = ClosedWindows()
    run = RunAssembler(JOB, 1, WindowRules(WINDOW_STEPS, DEADLINE_S, REVISE_FOR_S), closed)
    run.add(peer(0, 0, [0]), 0.0)
    lacking = [each for step in range(3 * WINDOW_STEPS) for each in step_batches(step, range(3))]
    closed.save(feed(run, lacking))
    closed.save(run.settle(100_000.0))
    assert len(run._closed.kept) == 3
    monkeypatch.setattr(windows, "MAX_DECLARED", 3)
    late = [peer(1, 0, [0]), peer(1, 1, [WINDOW_STEPS])]
    assert [run.add(each, 100_000.0).groups for each in late] == [(2, 0, 0)] * 2
    revised = run.settle(100_000.0)
    assert [each.window.first_step for each in revised] == [0, WINDOW_STEPS]


def test_window_without_declared_steps_is_not_evicted(monkeypatch):
    closed, run = closed_run()
    monkeypatch.setattr(windows, "MAX_DECLARED", 3)
    steps = range(WINDOW_STEPS, 3 * WINDOW_STEPS)
    lacking = [each for step in steps for each in step_batches(step, range(3))]
    closed.save(feed(run, lacking))
    closed.save(run.settle(100.0))
    assert [each.first_step for each in run._closed.kept] == [0, 2 * WINDOW_STEPS]


def test_only_the_newest_windows_are_revised():
    closed, run = closed_run()
    for step in range(WINDOW_STEPS, WINDOW_STEPS * (windows.MAX_GROUP_WINDOWS + 1)):
        closed.save(feed(run, step_batches(step)))
    assert run.add(peer(1, 0, [0]), 1.0).groups == (0, 2, 0)
    assert run.add(peer(1, 1, [WINDOW_STEPS]), 1.0).groups == (2, 0, 0)
    [change] = run.settle(1.0)
    assert change.window.first_step == WINDOW_STEPS


def test_late_completion_of_a_step_adds_its_collective_rows():
    closed = ClosedWindows()
    run = RunAssembler(JOB, 1, WindowRules(WINDOW_STEPS, DEADLINE_S, REVISE_FOR_S), closed)
    late = step_batches(1)[3]
    batches = [each for step in range(4) for each in step_batches(step)]
    on_time = [each for each in batches if (each.rank, each.batch_seq) != (30, 1)]
    closed.save(feed(run, [peer(0, 0, [1, 2]), *on_time]))
    changes = run.settle(100.0)
    assert [each.window.steps for each in changes if each.ops] == [(0, 2, 3)]
    assert row_counts(changes[0].window.collectives)[0] == {2: 2}
    closed.save(changes)
    changes = feed(run, [late], 101.0)
    [change] = [each for each in changes if each.ops is not None]
    assert 1 in change.window.steps
    assert row_counts(change.window.collectives)[0] == {1: 2, 2: 2}


def test_crash_loses_no_collective_rows():
    closed, run = closed_run()
    earlier = []
    for turn, each in enumerate(
        [*step_batches(3), peer(0, 1, [3]), peer(1, 0, [4]), *step_batches(4)], start=1
    ):
        added = run.add(each, 1.0)
        earlier.append(EarlierBatch(turn, each, 0, added.dropped))
    run.settle(1.0)
    again = restored(run, closed, earlier)
    closed_by = [*again.settle(1.0), *feed(again, step_batches(5))]
    [change] = [each for each in closed_by if each.ops is not None]
    assert row_counts(change.window.collectives) == [{3: 2, 4: 2}, {1: 2, 11: 2}]
    # Batch numbers are still known, and the previous window can still be revised.
    assert again.add(peer(1, 0, [4]), 1.0).verdict == "duplicate"
    assert again.add(peer(1, 1, [0]), 1.0).groups == (2, 0, 0)


def test_collective_rows_of_an_evaluation_are_dropped():
    run = groups_run()
    batches = [each for step in range(WINDOW_STEPS + 1) for each in step_batches(step)]
    batches = [
        replace(each, step_kinds=((1, "eval"),)) if each.steps_done[0][0] == 1 else each
        for each in batches
    ]
    [*_, change] = feed(run, [peer(0, 0, [0, 1, 2, 3]), *batches])
    assert row_counts(change.window.collectives)[0] == {0: 2, 2: 2, 3: 2}
    assert stored(change).groups.num_rows == 6


def test_rows_beyond_the_limits_are_refused_and_counted(monkeypatch):
    monkeypatch.setattr(op_table, "MAX_RANK_ROWS", 5)
    run = groups_run()
    assert run.add(peer(0, 0, [0, 1], per_step=4), 0.0).groups == (8, 0, 0)
    assert run.add(peer(0, 1, [0, 1, 2], per_step=2), 0.0).groups == (2, 0, 4)
    monkeypatch.setattr(op_table, "MAX_RUN_ROWS", 12)
    assert run.add(peer(1, 0, [0], per_step=3), 0.0).groups == (0, 0, 3)
    feed(run, [each for step in range(WINDOW_STEPS) for each in step_batches(step)])
    assert run.add(peer(1, 1, [WINDOW_STEPS], per_step=3), 0.0).groups == (3, 0, 0)


def test_rows_beyond_the_open_limit_appear_only_at_the_close(monkeypatch):
    monkeypatch.setattr(op_table, "MAX_OPEN_ROWS", 3)
    run = groups_run()
    run.add(peer(0, 0, [0, 1]), 0.0)
    changes = [change for step in range(3) for change in feed(run, step_batches(step))]
    numbers = [
        collectives_of(each.window) and collectives_of(each.window).num_rows for each in changes
    ]
    assert numbers == [2, None, 4]


def test_a_peer_that_becomes_a_worker_is_waited_for():
    run = groups_run()
    run.add(peer(0, 0, [0]), 0.0)
    own = replace(batch(0, 1, [], []), rank=1)
    assert run.add(own, 0.0).verdict == "new"
    assert run.tracker.ranks([0]) == (1,)
    assert run.tracker.watermark() == -1


def group_slice(rank, sequence, stay_ns, kind="all-reduce", group=TP[0]):
    one = np.array([0], np.int64)
    return GroupSlice(
        RankPlace(rank),
        GroupRows(
            (group,), (kind,), one, one, one, one + sequence, one - 1, one + stay_ns, one - 1
        ),
    )


def test_duplicate_rows_count_once_and_conflicting_rows_never():
    slices = [
        group_slice(0, 0, 5),
        group_slice(0, 0, 5),
        group_slice(1, 0, 7),
        group_slice(1, 0, 8),
        group_slice(1, 1, 9),
    ]
    table = group_table_of_slices(slices)
    assert list(zip(table.rank.tolist(), table.sequence.tolist(), strict=True)) == [(0, 0), (1, 1)]
    for reordered in (slices[::-1], slices[2:] + slices[:2]):
        other = group_table_of_slices(reordered)
        assert all(
            (other.columns()[name] == column).all() for name, column in table.columns().items()
        )
    assert group_table_of_slices(slices[:3], table).num_rows == 3
    found = table.collectives([0], [0])
    assert found is not None
    assert np.isnan(found.start_s).all()
    assert table.collectives([1], [0]) is None


def test_groups_of_the_same_name_get_distinguishing_names():
    groups = [
        RankGroup("tp", "tp", (0, 1)),
        RankGroup("tp", "tp", tuple(range(0, 20, 2))),
        RankGroup("world", "", (0, 1)),
    ]
    table = group_table_of_slices(
        [group_slice(0, 0, 5, group=group) for group in groups]
    ).collectives([0], [0])
    assert table is not None
    assert [each.name for each in table.groups] == [
        "tp (ranks 0, 1)",
        "tp (ranks 0, 2, 4, 6, 8, 10, 12, 14, ...)",
        "world",
    ]
