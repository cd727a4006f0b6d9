"""Any request body decodes to a batch or is a 4xx."""

import json

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import (
    BadRequest,
    InvalidRequest,
    PacelineError,
    TooLarge,
    UnsupportedMedia,
)
from app.ingest.wire.body import MAX_BODY_BYTES
from app.ingest.wire.codec import BINARY_TYPE, JSON_TYPE, decode, encode, parse_entry, read_entry
from app.trace import ops
from app.trace.job import Parallelism
from app.trace.ops import FIRST_USER_CODE, OP_CODES, OP_NAMES
from tests.example_counts import many
from tests.store.factories import OWN

SIZES = Parallelism(dp_size=2, pp_size=3, vpp_size=2)
DTYPES = {
    "step": "<i8",
    "optype": "u1",
    "start_ns": "<i8",
    "duration_ns": "<i8",
    "seq_id": "<i4",
    "mc": "<i2",
    "mb_id": "<i4",
}


def batch_fields(**changes):
    """A valid batch of two rows in the JSON format, with keys changed or (None) removed."""
    columns = {
        "step": [7, 7],
        "optype": ["optimizer", "gc"],
        "start_ns": [10**18, 10**18 + 1],
        "duration_ns": [5, 6],
        "seq_id": [0, 0],
        "mc": [-1, 1],
        "mb_id": [3, -1],
    }
    columns.update(changes.pop("columns", {}))
    batch = {
        "version": 1,
        "epoch": 1,
        "rank": 4,
        "dp_rank": 1,
        "stage": 2,
        "host": "node-1",
        "batch_seq": 0,
        "steps_done": [[7, 2]],
        "columns": {name: column for name, column in columns.items() if column is not None},
    }
    return {key: value for key, value in {**batch, **changes}.items() if value is not None}


def binary(fields):
    """The same batch in the binary format."""
    names = list(dict.fromkeys([*OP_NAMES, *fields["columns"]["optype"]]))
    columns = {
        name: np.array([names.index(op) for op in column] if name == "optype" else column).astype(
            DTYPES[name]
        )
        for name, column in fields["columns"].items()
    }
    buffers = {name: column.tobytes() for name, column in columns.items()}
    return msgspec.msgpack.encode({**fields, "optypes": names, "columns": buffers})


def as_json(fields):
    return json.dumps(fields).encode()


FORMATS = [
    pytest.param(as_json, JSON_TYPE, id="json"),
    pytest.param(binary, BINARY_TYPE, id="binary"),
]
both_formats = pytest.mark.parametrize(("body_of", "content_type"), FORMATS)


def rows(batch):
    columns = batch.columns
    return [
        getattr(columns, name).tolist()
        for name in ("step", "optype", "start_ns", "duration_ns", "seq_id", "mc", "mb_id")
    ]


@both_formats
def test_both_formats_decode_to_the_same_batch(body_of, content_type):
    decoded = decode(body_of(batch_fields()), content_type, SIZES)
    batch = decoded.batch
    assert (batch.epoch, batch.rank, batch.dp_rank, batch.stage) == (1, 4, 1, 2)
    assert (batch.host, batch.batch_seq, batch.steps_done) == ("node-1", 0, ((7, 2),))
    assert rows(batch) == [
        [7, 7],
        [OP_CODES["optimizer"], OP_CODES["gc"]],
        [10**18, 10**18 + 1],
        [5, 6],
        [0, 0],
        [-1, 1],
        [3, -1],
    ]
    assert (decoded.rejected, decoded.errors) == (0, [])


@both_formats
def test_bad_rows_are_refused_one_by_one(body_of, content_type):
    columns = {"optype": ["optimizer", "nonsense"], "duration_ns": [5, -6]}
    decoded = decode(body_of(batch_fields(columns=columns)), content_type, SIZES)
    assert decoded.rejected == 1
    [error] = decoded.errors
    assert (error.index, error.code) == (1, "unknown_optype")
    assert "is not known: register it in the job's op_types, or use one of forw" in error.message
    assert rows(decoded.batch)[0] == [7]
    assert rows(read_entry(encode(decoded.batch))) == rows(decoded.batch)


@both_formats
def test_registered_op_types_are_decoded_by_name(body_of, content_type):
    batch = batch_fields(columns={"optype": ["router", "moe-all-to-all"]})
    decoded = decode(body_of(batch), content_type, SIZES, OWN)
    codes = [FIRST_USER_CODE + 1, FIRST_USER_CODE]
    assert decoded.rejected == 0
    assert decoded.batch.columns.optype.tolist() == codes
    assert read_entry(encode(decoded.batch, OWN), OWN).columns.optype.tolist() == codes


@both_formats
def test_queue_entries_have_type_names(body_of, content_type):
    bad_row = {"optype": ["router", "optimizer"], "duration_ns": [5, -6]}
    decoded = decode(body_of(batch_fields(columns=bad_row)), content_type, SIZES, OWN)
    queued = msgspec.msgpack.decode(encode(decoded.batch, OWN))
    assert queued["optypes"] == ["router"]
    assert queued["columns"]["optype"] == bytes([0])
    other = ops.parse_op_types([{"name": "router", "kind": "compute"}])
    again = read_entry(encode(decoded.batch, OWN), other)
    assert [other.name(code) for code in again.columns.optype] == ["router"]


@both_formats
def test_unregistered_op_type_error_lists_the_registered_ones(body_of, content_type):
    batch = batch_fields(columns={"optype": ["a2a\n", "router"]})
    [error] = decode(body_of(batch), content_type, SIZES, OWN).errors
    assert (error.index, error.code) == (0, "unknown_optype")
    assert error.message.startswith(
        r"operation type 'a2a\n' is not known: register it in the job's op_types, or use "
        "one of moe-all-to-all, router, forward-compute, "
    )


def test_a_queued_batch_of_an_unknown_type_is_refused_by_name():
    body = binary(batch_fields(columns={"optype": ["optimizer", "router"]}))
    with pytest.raises(InvalidRequest, match="'router' is not known to this version"):
        read_entry(body)


def test_epoch_of_a_queued_batch_is_read_without_its_job():
    assert parse_entry(binary(batch_fields(epoch=7))).epoch == 7
    for body in (b"", b"\xc1", msgspec.msgpack.encode({"epoch": 0, "version": 1})):
        with pytest.raises((BadRequest, InvalidRequest)):
            parse_entry(body)
    with pytest.raises(UnsupportedMedia, match="wire version 2"):
        parse_entry(msgspec.msgpack.encode({"version": 2}))


@both_formats
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("step", -1),
        ("step", 2**53 + 1),
        ("start_ns", -1),
        ("duration_ns", -1),
        ("duration_ns", 86_400 * 10**9 + 1),
        ("seq_id", -1),
        ("mc", -2),
        ("mc", 2),
        ("mb_id", -2),
    ],
)
def test_a_row_out_of_bounds_is_named(body_of, content_type, column, value):
    columns = {column: [0, value]}
    decoded = decode(body_of(batch_fields(columns=columns)), content_type, SIZES)
    assert [(error.index, error.code) for error in decoded.errors] == [
        (1, f"{column}_out_of_range")
    ]


@both_formats
def test_a_batch_of_bad_rows_only_is_refused(body_of, content_type):
    with pytest.raises(InvalidRequest, match="no row can be taken; row 0: duration_ns"):
        decode(body_of(batch_fields(columns={"duration_ns": [-1, -1]})), content_type, SIZES)


def test_at_most_twenty_errors_are_reported():
    many = {name: column * 50 for name, column in batch_fields()["columns"].items()}
    many["duration_ns"] = [1] * 50 + [-1] * 50
    decoded = decode(as_json(batch_fields(columns=many)), JSON_TYPE, SIZES)
    assert decoded.rejected == 50
    assert [error.index for error in decoded.errors] == list(range(50, 70))


@both_formats
@pytest.mark.parametrize(
    "change",
    [
        {"epoch": 0},
        {"rank": -1},
        {"rank": 2**31},
        {"dp_rank": 2},
        {"stage": 3},
        {"batch_seq": -1},
        {"batch_seq": 2**53},
        {"steps_done": [[2, 1], [2, 1]]},
        {"steps_done": [[3, 1], [2, 1]]},
        {"steps_done": [[-1, 1]]},
        {"host": "x\x00"},
        {"host": "x\n"},
        {"host": "x\n\n"},
        {"host": "x" * 300},
        {"unknown": 1},
        {"rank": 1.5},
        {"rank": True},
        {"epoch": None},
        {"columns": {"step": [1]}},
    ],
)
def test_a_batch_that_breaks_a_rule_is_refused(body_of, content_type, change):
    with pytest.raises(InvalidRequest):
        decode(body_of(batch_fields(**change)), content_type, SIZES)


@both_formats
def test_too_many_bytes_or_rows_are_refused(body_of, content_type):
    with pytest.raises(TooLarge):
        decode(b" " * (MAX_BODY_BYTES + 1), content_type, SIZES)
    columns = {name: column * 50_001 for name, column in batch_fields()["columns"].items()}
    with pytest.raises(TooLarge):
        decode(body_of(batch_fields(columns=columns)), content_type, SIZES)


@both_formats
def test_a_batch_without_rows_is_fine(body_of, content_type):
    empty: dict[str, list[int]] = {name: [] for name in batch_fields()["columns"]}
    batch = decode(body_of(batch_fields(columns=empty)), content_type, SIZES).batch
    assert batch.columns.num_ops == 0


def test_json_without_seq_ids_numbers_operations_by_start():
    columns = {
        "step": [1, 1, 1, 2],
        "optype": ["gc", "gc", "optimizer", "gc"],
        "start_ns": [30, 20, 10, 5],
        "duration_ns": [1, 1, 1, 1],
        "seq_id": None,
        "mc": None,
        "mb_id": None,
    }
    batch = decode(
        as_json(batch_fields(columns=columns)), f"{JSON_TYPE}; charset=utf-8", SIZES
    ).batch
    assert batch.columns.seq_id.tolist() == [1, 0, 0, 0]
    assert batch.columns.mc.tolist() == [-1] * 4
    assert batch.columns.mb_id.tolist() == [-1] * 4


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999", "1.5", "1" * 400, "true", "null"])
def test_json_accepts_only_integers(number):
    body = as_json(batch_fields()).replace(b"[5, 6]", f"[5, {number}]".encode())
    with pytest.raises((BadRequest, InvalidRequest)):
        decode(body, JSON_TYPE, SIZES)


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"", JSON_TYPE),
        (b"", BINARY_TYPE),
        (b"[" * 100_000, JSON_TYPE),
        (b'{"x":' * 100_000, JSON_TYPE),
        (b"\x81\xa1x" + b"\x91" * 100_000, BINARY_TYPE),
        (b"\x91" * 100_000, BINARY_TYPE),
        (b"\xdf\xff\xff\xff\xff", BINARY_TYPE),
        (b"\xdd\xff\xff\xff\xff", BINARY_TYPE),
        (b"\x81\xa4host\xa2\xff\xfe", BINARY_TYPE),
        (b'{"host": "\\ud800"}', JSON_TYPE),
        (b'{"host": "\xff"}', JSON_TYPE),
    ],
)
def test_hostile_bytes_are_refused(body, content_type):
    with pytest.raises((BadRequest, InvalidRequest)):
        decode(body, content_type, SIZES)


def check_batch_or_4xx(body, content_type):
    """Decodes the body; fails on any error other than a PacelineError with a 4xx status."""
    status, words = 202, "taken"
    try:
        read_entry(encode(decode(body, content_type, SIZES).batch))
    except PacelineError as error:
        status, words = error.status, str(error)
    assert 200 <= status < 500
    assert words


@many(200)
@given(st.binary(max_size=300), st.sampled_from([JSON_TYPE, BINARY_TYPE]))
def test_arbitrary_bytes_are_a_batch_or_a_4xx(body, content_type):
    check_batch_or_4xx(body, content_type)


@many(250)
@given(st.sampled_from([(as_json, JSON_TYPE), (binary, BINARY_TYPE)]), st.data())
def test_damaged_batches_are_a_batch_or_a_4xx(format_, data):
    body_of, content_type = format_
    body = bytearray(body_of(batch_fields()))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(body)))
    check_batch_or_4xx(bytes(body), content_type)
    check_batch_or_4xx(bytes(body[:cut]), content_type)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=16),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


@many(250)
@given(st.data())
def test_values_of_other_types_are_a_batch_or_a_4xx(data):
    fields = msgspec.msgpack.decode(binary(batch_fields()))
    target = data.draw(st.sampled_from([fields, fields["columns"]]))
    target[data.draw(st.sampled_from(sorted(target)))] = data.draw(values)
    check_batch_or_4xx(msgspec.msgpack.encode(fields), BINARY_TYPE)
