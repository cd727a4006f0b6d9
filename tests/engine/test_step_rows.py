"""Rows of steps: canonical order against a sort of whole keys, spans by hand."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from app.engine.step_rows import canonical_order, longest_span_ns

# Few types and numbers, so that many are equal; and all that 16 and 32 bits hold.
TYPES = st.integers(0, 3) | st.integers(-(2**15), 2**15 - 1)
NUMBERS = st.integers(0, 3) | st.integers(-(2**31), 2**31 - 1)
STEPS = st.lists(st.lists(st.tuples(TYPES, NUMBERS), max_size=20), max_size=4)


@given(STEPS)
def test_rows_are_sorted_within_their_step_and_equal_ones_keep_their_order(steps):
    rows = [(number, *row) for number, step in enumerate(steps) for row in step]
    columns = np.array(rows, np.int64).reshape(-1, 3)
    bounds = np.cumsum([0, *map(len, steps)])
    types, numbers = (np.ascontiguousarray(column, np.int32) for column in columns[:, 1:].T)
    found = canonical_order(bounds, types, numbers)
    expected = sorted(range(len(rows)), key=rows.__getitem__)
    assert found.tolist() == expected


def test_span_is_from_the_first_start_to_the_last_end_of_one_worker():
    start_ns, duration_ns = np.array([5, 0, 2, 100, 101]), np.array([1, 9, 1, 3, 1])
    assert longest_span_ns(np.array([0, 3, 5]), start_ns, duration_ns) == 9.0
