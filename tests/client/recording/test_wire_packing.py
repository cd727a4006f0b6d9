"""Packed columns round-trip by the definition of the format and by the server's decoder."""

import struct
from array import array
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline_client.recording.wire import (
    Op,
    Worker,
    batch_of,
    content_encoding,
    encode,
    fits,
    pack,
    pack_column,
)

from app.ingest.wire.codec import BINARY_TYPE, decode
from app.trace.ops import OP_NAMES
from tests.client.conftest import SIZES

WORKER = Worker(3, 1, 1, "node-1")


def unpacked(column, duration_ns=()):
    """Decode a column by the definition of the format, value by value."""
    kind, width, planes = column
    rows = len(planes) // width
    raw = [
        int.from_bytes(bytes(planes[plane * rows + row] for plane in range(width)), "little")
        for row in range(rows)
    ]
    signed = [value - (1 << 8 * width) * (value >> (8 * width - 1)) for value in raw]
    values, before = [], 0
    for row, value in enumerate(signed):
        values.append(value if kind == 0 else before + value)
        before = values[-1] + (duration_ns[row] if kind == 2 else 0)
    return values


@given(st.lists(st.integers(-(2**62), 2**62 - 1), min_size=1, max_size=30))
def test_packed_column_round_trips(values):
    assert unpacked(pack_column("tokens", array("q", values), values)) == values


@given(st.lists(st.tuples(st.integers(0, 2**61), st.integers(0, 2**40)), min_size=1, max_size=30))
def test_packed_start_times_round_trip(times):
    start_ns, duration_ns = (array("q", column) for column in zip(*times, strict=True))
    column = pack_column("start_ns", start_ns, duration_ns)
    assert column[0] == 2
    assert unpacked(column, duration_ns) == list(start_ns)


@pytest.mark.parametrize(
    ("values", "width"),
    [([0], 1), ([127], 1), ([-128], 1), ([128], 2), ([-129], 2), ([2**62], 8), ([-(2**63)], 8)],
)
def test_column_width_is_the_fewest_bytes_for_its_value(values, width):
    assert pack_column("tokens", values, values)[1] == width


def test_three_packed_rows_match_a_hand_computation():
    column = pack_column("start_ns", array("q", [1000, 1010, 2000]), array("q", [10, 500, 0]))
    # 1000 after 0, 0 after 1010, 490 after 1510: 3e8, 0, 1ea in two planes
    assert column == [2, 2, bytes([0xE8, 0x00, 0xEA, 0x03, 0x00, 0x01])]


ROWS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from(OP_NAMES),
        st.integers(0, 2**62),
        st.integers(0, 86_400 * 10**9),
        st.integers(0, 2**31 - 1),
        st.sampled_from([-1, 0, 1]),
        st.integers(-1, 2**31 - 1),
        st.sampled_from([None, {"tokens": 5}, {"bytes": 2**53, "temperature_c": 0}]),
    ),
    min_size=1,
    max_size=20,
)


@given(ROWS)
def test_server_decodes_packed_and_plain_batches_the_same(ops):
    batch = batch_of(ops, [(0, 1)], [(0, "eval")], dropped=4)
    read = []
    for extensions in ([], ["packed"], ["packed", "dictionary"]):
        body = encode(WORKER, 1, 0, batch, ["step_kinds", *extensions])
        found = decode(body, BINARY_TYPE, SIZES, content_encoding=content_encoding(body))
        assert found.rejected == 0
        columns = found.batch.columns
        names = ("step", "optype", "start_ns", "duration_ns", "seq_id", "mc", "mb_id", "bytes")
        there = [values for name in names if (values := getattr(columns, name)) is not None]
        read.append(sorted(zip(*(values.tolist() for values in there), strict=True)))
    assert read[0] == read[1] == read[2]


def test_repeated_steps_of_a_batch_are_merged():
    batch = batch_of([], [(5, 1), (3, 1), (5, 2)], [(5, "eval"), (3, "first"), (5, "eval")])
    assert batch.steps_done == [(3, 1), (5, 3)]
    assert batch.step_kinds == [(3, "first"), (5, "eval")]


def test_values_beyond_the_packed_range_do_not_fit():
    assert fits((2**53, "gc", 3 * 2**61 - 1, 2**60 - 1, 0, 0, 0, None))
    for at, value in ((0, 2**53 + 1), (2, 3 * 2**61), (2, -1), (3, 2**60), (6, 2**31)):
        op: list[Any] = [1, "gc", 1, 1, 1, 1, 1, None]
        op[at] = value
        assert not fits(cast(Op, tuple(op)))


@pytest.mark.parametrize(
    ("value", "head"),
    [
        ("x" * 31, b"\xbf"),
        ("x" * 32, b"\xd9\x20"),
        ("x" * 256, b"\xda\x01\x00"),
        ("x" * 65536, b"\xdb\x00\x01\x00\x00"),
        (b"", b"\xc4\x00"),
        (b"x" * 256, b"\xc5\x01\x00"),
        (b"x" * 65536, b"\xc6\x00\x01\x00\x00"),
        ([], b"\x90"),
        ([0] * 16, b"\xdc\x00\x10"),
        ([0] * 65536, b"\xdd\x00\x01\x00\x00"),
        ({}, b"\x80"),
        ({str(n): n for n in range(16)}, b"\xde\x00\x10"),
        (127, b"\x7f"),
        (128, b"\xd1\x00\x80"),
        (-1, b"\xd1\xff\xff"),
        (2**31, b"\xd3" + struct.pack(">q", 2**31)),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_lengths_and_integers_are_encoded_as_in_msgpack(value, head):
    assert pack(value).startswith(head)
