"""Order, repetition, cutting and crashes make no difference to the windows."""

import random
from dataclasses import fields

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from app.ingest.assembler import RunAssembler
from app.ingest.codec import encode, read
from app.ingest.trace_codec import OpTable, pack, unpack
from tests.ingest.factories import (
    DEADLINE_S,
    JOB,
    WINDOW_STEPS,
    assembler,
    cut_batches,
    step_batches,
)

NUM_STEPS = 5
LONG_AGO_S, NOW_S = 0.0, 1e6


def seen(changes):
    """The last revision of each window, so that two runs can be compared bit by bit."""
    windows = {change.window.id: change.window for change in changes}
    return {
        window.id: (
            window.revision,
            window.state,
            window.steps,
            window.skipped,
            *((f.name, getattr(window.trace, f.name).tobytes()) for f in fields(window.trace)),
        )
        for window in windows.values()
    }


def windows_of(batches, order):
    run = assembler()
    changes = []
    for at in order:
        run.add(batches[at], 0.0)
        changes += run.settle(0.0)
    return seen(changes + run.finish(1.0, "complete"))


def stripped(windows):
    """Without the revision, which counts how often one looked."""
    return {name: figures[1:] for name, figures in windows.items()}


WHOLE = [each for step in range(NUM_STEPS) for each in step_batches(step)]
EXPECTED = windows_of(WHOLE, range(len(WHOLE)))


@st.composite
def arrivals(draw):
    """Batches cut anywhere, and an order in which each comes at least once."""
    batches = cut_batches(NUM_STEPS, random.Random(draw(st.integers(0, 2**32))))
    again = draw(st.lists(st.integers(0, len(batches) - 1), max_size=10))
    return batches, draw(st.permutations([*range(len(batches)), *again]))


@settings(deadline=None, max_examples=60)
@given(arrivals())
def test_any_order_repetition_and_cutting_gives_the_same_windows(arrival):
    batches, order = arrival
    assert stripped(windows_of(batches, order)) == stripped(EXPECTED)


@settings(deadline=None, max_examples=60)
@given(arrivals(), st.data())
def test_a_crash_anywhere_makes_no_difference(arrival, data):
    batches, order = arrival
    crashes = set(data.draw(st.lists(st.integers(0, len(order)), max_size=6)))
    # Now and then all that is waited for is overdue, so that steps settle by deadline as well.
    overdue = set(data.draw(st.lists(st.integers(0, len(order)), max_size=3)))
    expected = run_through(batches, order, overdue, crashes=set())
    assert run_through(batches, order, overdue, crashes=crashes) == expected


def run_through(batches, order, overdue, *, crashes):
    run = assembler()
    kept: dict[tuple[int, int], bytes] = {}
    changes = []
    blob = None
    for count, at in enumerate(order):
        if count in crashes:
            run = RunAssembler.restore(
                JOB,
                1,
                blob,
                [read(body) for body in kept.values()],
                LONG_AGO_S,
                window_steps=WINDOW_STEPS,
                deadline_s=DEADLINE_S,
            )
            assert blob is None or run.dump() == blob
        batch = batches[at]
        if run.add(batch, LONG_AGO_S) == "new":
            kept[batch.rank, batch.batch_seq] = encode(batch)
        news = run.settle(NOW_S if count in overdue else LONG_AGO_S)
        for change in news:
            for key in change.released:
                del kept[key]
        changes += news
        blob = run.dump()
    return seen(changes + run.finish(0.0, "superseded")), run.late_ops


def column(name, size):
    dtype = np.int16 if name == "optype" else np.int64
    bound = 2**15 if name == "optype" else 2**62
    values = st.lists(st.integers(-bound, bound - 1), min_size=size, max_size=size)
    return values.map(lambda values: np.array(values, dtype=dtype))


def tables_of(size):
    return st.builds(OpTable, **{field.name: column(field.name, size) for field in fields(OpTable)})


tables = st.integers(0, 30).flatmap(tables_of)


@given(tables)
def test_stored_operations_come_back_as_they_were(table):
    again = unpack(pack(table))
    for field in fields(OpTable):
        before, after = getattr(table, field.name), getattr(again, field.name)
        assert after.dtype == before.dtype
        assert (after == before).all()
