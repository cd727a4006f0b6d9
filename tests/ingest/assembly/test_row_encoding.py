"""Stored operations: rounded to 1 us, exact with remainders, few bytes, refused if damaged."""

import zlib
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.ingest.assembly import int_packing, row_encoding, window_codec
from app.ingest.assembly.int_packing import DamagedRows, pack_ints, pack_residues, unpack_ints
from app.ingest.assembly.op_table import OpTable
from app.ingest.assembly.row_encoding import TimedRows, decode_rows, encode_rows
from app.ingest.assembly.window_codec import pack_remainders, pack_window, unpack_window
from app.synth.cluster import Cluster
from app.synth.costs import OperationCosts
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from app.trace.window import TABLE_DTYPES

REAL_CLOCKS = Cluster(clock_offset_s=5e-4, drift_ppm=2.0, jitter_s=2e-6)


def recorded(dp_size, pp_size, num_microbatches, num_steps=8, **costs):
    job = SimulatedJob(
        Parallelism(dp_size, pp_size), num_microbatches, cluster=REAL_CLOCKS,
        costs=OperationCosts(**costs),
    )  # fmt: skip
    columns = job.record(range(7, 7 + num_steps)).columns()
    return OpTable(**{
        name: columns[name].astype(dtype) for name, dtype in TABLE_DTYPES.items() if name in columns
    })  # fmt: skip


SMALL = recorded(2, 2, 4)


def without_rows(table, share, seed=1):
    rng = np.random.default_rng(seed)
    return table.select(np.flatnonzero(rng.random(table.num_ops) >= share))


def assert_rounded(before, after):
    """Starts and ends are the next microsecond, everything else as it was."""
    for name, values in before.columns().items():
        if not name.endswith("_ns"):
            assert (getattr(after, name) == values).all(), name
    assert (np.abs(after.start_ns - before.start_ns) <= 500).all()
    ends = [each.start_ns + each.duration_ns for each in (before, after)]
    assert (np.abs(ends[1] - ends[0]) <= 500).all()
    assert not (after.start_ns % 1000).any()
    assert not (after.duration_ns % 1000).any()


def assert_round_trip(table):
    rounded = unpack_window(pack_window(table)).ops
    assert_rounded(table, rounded)
    exact = unpack_window(pack_window(table), pack_remainders(table)).ops
    assert exact.columns().keys() == table.columns().keys()
    for name, values in table.columns().items():
        assert (getattr(exact, name) == values).all(), name


def test_times_are_rounded_to_the_next_microsecond_and_keep_their_order():
    starts = [10**18, 10**18 + 499, 10**18 + 500, 10**18 + 1499, 10**18 + 1500, -1, -501, 0]
    table = SMALL.select(slice(0, 8))
    table = replace(table, start_ns=np.array(starts), duration_ns=np.full(8, 1001))
    after = unpack_window(pack_window(table)).ops
    assert (after.start_ns - np.array(starts)).tolist() == [0, -499, 500, -499, 500, 1, -499, 0]
    assert after.duration_ns.tolist() == [1000, 2000, 1000, 2000, 1000, 1000, 2000, 1000]


@pytest.mark.parametrize(
    "table",
    [
        SMALL,
        without_rows(SMALL, 0.02),
        without_rows(SMALL, 0.5),
        SMALL.select(SMALL.rank != 1),
        SMALL.select(slice(0, 1)),
        SMALL.select(slice(0, 0)),
        replace(SMALL, optype=SMALL.optype + np.int16(64)),
        replace(SMALL, start_ns=SMALL.start_ns - 2 * 10**18),
        replace(SMALL, step=SMALL.step + 10**15),
        replace(SMALL, duration_ns=SMALL.duration_ns * 10**6),
        replace(SMALL, tokens=SMALL.start_ns, power_w=np.full(SMALL.num_ops, -1)),
        SMALL.select(np.random.default_rng(3).permutation(SMALL.num_ops)),
    ],
    ids=[
        "whole", "a few lost", "half lost", "rank missing", "one row", "no row", "own types",
        "negative clocks", "huge steps", "days long", "optional columns", "any order",
    ],
)  # fmt: skip
def test_odd_windows_round_trip(table):
    assert_round_trip(table)


def test_times_at_the_ends_of_the_clock_keep_their_nanoseconds():
    extreme = np.where(np.arange(SMALL.num_ops) % 2, 2**63 - 1, -(2**63))
    table = replace(SMALL, start_ns=extreme)
    again = unpack_window(pack_window(table)).ops
    assert (again.start_ns == extreme).all()
    assert (again.duration_ns == SMALL.duration_ns).all()


def test_a_large_window_is_encoded_in_parts(monkeypatch):
    monkeypatch.setattr(row_encoding, "MAX_PART_ROWS", 100)
    monkeypatch.setattr(row_encoding, "_CHUNK_ROWS", 64)
    monkeypatch.setattr(int_packing, "PIECE_ROWS", 50)
    monkeypatch.setattr(window_codec, "PIECE_ROWS", 50)
    assert_round_trip(replace(SMALL, tokens=SMALL.start_ns))


def test_shapes_of_one_hash_do_not_mix(monkeypatch):
    monkeypatch.setattr(row_encoding, "_HASH_FACTOR", np.int64(0))
    assert_round_trip(without_rows(SMALL, 0.02))


@pytest.mark.parametrize(
    ("table", "most"),
    [
        (recorded(8, 4, 8), 2.8),
        (recorded(8, 4, 8, noise=0.1), 3.2),
        (without_rows(recorded(8, 4, 8), 0.001), 3.6),
        (recorded(32, 1, 4), 3.0),
    ],
    ids=["32 workers", "much noise", "operations lost", "data parallel"],
)
def test_operations_of_32_workers_take_few_bytes(table, most):
    assert len(pack_window(table)) / table.num_ops < most


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40))
def test_packed_integers_round_trip(values):
    array = np.array(values, np.int64)
    assert unpack_ints(pack_ints(array), array.size).tolist() == values
    assert unpack_ints(pack_residues(array), array.size).tolist() == values


OF_SHAPE = {"kind": np.int64, "other": np.int64}


@given(st.data())
def test_rows_of_any_kind_round_trip(data):
    size = data.draw(st.integers(0, 60))
    few, any_ = st.integers(0, 2), st.integers(-(2**63), 2**63 - 1)
    key, kind, other, start, end = (
        np.array(data.draw(st.lists(each, min_size=size, max_size=size)), np.int64)
        for each in (few, few, few, any_, any_)
    )
    rows = TimedRows({"key": np.sort(key)}, {"kind": kind, "other": other}, start, end)
    again = decode_rows(encode_rows(rows), {"key": np.int64}, OF_SHAPE, size)
    assert again.keys["key"].tolist() == np.sort(key).tolist()
    assert again.shape["other"].tolist() == other.tolist()
    assert (again.start.tolist(), again.end.tolist()) == (start.tolist(), end.tolist())


def sealed(message):
    body = msgspec.msgpack.encode(message)
    return b"\xc1PW3" + zlib.crc32(body).to_bytes(4, "little") + body


def opened(blob):
    return msgspec.msgpack.decode(blob[8:])


@given(st.data())
def test_one_changed_byte_is_damage(data):
    blob = bytearray(pack_window(SMALL))
    at = data.draw(st.integers(0, len(blob) - 1))
    blob[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(DamagedRows):
        unpack_window(bytes(blob))


@pytest.mark.parametrize("blob", [b"", b"\xc1PW3", b"x", b"\x90", b"\xc1PR3" + bytes(9)])
def test_other_bytes_are_damage(blob):
    with pytest.raises(DamagedRows):
        unpack_window(blob)


HOSTILE = {
    "more rows than are read": {"rows": 2**26 + 1},
    "more rows than are there": {"rows": SMALL.num_ops + 1},
    "fewer rows than are there": {"rows": SMALL.num_ops - 1},
    "no rows": {"rows": -1},
    "unit": {"unit_ns": 10**9},
    "parts": {"parts": 3},
    "huge optional column": {"optional": {"tokens": [pack_ints(np.zeros(10**6, np.int64) + 7)]}},
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_hostile_bytes_with_a_right_checksum_are_damage(change):
    message = opened(pack_window(SMALL))
    message["ops"] |= change
    with pytest.raises(DamagedRows):
        unpack_window(sealed(message))


@given(st.data())
def test_hostile_predictions_never_reach_beyond_the_rows(data):
    message = opened(pack_window(SMALL))
    [part] = message["ops"]["parts"]
    name = data.draw(st.sampled_from(sorted(part["predictors"])))
    num_places = _num_places(part)
    values = data.draw(
        st.lists(st.integers(-(2**63), 2**63 - 1), min_size=num_places, max_size=num_places)
    )
    part["predictors"][name] = pack_ints(np.array(values, np.int64))
    try:
        table = unpack_window(sealed(message)).ops
    except DamagedRows:
        return
    assert table.num_ops == SMALL.num_ops


def _num_places(part):
    sizes = unpack_ints(part["sizes"], part["segments"])
    template_of = unpack_ints(part["template_of"], part["segments"])
    _, examples = np.unique(template_of, return_index=True)
    return int(sizes[examples].sum())
