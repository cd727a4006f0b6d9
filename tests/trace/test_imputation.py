"""Lost operations and absent workers: what is imputed, and what stays skipped."""

from dataclasses import replace

import numpy as np
import pytest

from app.synth.job import SimulatedJob
from app.trace.completeness import completeness
from app.trace.imputation import impute
from app.trace.job import Parallelism
from app.trace.ops import OP_CODES
from app.trace.window import PartialSteps, Trace, Window
from tests.trace.losses import lossy_window, rows_where, uneven_trace

MADE = SimulatedJob(Parallelism(4, 2), 4)
FORWARD = OP_CODES["forward-compute"]


def found(window: Window, **where: int) -> Trace:
    """Rows of a window."""
    return window.trace.select(rows_where(window.trace, **where))


def test_lone_operation_takes_the_median_of_its_peers():
    trace = MADE.make([1, 2])
    gone = rows_where(trace, step=2, dp_rank=3, stage=1, optype=FORWARD, seq_id=2)
    window = impute(lossy_window(MADE, trace.select(~gone)))
    peers = found(window, step=2, stage=1, optype=FORWARD, seq_id=2)
    mine = peers.select(peers.dp_rank == 3)
    others = peers.select(peers.dp_rank != 3)
    assert mine.duration_s.tolist() == [np.median(others.duration_s)]
    assert (mine.mb_id.tolist(), mine.rank.tolist()) == ([2], trace.rank[gone].tolist())
    assert mine.start_s == pytest.approx(trace.start_s[gone], abs=1e-3)
    assert window.imputed is not None
    assert window.imputed.lone.tolist() == [[2, 3, 1, FORWARD, 2]]
    assert (window.steps, window.skipped, window.missing) == ((1, 2), (), [])
    assert (window.imputed.num_ops, dict(window.imputed.absent)) == (1, {})


def test_lone_operation_of_one_replica_takes_the_median_of_its_other_steps():
    made = SimulatedJob(Parallelism(1, 2), 4)
    trace = made.make(range(5))
    gone = rows_where(trace, step=3, stage=1, optype=FORWARD, seq_id=1)
    window = impute(lossy_window(made, trace.select(~gone)))
    same = found(window, stage=1, optype=FORWARD, seq_id=1)
    others = same.duration_s[same.step != 3]
    assert same.duration_s[same.step == 3].tolist() == [np.median(others)]


def test_worker_that_lacks_more_than_a_few_operations_is_absent_from_the_step():
    trace = MADE.make([1, 2])
    worker = rows_where(trace, step=1, dp_rank=1, stage=0)
    some = worker & (np.cumsum(worker) > worker.sum() - 6)
    window = impute(lossy_window(MADE, trace.select(~some)))
    assert window.imputed is not None
    assert dict(window.imputed.absent) == {(1, 0): (1,)}
    assert window.imputed.num_ops == worker.sum(), "what it did record does not count either"
    assert window.missing == trace.rank[worker][:1].tolist()
    assert list(window.missing_by_step) == [1]


def test_absent_worker_has_all_operations_of_its_stage_within_the_step():
    trace = MADE.make([1, 2, 3])
    gone = rows_where(trace, dp_rank=2, stage=1) & (trace.step >= 2)
    window = impute(lossy_window(MADE, trace.select(~gone)))
    assert window.imputed is not None
    assert dict(window.imputed.absent) == {(2, 1): (2, 3)}
    mine, whole = found(window, dp_rank=2, stage=1), trace.select(rows_where(trace, dp_rank=2))
    whole = whole.select(whole.stage == 1)
    for name in ("step", "optype", "seq_id", "mc", "mb_id", "rank"):
        ours, theirs = (
            np.sort(getattr(each, name).astype(np.int64) * 1000 + each.optype)
            for each in (mine, whole)
        )
        np.testing.assert_array_equal(ours, theirs)
    last_s = (trace.start_s + trace.duration_s)[~gone].max()
    assert (mine.start_s + mine.duration_s).max() <= last_s


def test_absent_worker_gets_the_times_of_a_typical_peer():
    trace = MADE.make([1, 2])
    slow = rows_where(trace, dp_rank=0, stage=1)
    trace = replace(trace, duration_s=np.where(slow, 3 * trace.duration_s, trace.duration_s))
    window = impute(
        lossy_window(MADE, trace.select(~rows_where(trace, step=2, dp_rank=3, stage=1)))
    )
    where = {"step": 2, "stage": 1, "optype": FORWARD, "seq_id": 0}
    begun_s = [found(window, dp_rank=rank, **where).start_s[0] for rank in range(4)]
    assert begun_s[3] in begun_s[1:3]  # not those of rank 0, which is slow


def test_step_stays_skipped_where_most_of_a_stage_is_missing():
    trace = MADE.make([1, 2])
    gone = (trace.dp_rank > 0) & (trace.stage == 1) & (trace.step == 2)
    window = lossy_window(MADE, trace.select(~gone))
    after = impute(window)
    assert (after.steps, after.imputed) == ((1,), None)
    assert after.skipped == window.skipped


def test_step_of_one_replica_without_a_worker_stays_skipped():
    made = SimulatedJob(Parallelism(1, 2), 4)
    trace = made.make([1, 2])
    after = impute(lossy_window(made, trace.select(~rows_where(trace, step=2, stage=1))))
    assert (after.steps, [each.step for each in after.skipped]) == ((1,), [2])


def test_missing_ranks_of_chosen_steps_are_those_of_these_steps():
    trace = MADE.make([1, 2, 3])
    gone = rows_where(trace, step=2, dp_rank=1, stage=1)
    window = impute(lossy_window(MADE, trace.select(~gone)))
    assert window.only([1, 3]).missing == []
    only = window.only([2]).imputed
    assert only is not None
    assert (only.num_ops, list(only.absent)) == (int(gone.sum()), [(1, 1)])


def test_optional_columns_of_imputed_operations_are_unknown():
    trace = MADE.make([1, 2])
    trace = replace(trace, tokens=np.where(trace.optype == FORWARD, 4096, -1).astype(np.int64))
    window = impute(lossy_window(MADE, trace.select(~rows_where(trace, step=2, dp_rank=0))))
    tokens = found(window, step=2, dp_rank=0).tokens
    assert tokens is not None
    assert (tokens == -1).all()


def test_rows_that_repeat_leave_the_steps_skipped():
    trace = MADE.make([1])
    window = lossy_window(MADE, trace.select(~rows_where(trace, dp_rank=1)))
    assert window.partial is not None
    twice = np.concatenate([np.arange(window.partial.trace.num_ops), [0]])
    partial = PartialSteps(window.partial.steps, window.partial.trace.select(twice))
    after = impute(replace(window, partial=partial))
    assert (after.steps, after.skipped) == ((), window.skipped)
    assert completeness(trace, MADE.parallelism).steps == (1,)


@pytest.mark.parametrize("is_alone", [True, False])
def test_peer_that_is_lost_itself_later_stands_in_no_longer(is_alone):
    # Rank 0 of stage 0 is missing from the start, and its donor from the third step.
    made = SimulatedJob(Parallelism(5, 2), 4)
    trace = made.make(range(5))
    gone = rows_where(trace, dp_rank=0, stage=0)
    first = impute(lossy_window(made, trace.select(~gone)))
    mine = found(first, step=0, dp_rank=0, stage=0, optype=FORWARD, seq_id=0)
    theirs = found(first, step=0, stage=0, optype=FORWARD, seq_id=0)
    donor = int(theirs.dp_rank[(theirs.start_s == mine.start_s) & (theirs.dp_rank > 0)][0])
    lost = rows_where(trace, dp_rank=donor, stage=0) & (trace.step >= 2)
    if is_alone:
        lost &= rows_where(trace, optype=FORWARD, seq_id=1)
    window = impute(lossy_window(made, trace.select(~(gone | lost))))
    assert window.steps == tuple(range(5))
    for step in range(2, 5):
        theirs = found(window, step=step, dp_rank=0, stage=0)
        assert theirs.num_ops == found(trace_window(made), step=step, dp_rank=0, stage=0).num_ops
        assert (theirs.mb_id[theirs.optype == FORWARD] >= 0).all()


def trace_window(made: SimulatedJob) -> Window:
    return made.record(range(5)).window()


@pytest.mark.parametrize("gone_from", [1, 3])
def test_nothing_is_imputed_to_dp_ranks_that_run_fewer_microbatches(gone_from):
    # Rank 7 (dp rank 3, stage 1) is silent, from the start or once complete steps are known.
    trace = uneven_trace(MADE, [1, 2, 3], {1: 3}, 4)
    silent = rows_where(trace, dp_rank=3, stage=1) & (trace.step >= gone_from)
    window = impute(lossy_window(MADE, trace.select(~silent)))
    assert window.imputed is not None
    assert list(window.imputed.absent) == [(3, 1)]
    assert (window.steps, window.missing, window.imputed.lone.size) == ((1, 2, 3), [7], 0)
    assert found(window, dp_rank=3, stage=1, optype=FORWARD).num_ops == 4 * 3
    assert found(window, dp_rank=1, stage=1, optype=FORWARD).num_ops == 3 * 3


def test_lone_operation_of_a_dp_rank_with_fewer_microbatches_is_imputed():
    trace = uneven_trace(MADE, [1, 2, 3], {1: 3}, 4)
    gone = rows_where(trace, step=3, dp_rank=1, stage=0, optype=FORWARD, seq_id=1)
    window = impute(lossy_window(MADE, trace.select(~gone)))
    assert window.imputed is not None
    assert (window.imputed.lone.tolist(), window.missing) == ([[3, 1, 0, FORWARD, 1]], [])


def test_worker_that_lacks_microbatches_in_the_middle_is_absent():
    trace = MADE.make([1, 2])
    window = impute(lossy_window(MADE, trace.select(~rows_where(trace, dp_rank=1, mb_id=1))))
    assert window.imputed is not None
    assert list(window.imputed.absent) == [(1, 0), (1, 1)]


def test_silent_dp_rank_gets_the_microbatches_that_it_used_to_run():
    trace = uneven_trace(MADE, [1, 2, 3], {1: 3}, 4)
    silent = rows_where(trace, step=3, dp_rank=1, stage=0)
    window = impute(lossy_window(MADE, trace.select(~silent)))
    assert window.missing == [1]
    assert found(window, step=3, dp_rank=1, stage=0, optype=FORWARD).num_ops == 3


def test_missing_ranks_that_sent_a_part_are_not_silent():
    trace = MADE.make([1, 2])
    part = rows_where(trace, step=1, dp_rank=1, stage=0) & (trace.optype != FORWARD)
    whole = rows_where(trace, step=2, dp_rank=1, stage=0)
    window = impute(lossy_window(MADE, trace.select(~part & ~whole)))
    assert window.missing_by_step == {1: (1,), 2: (1,)}
    assert window.silent_by_step == {1: (), 2: (1,)}
