"""Which steps are complete, and in which words the others are not."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import InvalidTrace
from app.synth.job import SimulatedJob
from app.trace.completeness import completeness
from app.trace.job import Parallelism
from app.trace.ops import FIRST_USER_CODE, OP_CODES, OpKind, OpSpec, OpTypes
from tests import window_factory
from tests.trace.losses import rows_where, uneven_trace
from tests.window_factory import Row

WORKER = [
    Row("forward-compute", 0),
    Row("forward-compute", 1),
    Row("backward-compute", 2),
    Row("backward-compute", 3),
    Row("optimizer", 4),
]
GC = Row("gc", 3.5)


def step(number, rows, *, dp_size=1):
    return [row.on(step=number) for row in window_factory.replicas(rows, dp_size)]


def found(rows, dp_size=1, pp_size=1, op_types=None):
    sizes = Parallelism(dp_size, pp_size)
    trace = window_factory.trace(rows, sizes)
    return completeness(trace, sizes, *([op_types] if op_types else []))


def reasons(result):
    return {skip.step: skip.reason for skip in result.skipped}


def without(rows, optype, seq_id, **where):
    """The rows without one operation; the others keep their numbers."""
    return [
        row
        for row in window_factory.numbered(rows)
        if not (
            row.optype == optype
            and row.seq_id == seq_id
            and all(getattr(row, name) == value for name, value in where.items())
        )
    ]


def test_steps_that_everybody_reported_alike_are_complete():
    result = found(step(3, WORKER, dp_size=2) + step(7, WORKER, dp_size=2), dp_size=2)
    assert (result.steps, result.skipped) == ((3, 7), ())


def test_operation_of_half_the_replicas_is_lost_on_the_others():
    rows = without(step(0, WORKER, dp_size=2), "backward-compute", 1, dp_rank=0)
    result = found(rows + step(1, WORKER, dp_size=2), dp_size=2)
    assert result.steps == (1,)
    assert reasons(result) == {0: "rank 0 (dp_rank 0, stage 0) lacks backward-compute 1"}


def test_operation_of_a_minority_is_no_loss():
    rows = [*step(0, WORKER, dp_size=3), GC.on(dp_rank=1)]
    assert found(rows, dp_size=3).steps == (0,)


def test_replicas_are_compared_within_a_step():
    # Most steps collect garbage; that one step does not is its structure, not a loss.
    rows = [row for number in range(3) for row in step(number, [*WORKER, GC], dp_size=2)]
    result = found(rows + step(3, WORKER, dp_size=2), dp_size=2)
    assert result.steps == (0, 1, 2, 3)


def test_a_pause_that_one_replica_alone_lost_is_lost():
    rows = without(step(3, [*WORKER, GC], dp_size=4), "gc", 0, dp_rank=2)
    result = found(rows + step(4, WORKER, dp_size=4), dp_size=4)
    assert reasons(result) == {3: "rank 2 (dp_rank 2, stage 0) lacks gc 0"}


def test_lone_replica_is_compared_with_other_steps():
    rows = step(0, WORKER) + without(step(1, WORKER), "optimizer", 0) + step(2, WORKER)
    assert reasons(found(rows)) == {1: "rank 0 (dp_rank 0, stage 0) lacks optimizer 0"}


def test_a_lone_replica_may_collect_garbage_in_some_steps():
    rows = step(0, [*WORKER, GC]) + step(1, WORKER) + step(2, [*WORKER, GC])
    assert found(rows).steps == (0, 1, 2)


def test_a_jobs_own_types_may_come_and_go():
    own = OpTypes((OpSpec("rollout", OpKind.COMPUTE), OpSpec("reward", OpKind.COMPUTE)))
    sizes = Parallelism(1, 1)
    trace = window_factory.trace(step(0, [*WORKER, GC]) + step(1, WORKER) + step(2, WORKER), sizes)
    optype = np.where(trace.optype == OP_CODES["gc"], FIRST_USER_CODE + 1, trace.optype)
    trace = dataclasses.replace(trace, optype=optype)
    assert completeness(trace, sizes, own).steps == (0, 1, 2)


def test_steps_are_compared_only_with_equal_microbatch_counts():
    short = [row for row in WORKER if row.start_s not in (1, 3)]
    assert found(step(0, WORKER) + step(1, WORKER) + step(2, short)).steps == (0, 1, 2)


@pytest.mark.parametrize("dp_size", [1, 2])
def test_a_number_that_is_left_out_is_a_loss_whatever_the_others_did(dp_size):
    rows = without(step(0, WORKER, dp_size=dp_size), "forward-compute", 0)
    assert reasons(found(rows, dp_size)) == {
        0: "rank 0 (dp_rank 0, stage 0) lacks forward-compute 0"
        + (", and 1 more workers lack operations" if dp_size > 1 else "")
    }


@pytest.mark.parametrize("dp_size", [1, 3])
def test_a_worker_that_is_silent_is_lost_even_if_most_are(dp_size):
    rows = step(0, WORKER + [row.on(stage=1) for row in WORKER], dp_size=dp_size)
    heard = [row for row in rows if row.stage == 0 or row.dp_rank > 1]
    result = found(heard + [row.on(step=1) for row in rows], dp_size, pp_size=2)
    more = ", and 1 more workers lack operations" if dp_size > 1 else ""
    assert reasons(result) == {0: f"rank {dp_size} (dp_rank 0, stage 1) reported nothing{more}"}
    assert result.skipped[0].missing == ((dp_size,) if dp_size == 1 else (3, 4))


def test_annotations_are_neither_lost_nor_reports():
    pauses = [Row("gc-pause", 1.5, dp_rank=1), Row("gc-pause", 1.7, dp_rank=1)]
    complete = found(step(0, WORKER, dp_size=2) + pauses, dp_size=2)
    silent = found(step(0, WORKER) + pauses, dp_size=2)
    assert complete.steps == (0,)
    assert reasons(silent) == {0: "rank 1 (dp_rank 1, stage 0) reported nothing"}


def test_more_rows_than_numbers_allow_for_are_refused():
    with pytest.raises(InvalidTrace, match="all three count from 0 without gaps"):
        found([Row("forward-compute", seq_id=2**27), Row("optimizer", 1)])


MADE = SimulatedJob(Parallelism(3, 2), 2)
WHOLE = MADE.make([1, 2])


@given(st.data())
def test_whatever_one_worker_loses_its_step_is_left_out_and_the_worker_named(data):
    of_worker = (WHOLE.step == 2) & (WHOLE.dp_rank == 1) & (WHOLE.stage == 1)
    rows = np.flatnonzero(of_worker)
    gone = data.draw(st.sets(st.sampled_from(rows.tolist()), min_size=1))
    kept = np.setdiff1d(np.arange(WHOLE.num_ops), list(gone))
    result = completeness(WHOLE.select(kept), MADE.parallelism)
    assert result.steps == (1,)
    assert result.skipped[0].missing == (4,)
    assert result.skipped[0].reason.startswith("rank 4 (dp_rank 1, stage 1) ")


@given(st.sets(st.sampled_from(["gc", "layernorm-grads-all-reduce"]), max_size=2))
def test_operation_missing_on_all_replicas_is_no_loss(absent):
    codes = [OP_CODES[name] for name in absent]
    kept = ~(np.isin(WHOLE.optype, codes) & (WHOLE.step == 2))
    assert completeness(WHOLE.select(kept), MADE.parallelism).steps == (1, 2)


UNEVEN = SimulatedJob(Parallelism(4, 2), 4)


@pytest.mark.parametrize("fewer", [{1: 3}, {1: 3, 2: 3}, {0: 3, 1: 2, 2: 3}, {1: 1, 2: 2, 3: 3}])
def test_dp_rank_that_always_runs_fewer_microbatches_has_lost_nothing(fewer):
    trace = uneven_trace(UNEVEN, [1, 2], fewer, 4)
    assert completeness(trace, UNEVEN.parallelism).steps == (1, 2)


def test_microbatch_that_is_missing_from_one_step_only_is_lost():
    trace = UNEVEN.make([1, 2])
    gone = rows_where(trace, step=2, dp_rank=1, mb_id=3)
    result = completeness(trace.select(~gone), UNEVEN.parallelism)
    assert (result.steps, result.skipped[0].missing) == ((1,), (1, 5))


@pytest.mark.parametrize(
    "gone",
    [
        {"mb_id": 1},  # a gap in the numbering
        {"mb_id": 3, "stage": 0},  # the other stage ran it
        {"mb_id": 3, "optype": OP_CODES["backward-compute"]},  # its forward was recorded
        {"optype": OP_CODES["grads-reduce-scatter"]},  # every step has one
    ],
)
def test_part_of_the_microbatches_is_lost_in_whatever_number_of_steps(gone):
    trace = UNEVEN.make([1, 2, 3])
    lost = rows_where(trace, dp_rank=1, **gone)
    assert lost.any()
    assert completeness(trace.select(~lost), UNEVEN.parallelism).steps == ()


def test_dp_rank_with_fewer_microbatches_can_still_be_silent():
    trace = uneven_trace(UNEVEN, [1, 2, 3], {1: 3, 2: 3}, 4)
    silent = rows_where(trace, step=3, dp_rank=1)
    result = completeness(trace.select(~silent), UNEVEN.parallelism)
    assert (result.steps, result.skipped[0].missing) == ((1, 2), (1, 5))
