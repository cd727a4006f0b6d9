import json

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.dialects import sqlite

from app.store.columns import JsonText, PackedBytes, PackedJson

DIALECT = sqlite.dialect()
NUMBERS = st.one_of(st.floats(), st.integers(-(2**63), 2**63 - 1), st.none(), st.text(max_size=3))
VALUES = st.recursive(
    NUMBERS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
)


def stored(column, value):
    return column.process_bind_param(value, DIALECT)


@given(VALUES)
def test_packed_json_round_trips_like_the_standard_library(value):
    try:
        text = json.dumps(value, allow_nan=False)
    except ValueError:
        with pytest.raises(ValueError, match="not finite"):
            stored(PackedJson(), value)
        return
    column = PackedJson()
    assert column.process_result_value(stored(column, value), DIALECT) == json.loads(text)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), np.float64("nan")])
@pytest.mark.parametrize("column", [PackedJson(), JsonText()])
def test_nested_non_finite_numbers_are_refused(column, bad):
    for value in (bad, [1.0, bad], [[1.0], [2.0, [bad]]], {"a": {"b": (None, bad)}}, [bad, "x"]):
        with pytest.raises(ValueError, match="not finite"):
            stored(column, value)


def test_finite_numbers_with_an_infinite_sum_are_stored():
    values = [1e308, 1e308, -1e308, 10**400 * 0, 5e-324]
    column = PackedJson()
    assert column.process_result_value(stored(column, values), DIALECT) == values


def test_numpy_floats_are_stored_and_other_objects_refused():
    assert stored(JsonText(), {"m_w": np.float64(0.1)}) == '{"m_w":0.1}'
    with pytest.raises(TypeError, match="JSON"):
        stored(JsonText(), {"ops": object()})


@given(st.binary(max_size=50))
def test_packed_bytes_round_trip(value):
    column = PackedBytes()
    assert column.process_result_value(stored(column, value), DIALECT) == value
    # Compressed values keep their own compression.
    inner = zstandard.compress(value)
    assert column.process_result_value(stored(column, inner), DIALECT) == inner
