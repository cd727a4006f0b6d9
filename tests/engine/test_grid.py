import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.grid import lay_out
from app.engine.report import analyse
from app.errors import InvalidTrace
from tests.example_counts import many
from tests.job_strategies import windows
from tests.results import report_as_json
from tests.window_factory import Row, in_row, replicas, rows_of, window, with_columns


def a_step(step: int = 0) -> list[Row]:
    rows = in_row(("forward-compute", 1), ("backward-compute", 2), ("optimizer", 3))
    return replicas([row.on(step=step) for row in rows], 2)


def test_lanes_are_the_steps_of_each_dp_rank():
    rows = [
        row.on(duration_s=10.0 * row.dp_rank + row.step)
        for row in [*a_step(3), *a_step(7)]
        if row.optype == "optimizer"
    ]
    grid = lay_out(window(rows, dp_size=2))
    assert grid.steps == (3, 7)
    assert grid.duration_s.tolist() == [[3.0, 7.0, 13.0, 17.0]]


def test_a_worker_keeps_the_rank_that_it_recorded():
    rows = [row.on(rank=40 + row.dp_rank) for row in a_step()]
    assert lay_out(window(rows, dp_size=2)).rank.tolist() == [[40], [41]]


def test_annotations_are_not_simulated():
    rows = [*a_step(), Row("gc-pause", 0, 99), Row("data-wait", 0, 99)]
    with_them, without = (analyse(window(each, dp_size=2)) for each in (rows, a_step()))
    assert with_them.recorded_s.tolist() == without.recorded_s.tolist() == [6.0]
    assert with_them.simulated_s.tolist() == [6.0]


@many(60)
@given(windows(), st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_change_a_bit(a_window, chance):
    order = list(range(a_window.trace.num_ops))
    chance.shuffle(order)
    shuffled = rows_of(a_window, np.array(order))
    assert report_as_json(analyse(shuffled)) == report_as_json(analyse(a_window))


def test_an_operation_recorded_twice_is_named():
    rows = [*a_step(), a_step()[0].on(seq_id=0, start_s=5.0)]
    with pytest.raises(InvalidTrace, match=r"forward-compute 0 .* recorded more than once"):
        lay_out(window(rows, dp_size=2))


def test_an_operation_missing_from_a_replica_is_named():
    with pytest.raises(InvalidTrace, match="optimizer 0 on stage 0 is missing"):
        lay_out(window(a_step()[:-1], dp_size=2))


def test_an_operation_that_only_some_steps_have_is_named():
    rows = [*a_step(0), *a_step(1), Row("gc", 6, 1, step=1, dp_rank=1)]
    with pytest.raises(InvalidTrace, match=r"step 1, dp rank 1, stage 0: gc 0 .* no counterpart"):
        lay_out(window(rows, dp_size=2))


def test_a_compute_of_another_chunk_is_another_structure():
    rows = [row.on(mc=row.dp_rank) if row.optype == "forward-compute" else row for row in a_step()]
    with pytest.raises(InvalidTrace, match=r"forward-compute 0 \(chunk 1\) has no counterpart"):
        lay_out(window(rows, dp_size=2, vpp_size=2))


def test_the_chunk_of_types_without_chunks_is_ignored():
    rows = [row.on(mc=row.dp_rank) if row.optype == "optimizer" else row for row in a_step()]
    assert lay_out(window(rows, dp_size=2)).template.num_ops == 3


def test_a_row_of_a_step_outside_the_window_is_refused():
    a_window = dataclasses.replace(window([*a_step(3), *a_step(4)], dp_size=2), steps=(3,))
    with pytest.raises(InvalidTrace, match="has step 4, which is not among"):
        lay_out(a_window)


def test_a_window_without_a_complete_step_is_refused():
    with pytest.raises(InvalidTrace, match="window 1-0 has no complete step"):
        lay_out(window([]))


def test_a_seq_id_beyond_the_number_of_operations_is_refused():
    rows = [*a_step(), Row("gc", 6, 1, seq_id=2**30)]
    with pytest.raises(InvalidTrace, match="numbered from 0 without gaps"):
        lay_out(window(rows, dp_size=2))


@pytest.mark.parametrize("rows", [[], [Row("gc-pause", 0, 1)]], ids=["nothing", "an annotation"])
def test_a_step_without_operations_is_refused(rows):
    empty = dataclasses.replace(window(rows or [Row("gc-pause", 0, 1)], dp_size=1), steps=(0,))
    if not rows:
        none = np.zeros(empty.trace.num_ops, np.bool_)
        empty = dataclasses.replace(empty, trace=empty.trace.select(none))
    with pytest.raises(InvalidTrace, match="no operation of dp rank 0 was recorded"):
        lay_out(empty)


@many(100)
@given(windows(), st.data())
def test_rows_in_stored_order_give_the_same_grid(a_window, data):
    # Workers' rows that follow each other alike are placed together, which must change nothing,
    # wherever some lane has its rows in another order or in two pieces.
    trace = a_window.trace
    order = np.lexsort((trace.seq_id, trace.optype, trace.stage, trace.dp_rank, trace.step))
    for _ in range(data.draw(st.integers(0, 2))):
        at, to = (data.draw(st.integers(0, order.size - 1)) for _ in range(2))
        order = np.insert(np.delete(order, at), to, order[at])
    stored, recorded = lay_out(rows_of(a_window, order)), lay_out(a_window)
    assert stored.start_s.tolist() == recorded.start_s.tolist()
    assert stored.duration_s.tolist() == recorded.duration_s.tolist()
    assert stored.rank.tolist() == recorded.rank.tolist()


@many(60)
@given(windows(), st.data())
def test_a_duplicate_row_in_stored_order_is_refused(a_window, data):
    trace = a_window.trace
    order = np.lexsort((trace.seq_id, trace.optype, trace.stage, trace.dp_rank, trace.step))
    again = data.draw(st.integers(0, order.size - 1))
    twice = rows_of(a_window, np.insert(order, data.draw(st.integers(0, order.size)), again))
    with pytest.raises(InvalidTrace):
        lay_out(twice)


@pytest.mark.parametrize("column", ["start_s", "duration_s"])
def test_a_time_that_is_not_finite_is_refused(column):
    # dp rank 1's rows are like those of dp rank 0, and placed together with them.
    a_window = window(a_step(), dp_size=2)
    for row in range(a_window.trace.num_ops):
        times_s = getattr(a_window.trace, column).copy()
        times_s[row] = np.nan
        with pytest.raises(InvalidTrace, match=f"dp rank {a_window.trace.dp_rank[row]}.*finite"):
            lay_out(with_columns(a_window, **{column: times_s}))
