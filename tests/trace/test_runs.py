"""A trace with what repeats held once says in every way what the same columns say."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.grid import lay_out
from app.engine.report import analyse
from app.errors import InvalidTrace
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from app.trace.ops import OP_CODES
from app.trace.runs import RUN_COLUMNS, SHAPE_COLUMNS, OpShape, RunTrace, WorkerRuns, joined_runs
from app.trace.window import OPTIONAL, TABLE_DTYPES, Trace, Window
from tests.example_counts import many
from tests.job_strategies import windows
from tests.results import report_as_json

COLUMNS = (*RUN_COLUMNS, *SHAPE_COLUMNS, "start_s", "duration_s")


def in_order(trace: Trace) -> Trace:
    keys = (trace.seq_id, trace.optype, trace.rank, trace.stage, trace.dp_rank, trace.step)
    return trace.select(np.lexsort(keys))


def held_once(trace: Trace) -> RunTrace:
    """The rows in canonical order, as the assembler gives them."""
    trace = in_order(trace)
    places = np.stack([getattr(trace, name).astype(np.int64) for name in RUN_COLUMNS])
    firsts = np.flatnonzero((np.diff(places, prepend=-1) != 0).any(axis=0)).tolist()
    shapes: dict[bytes, OpShape] = {}
    of_runs = []
    for first, end in zip(firsts, [*firsts[1:], trace.num_ops], strict=True):
        columns = {name: getattr(trace, name)[first:end] for name in SHAPE_COLUMNS}
        key = b"".join(each.tobytes() for each in columns.values())
        of_runs.append(shapes.setdefault(key, OpShape(**columns, has_twins=False)))
    runs = WorkerRuns.of({name: getattr(trace, name)[firsts] for name in RUN_COLUMNS}, of_runs)
    optional = {name: values for name in OPTIONAL if (values := getattr(trace, name)) is not None}
    return RunTrace(runs, trace.start_s, trace.duration_s, optional)


def same(found: Trace, expected: Trace) -> bool:
    assert found.columns().keys() == expected.columns().keys()
    return all(
        np.array_equal(values, expected.columns()[name])
        and values.dtype == expected.columns()[name].dtype
        for name, values in found.columns().items()
    )


@many(30)
@given(windows(), st.randoms(use_true_random=False))
def test_every_use_gives_the_same_rows(window, chance):
    columns, runs = in_order(window.trace), held_once(window.trace)
    assert same(runs, columns)
    assert runs.num_ops == columns.num_ops
    some = np.array(chance.choices(range(columns.num_ops), k=5))
    mask = np.array([chance.random() < 0.5 for _ in range(columns.num_ops)])
    for rows in (some, mask, slice(2, 7), slice(0, 0)):
        assert same(runs.select(rows), columns.select(rows))
    for name in COLUMNS:
        assert np.array_equal(runs.at(name, some), columns.at(name, some))
    for code in OP_CODES.values():
        assert np.array_equal(runs.rows_of_type(code), columns.rows_of_type(code))
    chosen = window.steps[::2]
    assert same(runs.of_steps(chosen), columns.of_steps(chosen))


@many(30)
@given(windows())
def test_the_analysis_is_the_same_to_the_last_bit(window):
    columns = replace(window, trace=in_order(window.trace))
    runs = replace(window, trace=held_once(window.trace))
    assert report_as_json(analyse(runs)) == report_as_json(analyse(columns))


def simulated(steps: int = 3) -> Window:
    job = SimulatedJob(Parallelism(4, 2), 4)
    numbers = range(steps)
    return Window(job.job, 1, 0, tuple(numbers), job.make(numbers), state="complete")


def test_joined_runs_share_their_shapes():
    runs = held_once(simulated().trace).runs
    again = joined_runs([runs.select(slice(0, 5)), runs.select(slice(5, None))])
    assert len(again.shapes) == len(runs.shapes)
    for name in (*RUN_COLUMNS, *SHAPE_COLUMNS):
        assert np.array_equal(again.column(name), runs.column(name))


def test_a_replica_with_another_shape_is_found():
    trace = simulated().trace
    other = (trace.dp_rank == 2) & (trace.step == 1) & (trace.seq_id == 3)
    window = replace(simulated(), trace=held_once(trace.select(~other)))
    with pytest.raises(InvalidTrace, match="is missing in some step or replica"):
        lay_out(window)


def test_no_rows_have_empty_columns():
    nothing = WorkerRuns.of({name: np.array([]) for name in RUN_COLUMNS}, [])
    for name in (*RUN_COLUMNS, *SHAPE_COLUMNS):
        assert nothing.column(name).dtype == TABLE_DTYPES[name]
        assert nothing.column(name).size == 0
    assert nothing.rows_of_type(OP_CODES["wait"]).size == 0
