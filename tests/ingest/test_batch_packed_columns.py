"""A packed batch decodes like the plain one; a malformed one is a 4xx."""

import gzip

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import InvalidRequest, TooLarge
from app.ingest.wire.codec import (
    BINARY_TYPE,
    decode,
    encode,
    num_ops_of_entry,
    open_entry,
    parse_entry,
    read_entry,
)
from app.trace.ops import OP_CODES
from app.trace.window import WIRE_DTYPES
from tests.example_counts import many
from tests.ingest.wire.packing import differences, packed, packed_batch, planes, width_of
from tests.ingest.wire.test_codec import SIZES, batch_fields, binary, check_batch_or_4xx
from tests.ingest.wire.test_codec_forms import batches, binary_of, content_of

ALL = list(WIRE_DTYPES)


def decoded(body, **more):
    return decode(body, BINARY_TYPE, SIZES, **more)


def with_column(name, column, **fields):
    """A valid batch of two rows with one column replaced."""
    batch = msgspec.msgpack.decode(binary_of(batch_fields(**fields)))
    batch["columns"][name] = column
    return msgspec.msgpack.encode(batch)


def test_packed_batch_matches_a_worked_example():
    """The example of docs/wire-format.md: starts are relative to the previous end."""
    columns = {
        "step": [1, 1, bytes([7, 0])],
        "optype": [0, 1, bytes([1, 0])],
        "start_ns": [2, 2, bytes([0xE8, 0x05, 0x03, 0x00])],
        "duration_ns": [0, 1, bytes([30, 40])],
        "seq_id": [0, 1, bytes([0, 0])],
        "mc": [0, 1, bytes([0, 0xFF])],
        "mb_id": [0, 1, bytes([5, 0xFF])],
    }
    fields = {key: value for key, value in batch_fields().items() if key != "columns"}
    names = ["optimizer", "forward-compute"]
    body = msgspec.msgpack.encode({**fields, "optypes": names, "columns": columns})
    batch = decoded(body).batch
    assert batch.columns.step.tolist() == [7, 7]
    codes = [OP_CODES["forward-compute"], OP_CODES["optimizer"]]
    assert batch.columns.optype.tolist() == codes
    assert batch.columns.start_ns.tolist() == [1000, 1035]
    assert batch.columns.duration_ns.tolist() == [30, 40]
    assert (batch.columns.mc.tolist(), batch.columns.mb_id.tolist()) == ([0, -1], [5, -1])


@many(60)
@given(batches(), st.data())
def test_packed_batch_decodes_like_the_plain_batch(columns, data):
    fields = batch_fields(columns=columns)
    plain = decoded(binary_of(fields)).batch
    kinds, widths = {}, {}
    durations = columns["duration_ns"]
    names = data.draw(st.sets(st.sampled_from([name for name in ALL if name in columns])))
    for name in names:
        kinds[name] = data.draw(st.integers(0, 2 if name == "start_ns" else 1), name)
        numbers = columns[name]
        if name == "optype":
            # Indices into the batch's own list of names, at most 30.
            widths[name] = data.draw(st.integers(1, 8))
            continue
        numbers = differences(numbers, kinds[name], durations)
        widths[name] = data.draw(st.integers(width_of(numbers), 8), f"width of {name}")
    body = packed_batch(fields, kinds, **widths)
    for each, encoding in ((body, ""), (gzip.compress(body), "gzip")):
        found = decoded(each, content_encoding=encoding)
        assert found.rejected == 0
        assert content_of(found.batch) == content_of(plain)
        assert encode(found.batch) == each  # queued unchanged
        assert content_of(read_entry(each)) == content_of(plain)
        assert num_ops_of_entry(parse_entry(open_entry(each))) == plain.columns.num_ops


@given(st.sampled_from([name for name in ALL if name != "optype"]), st.data())
def test_rows_are_refused_as_in_the_plain_batch(name, data):
    dtype = np.iinfo(WIRE_DTYPES[name])
    first = batch_fields()["columns"].get(name, [1])[0]
    edges = {-2, -1, 0, 2, 2**31 - 1, 2**53, 2**53 + 1, 86_400 * 10**9, dtype.max, dtype.min}
    value = data.draw(st.sampled_from(sorted(e for e in edges if dtype.min <= e <= dtype.max)))
    fields = batch_fields(columns={name: [first, value]})
    kind = data.draw(st.integers(0, 1))
    if width_of(differences([first, value], kind, [])) > 8:
        kind = 0
    plain = decoded(binary_of(fields))
    found = decoded(packed_batch(fields, {name: kind}))
    assert (found.rejected, found.errors) == (plain.rejected, plain.errors)
    assert content_of(found.batch) == content_of(plain.batch)
    assert content_of(read_entry(encode(found.batch))) == content_of(plain.batch)


@pytest.mark.parametrize(("name", "value"), [("seq_id", 2**31), ("mc", 2**15), ("mb_id", 2**40)])
def test_number_beyond_the_plain_column_type_is_out_of_range(name, value):
    found = decoded(with_column(name, packed([0, value])))
    assert [(e.index, e.code) for e in found.errors] == [(1, f"{name}_out_of_range")]
    assert found.batch.columns.num_ops == 1
    assert content_of(read_entry(encode(found.batch))) == content_of(found.batch)


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("number", [-1, -128, 2, 127, 128, 255, 256, 511, 512, 2**40, -(2**40)])
def test_op_type_index_without_a_name_is_an_unknown_type(number, kind):
    batch = msgspec.msgpack.decode(binary(batch_fields()))
    batch["optypes"] = ["optimizer", "gc"]
    batch["columns"]["optype"] = packed([1, number], kind)
    found = decoded(msgspec.msgpack.encode(batch))
    assert [(e.index, e.code) for e in found.errors] == [(1, "unknown_optype")]
    assert "'none' is not known" in found.errors[0].message
    assert found.batch.columns.optype.tolist() == [OP_CODES["gc"]]


def test_all_256_op_type_names_can_be_indexed():
    batch = msgspec.msgpack.decode(binary(batch_fields()))
    batch["optypes"] = ["no-such"] * 254 + ["gc", "optimizer"]
    batch["columns"]["optype"] = packed([254, 255])
    codes = decoded(msgspec.msgpack.encode(batch)).batch.columns.optype
    assert codes.tolist() == [OP_CODES["gc"], OP_CODES["optimizer"]]


REFUSED = {
    "an unknown kind": (
        [3, 1, b"ab"],
        r"Invalid enum value 3 - at `\$.columns.step\[0\]`",
    ),
    "no width": ([0, 0, b""], r"Expected `int` >= 1 - at `\$.columns.step\[1\]`"),
    "nine bytes": ([0, 9, bytes(18)], r"Expected `int` <= 8 - at `\$.columns.step\[1\]`"),
    "text": ([0, 1, "ab"], r"Expected `bytes`, got `str` - at `\$.columns.step\[2\]`"),
    "too short": ([0, 1], "Expected `array` of at least length 3, got 2"),
    "too long": ([0, 1, b"ab", 1], "Expected `array` of at most length 3, got 4"),
    "a boolean": ([True, 1, b"ab"], "got `bool`"),
    "no bytes": (7, "Expected `bytes | array`, got `int`"),
    "no whole values": ([0, 2, b"abc"], "column step has 3 bytes: not a multiple of its width, 2"),
    "kind 2 of a column without ends": (
        [2, 1, b"ab"],
        "column step is packed by kind 2: only start_ns may be",
    ),
    "another length": ([0, 1, b"abc"], "columns must be of equal length"),
    "nothing": ([0, 1, b""], "columns must be of equal length"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_malformed_packed_column_is_refused_by_name(case):
    column, words = REFUSED[case]
    with pytest.raises(InvalidRequest, match=words):
        decoded(with_column("step", column))


HALF = 2**62


@pytest.mark.parametrize(
    ("numbers", "row"),
    [
        ([HALF, HALF], 1),
        ([-HALF, -HALF - 1], 1),
        ([0, 2**63 - 1, 1], 2),
        ([0, -(2**63), -1], 2),
    ],
)
def test_sums_beyond_64_bits_are_refused(numbers, row):
    columns = {
        name: (column * 2)[: len(numbers)] for name, column in batch_fields()["columns"].items()
    }
    body = with_column("step", [1, 8, planes(numbers, 8)], columns=columns)
    with pytest.raises(InvalidRequest, match=f"column step leaves 64 bits in row {row}"):
        decoded(body)


def test_sums_at_the_64_bit_limits_are_checked_like_any_number():
    numbers = [2**63 - 1, -(2**63), 1 + 7]
    columns = {name: (column * 2)[:3] for name, column in batch_fields()["columns"].items()}
    found = decoded(with_column("step", [1, 8, planes(numbers, 8)], columns=columns))
    assert [(e.index, e.code) for e in found.errors] == [
        (0, "step_out_of_range"),
        (1, "step_out_of_range"),
    ]
    assert found.batch.columns.step.tolist() == [7]


def test_sums_of_gaps_and_durations_beyond_64_bits_are_refused():
    columns = {"duration_ns": [2**63 - 1, 5]}
    body = with_column("start_ns", [2, 8, planes([0, 1], 8)], columns=columns)
    with pytest.raises(InvalidRequest, match="column start_ns leaves 64 bits in row 1"):
        decoded(body)
    body = with_column("start_ns", [2, 8, planes([1, 0], 8)], columns=columns)
    with pytest.raises(InvalidRequest, match="column start_ns leaves 64 bits in row 1"):
        decoded(body)


def test_too_many_rows_are_refused_before_they_are_unpacked():
    columns = {name: [0, 1, bytes(1 << 20)] for name in batch_fields()["columns"]}
    fields = msgspec.msgpack.decode(binary(batch_fields())) | {"columns": columns}
    with pytest.raises(TooLarge, match="at most 100000 rows"):
        decoded(msgspec.msgpack.encode(fields))


def test_a_batch_without_rows_may_be_packed():
    empty = {name: [0, 1, b""] for name in batch_fields()["columns"]}
    empty["start_ns"] = [2, 8, b""]
    fields = msgspec.msgpack.decode(binary(batch_fields())) | {"columns": empty}
    assert decoded(msgspec.msgpack.encode(fields)).batch.columns.num_ops == 0


def test_good_rows_of_a_packed_batch_are_queued_unpacked():
    """An older consumer can read them."""
    fields = batch_fields(columns={"duration_ns": [5, -6]})
    result = decoded(packed_batch(fields, {"duration_ns": 0, "start_ns": 2, "step": 1}))
    assert result.rejected == 1
    queued = msgspec.msgpack.decode(encode(result.batch))
    assert all(isinstance(column, bytes) for column in queued["columns"].values())
    assert set(queued) == set(msgspec.msgpack.decode(binary(batch_fields())))


def test_batch_metadata_is_queued():
    placement = {"rack": "r1"}
    metadata = {"dropped": 3, "step_kinds": [[7, "eval"]], "placement": placement}
    metadata["at_step"] = 9
    fields = batch_fields(columns={"duration_ns": [5, -6]}, **metadata)
    for body in (binary_of(fields), packed_batch(fields, {"step": 0})):
        again = read_entry(encode(decoded(body).batch))
        assert (again.dropped, again.step_kinds) == (3, ((7, "eval"),))
        assert again.placement == ("r1", None)
        assert (again.at_step, again.newest_step) == (9, 9)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dropped": -1}, r"Expected `int` >= 0 - at `\$.dropped`"),
        ({"dropped": 2**53 + 1}, r"at `\$.dropped`"),
        ({"dropped": 1.5}, "Expected `int"),
        ({"step_kinds": [[7, "train"]]}, "Invalid enum value 'train'"),
        ({"step_kinds": [[7]]}, r"at `\$.step_kinds\[0\]`"),
        ({"step_kinds": [[8, "eval"]]}, "step_kinds has step 8, which steps_done has not"),
        ({"step_kinds": [[7, "eval"], [7, "first"]]}, "step_kinds must be ascending"),
        ({"placement": {"row": "a"}}, r"unknown field `row` - at `\$.placement`"),
        ({"placement": {"rack": "a\n"}}, r"at `\$.placement.rack`"),
        ({"placement": {"switch": "x" * 65}}, r"at `\$.placement.switch`"),
        ({"placement": "r1"}, r"at `\$.placement`"),
        ({"at_step": -1}, r"Expected `int` >= 0 - at `\$.at_step`"),
        ({"at_step": 2**53 + 1}, r"at `\$.at_step`"),
    ],
)
def test_invalid_batch_metadata_is_refused(change, words):
    for body, media in (
        (binary_of(batch_fields(**change)), BINARY_TYPE),
        (msgspec.json.encode(batch_fields(**change)), "application/json"),
    ):
        with pytest.raises(InvalidRequest, match=words):
            decode(body, media, SIZES)


noise_columns = st.builds(
    lambda kind, width, data: [kind, width, data],
    st.integers(0, 2),
    st.integers(1, 8),
    st.one_of(st.binary(max_size=40), st.sampled_from([b"\xff" * 16, b"\x80" * 16, bytes(16)])),
)


@many(150)
@given(st.dictionaries(st.sampled_from(ALL), noise_columns, min_size=1))
def test_noise_in_packed_columns_is_a_batch_or_a_4xx(columns):
    batch = msgspec.msgpack.decode(binary_of(batch_fields()))
    batch["columns"] |= columns
    check_batch_or_4xx(msgspec.msgpack.encode(batch), BINARY_TYPE)
