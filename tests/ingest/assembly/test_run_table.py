"""Batches become tables of whole steps: in canonical order, whatever the order of arrival."""

from dataclasses import replace

import numpy as np

from app.ingest.assembly import row_encoding, run_table, window_codec
from app.ingest.assembly.op_table import OpTable
from app.ingest.assembly.run_table import (
    BatchSlice,
    KnownShapes,
    RunTable,
    concatenate_tables,
    table_of_slices,
)
from app.ingest.assembly.window_codec import pack_window
from app.trace.ops import OP_CODES
from app.trace.window import TABLE_DTYPES, OpColumns

FORWARD, BACKWARD = OP_CODES["forward-compute"], OP_CODES["backward-compute"]


def ops(*rows: tuple[int, int, int, int], **optional: list[int]) -> OpColumns:
    """(type, seq_id, start, duration) of each operation."""
    optype, seq_id, start_ns, duration_ns = (
        np.array(each, np.int64) for each in zip(*rows, strict=True)
    )
    return OpColumns(
        step=np.zeros(len(rows), np.int64),
        optype=optype.astype(np.int16),
        seq_id=seq_id,
        mc=np.zeros(len(rows), np.int64),
        mb_id=seq_id,
        start_ns=start_ns,
        duration_ns=duration_ns,
        **{name: np.array(values, np.int64) for name, values in optional.items()},
    )


def slice_of(known: KnownShapes, worker: int, rank: int, rows: OpColumns) -> BatchSlice:
    [found] = known.slices_of(worker, rank, rows).values()
    return found


USUAL = ops((BACKWARD, 0, 30, 3), (FORWARD, 1, 20, 2), (FORWARD, 0, 10, 1))


def rows_of(table: RunTable) -> list[tuple[int, ...]]:
    names = ("dp_rank", "stage", "rank", "optype", "seq_id", "start_ns", "duration_ns")
    return list(zip(*(getattr(table, name).tolist() for name in names), strict=True))


def test_rows_are_ordered_by_worker_then_type_then_number():
    known = KnownShapes()
    parts = [slice_of(known, worker, 10 * worker, USUAL) for worker in (3, 0)]
    table = table_of_slices(7, parts, 2, known)
    expected = [(FORWARD, 0, 10, 1), (FORWARD, 1, 20, 2), (BACKWARD, 0, 30, 3)]
    assert rows_of(table) == [
        (dp, stage, rank, *row) for dp, stage, rank in ((0, 0, 0), (1, 1, 30)) for row in expected
    ]
    assert table.step.tolist() == [7] * 6
    assert {name: getattr(table, name).dtype.type for name in ("step", "rank", "mc", "mb_id")} == {
        name: TABLE_DTYPES[name] for name in ("step", "rank", "mc", "mb_id")
    }


def test_a_worker_whose_step_came_in_two_batches_has_one_run():
    known = KnownShapes()
    halves = [ops((BACKWARD, 0, 30, 3), (FORWARD, 0, 10, 1)), ops((FORWARD, 1, 20, 2))]
    parts = [slice_of(known, 1, 10, half) for half in halves]
    whole = table_of_slices(0, [slice_of(known, 1, 10, USUAL)], 2, known)
    for order in (parts, parts[::-1]):
        table = table_of_slices(0, order, 2, known)
        assert table.runs.num_runs == 1
        assert table.runs.shapes == whole.runs.shapes  # the same object
        assert rows_of(table) == rows_of(whole)


def test_operations_recorded_twice_are_ordered_by_their_times():
    known = KnownShapes()
    twice = [(FORWARD, 0, 20, 1), (FORWARD, 0, 10, 2), (FORWARD, 0, 10, 1)]
    for rows in (twice, twice[::-1]):
        table = table_of_slices(0, [slice_of(known, 0, 0, ops(*rows))], 1, known)
        assert [row[-2:] for row in rows_of(table)] == [(10, 1), (10, 2), (20, 1)]
        assert table.runs.shapes[0].has_twins


def test_rows_of_several_steps_in_any_order_are_parted():
    rows = ops((FORWARD, 1, 4, 1), (FORWARD, 0, 3, 1), (FORWARD, 0, 1, 1), (FORWARD, 1, 2, 1))
    mixed = replace(rows, step=np.array([10**15, 10**15, 2, 10**15 - 1]))
    found = KnownShapes().slices_of(0, 0, mixed)
    assert {step: rows.held["start_ns"].tolist() for step, rows in found.items()} == {
        2: [1],
        10**15 - 1: [2],
        10**15: [3, 4],
    }
    assert list(found) == sorted(found)


def test_an_optional_column_goes_with_its_rows_and_is_unknown_elsewhere():
    known = KnownShapes()
    sent = ops((FORWARD, 1, 20, 2), (FORWARD, 0, 10, 1), tokens=[8, 7])
    parts = [slice_of(known, 0, 0, sent), slice_of(known, 1, 1, USUAL)]
    table = table_of_slices(0, parts, 2, known)
    assert table.tokens is not None
    assert table.tokens.tolist() == [7, 8, -1, -1, -1]
    assert table.bytes is None


def test_shapes_that_are_forgotten_come_again(monkeypatch):
    monkeypatch.setattr(run_table, "MAX_SHAPE_ROWS", 8)
    known = KnownShapes()
    others = [ops((FORWARD, 0, 1, 1), (FORWARD, number, 2, 2)) for number in range(1, 20)]
    parts = [slice_of(known, number, number, each) for number, each in enumerate(others)]
    table = table_of_slices(0, parts, 1, known)
    assert table.seq_id.tolist() == [each for number in range(1, 20) for each in (0, number)]


def test_tables_of_steps_are_joined_and_parted_again():
    known = KnownShapes()
    tables = [table_of_slices(step, [slice_of(known, 0, 0, USUAL)], 1, known) for step in (3, 4)]
    joined = concatenate_tables(tables)
    assert isinstance(joined, RunTable)
    assert joined.step.tolist() == [3] * 3 + [4] * 3
    assert len(joined.runs.shapes) == 1
    again = joined.of_step(4)
    assert rows_of(again) == rows_of(tables[1])
    assert np.shares_memory(again.start_ns, joined.start_ns)
    assert joined.select(slice(3, 6)).columns().keys() == again.columns().keys()
    assert joined.select(slice(3, 6)).seq_id.tolist() == again.seq_id.tolist()
    assert joined.trace([4]).start_s.tolist() == [0.0, 10e-9, 20e-9]
    assert joined.origins_ns([3, 4]) == (10, 10)


def test_a_table_is_packed_in_pieces_of_whole_runs_to_the_same_bytes(monkeypatch):
    known = KnownShapes()
    parts = [slice_of(known, worker, worker, USUAL) for worker in range(5)]
    table = table_of_slices(7, parts, 2, known)
    sizes = [piece.num_ops for piece in table.pieces(7)]
    assert sizes == [6, 6, 3]  # two runs of three, then what is left
    assert [piece.num_ops for piece in table.pieces(1)] == [3] * 5
    whole = OpTable(**table.columns())
    for module in (row_encoding, window_codec):
        monkeypatch.setattr(module, "MAX_PART_ROWS", 7)
    assert pack_window(table) == pack_window(whole)
