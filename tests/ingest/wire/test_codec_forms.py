"""Three forms and three encodings decode to the same batch; a malformed body is a 4xx."""

import gzip
import json
import zlib
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
import zstandard
from hypothesis import assume, given
from hypothesis import strategies as st
from paceline_client.recording.wire import DICTIONARY, WITH_DICTIONARY

from app.errors import BadRequest, InvalidRequest, PacelineError, TooLarge
from app.ingest.batch import LAST_START_NS, MAX_FIRST_STEP, MAX_STEP_JUMP
from app.ingest.wire.body import (
    ANY_RATIO_BYTES,
    MAX_DECODED_BYTES,
    UnknownFormat,
)
from app.ingest.wire.codec import (
    BINARY_TYPE,
    JSON_TYPE,
    decode,
    encode,
    open_entry,
    parse_entry,
    read_entry,
)
from app.ingest.wire.json_columns import MAX_JSON_ROWS
from app.trace.ops import OP_NAMES
from app.trace.window import OPTIONAL, WIRE_DTYPES
from tests.example_counts import many
from tests.ingest.wire.test_codec import SIZES, as_json, batch_fields, binary, check_batch_or_4xx

LARGE = 2**53
SIZELESS = zstandard.ZstdCompressor(write_content_size=False)


def with_dictionary(body):
    zlib_stream = zlib.compressobj(9, zdict=DICTIONARY)
    return zlib_stream.compress(body) + zlib_stream.flush() + len(body).to_bytes(4, "little")


ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    "gzip": gzip.compress,
    "zstd": zstandard.compress,
    "zstd without its size": SIZELESS.compress,
    WITH_DICTIONARY: with_dictionary,
}


def encoding(name):
    return name.partition(" ")[0]


row_values = st.fixed_dictionaries(
    {
        "step": st.integers(0, MAX_FIRST_STEP),
        "optype": st.sampled_from(OP_NAMES),
        "start_ns": st.integers(0, LAST_START_NS),
        "duration_ns": st.integers(0, 86_400 * 10**9),
        "seq_id": st.integers(0, 2**31 - 1),
        "mc": st.integers(-1, SIZES.vpp_size - 1),
        "mb_id": st.integers(-1, 2**31 - 1),
    }
)
extras = st.fixed_dictionaries(dict.fromkeys(OPTIONAL, st.integers(-1, LARGE)))


def batches():
    """Columns of valid rows, with some of the optional columns."""

    def columns(rows, more, names):
        both = [{**row, **extra} for row, extra in zip(rows, more, strict=False)]
        return {
            name: [row[name] for row in both]
            for name in WIRE_DTYPES
            if name in names or name in rows[0]
        }

    rows = st.lists(row_values, min_size=1, max_size=6)
    names = st.sets(st.sampled_from(OPTIONAL))
    return st.builds(columns, rows, st.lists(extras, min_size=6, max_size=6), names)


def rows_of(fields):
    columns = fields["columns"]
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return as_json({**{key: fields[key] for key in fields if key != "columns"}, "rows": rows})


def binary_of(fields):
    fields = {**fields, "columns": dict(fields["columns"])}
    more = {
        name: np.array(fields["columns"].pop(name), "<i8").tobytes()
        for name in OPTIONAL
        if name in fields["columns"]
    }
    batch = msgspec.msgpack.decode(binary(fields))
    return msgspec.msgpack.encode({**batch, "columns": batch["columns"] | more})


FORMS = {
    "binary": (binary_of, BINARY_TYPE),
    "columns": (as_json, JSON_TYPE),
    "rows": (rows_of, JSON_TYPE),
}


def content_of(batch):
    """Everything that a batch contains."""
    columns = [getattr(batch.columns, name) for name in WIRE_DTYPES]
    return (
        [None if column is None else column.tolist() for column in columns],
        (batch.epoch, batch.rank, batch.dp_rank, batch.stage, batch.host, batch.batch_seq),
        batch.steps_done,
    )


@many(100)
@given(batches())
def test_all_forms_and_encodings_decode_to_the_same_batch(columns):
    fields = batch_fields(columns=columns)
    found = []
    for body_of, media in FORMS.values():
        for name, compress in ENCODERS.items():
            body = compress(body_of(fields))
            decoded = decode(body, media, SIZES, content_encoding=encoding(name), last_step=LARGE)
            assert decoded.rejected == 0
            found += [content_of(decoded.batch), content_of(read_entry(encode(decoded.batch)))]
    assert all(each == found[0] for each in found)


def test_fields_missing_from_a_row_get_defaults():
    first, second = {"step": 7, "optype": "gc", "start_ns": 3, "duration_ns": 1}, {"tokens": 9}
    fields = {key: value for key, value in batch_fields().items() if key != "columns"}
    rows = [first, {**first, "start_ns": 2, **second}]
    columns = decode(as_json({**fields, "rows": rows}), JSON_TYPE, SIZES).batch.columns
    assert columns.tokens is not None
    assert columns.tokens.tolist() == [-1, 9]
    assert columns.seq_len_sq is None
    assert columns.seq_id.tolist() == [1, 0]
    assert (columns.mc.tolist(), columns.mb_id.tolist()) == ([-1, -1], [-1, -1])


ROW = {"step": 1, "optype": "gc", "start_ns": 0, "duration_ns": 1}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{**ROW, "speed": 1}], r"unknown field `speed` - at `\$.rows\[0\]`"),
        ([ROW, {**ROW, "step": "1"}], r"Expected `int`, got `str` - at `\$.rows\[1\].step`"),
        ([ROW, 1], r"Expected `object`, got `int` - at `\$.rows\[1\]`"),
        ([{"step": 1}], r"missing required field `optype` - at `\$.rows\[0\]`"),
        ([ROW, {**ROW, "seq_id": 0}], "seq_id is in some rows and not in row 0"),
        ({}, r"Expected `array`, got `object` - at `\$.rows`"),
    ],
)
def test_invalid_row_is_refused_with_its_position(rows, words):
    fields = {key: value for key, value in batch_fields().items() if key != "columns"}
    with pytest.raises(InvalidRequest, match=words):
        decode(as_json({**fields, "rows": rows}), JSON_TYPE, SIZES)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"tokens": [1, "x"]}, r"Expected `int`, got `str` - at `\$.columns.tokens\[1\]`"),
        ({"tokens": [1]}, "columns must be of equal length"),
        ({"speed": [1, 2]}, r"unknown field `speed` - at `\$.columns`"),
        ({"step": None}, r"missing required field `step` - at `\$.columns`"),
    ],
)
def test_invalid_column_is_refused_by_name(columns, words):
    with pytest.raises(InvalidRequest, match=words):
        decode(as_json(batch_fields(columns=columns)), JSON_TYPE, SIZES)


def test_batch_must_have_either_columns_or_rows():
    fields = batch_fields()
    without = {key: value for key, value in fields.items() if key != "columns"}
    for changed in (without, {**fields, "rows": [ROW]}, {**fields, "columns": None}):
        with pytest.raises(InvalidRequest, match="either `columns` or `rows`"):
            decode(json.dumps(changed).encode(), JSON_TYPE, SIZES)


def test_too_many_json_rows_are_refused():
    fields = {key: value for key, value in batch_fields().items() if key != "columns"}
    rows = [ROW] * (MAX_JSON_ROWS + 1)
    with pytest.raises(TooLarge, match="rows has more than a batch may have"):
        decode(as_json({**fields, "rows": rows}), JSON_TYPE, SIZES)


@pytest.mark.parametrize("name", ENCODERS)
def test_valid_binary_body_is_queued_unchanged(name):
    body = ENCODERS[name](binary(batch_fields()))
    batch = decode(body, BINARY_TYPE, SIZES, content_encoding=encoding(name)).batch
    assert encode(batch) == body
    assert open_entry(body) == binary(batch_fields())
    assert parse_entry(open_entry(body)).epoch == 1


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ENCODERS)
def test_truncated_body_is_refused(form, name):
    body_of, media = FORMS[form]
    body = ENCODERS[name](body_of(batch_fields()))
    for end in range(len(body)):
        with pytest.raises((BadRequest, InvalidRequest)):
            decode(body[:end], media, SIZES, content_encoding=encoding(name))


@many(200)
@given(st.sampled_from(sorted(ENCODERS)), st.sampled_from(sorted(FORMS)), st.data())
def test_a_damaged_compressed_body_is_a_batch_or_a_4xx(name, form, data):
    body_of, media = FORMS[form]
    body = bytearray(ENCODERS[name](body_of(batch_fields())))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(bytes(body), media, SIZES, content_encoding=encoding(name))
    except PacelineError as error:
        assert 400 <= error.status < 500  # noqa: PT017, any of several is right


def test_dictionary_is_that_of_released_clients():
    assert zlib.adler32(DICTIONARY) == 486604748


@pytest.mark.parametrize("name", [name for name in ENCODERS if name])
def test_trailing_bytes_after_a_compressed_body_are_refused(name):
    body = ENCODERS[name](binary(batch_fields()))
    for more in (b"\x00", b"x" * 100, body):
        with pytest.raises(BadRequest, match="no single whole"):
            decode(body + more, BINARY_TYPE, SIZES, content_encoding=encoding(name))


@pytest.mark.parametrize("outer", [name for name in ENCODERS if name])
@pytest.mark.parametrize("inner", [name for name in ENCODERS if name])
def test_doubly_compressed_body_is_refused(outer, inner):
    body = ENCODERS[outer](ENCODERS[inner](binary(batch_fields())))
    with pytest.raises(BadRequest, match="compressed twice"):
        decode(body, BINARY_TYPE, SIZES, content_encoding=encoding(outer))


@pytest.mark.parametrize("name", [name for name in ENCODERS if name])
def test_compressed_body_without_content_encoding_is_refused(name):
    with pytest.raises(BadRequest, match="say so, Content-Encoding"):
        decode(ENCODERS[name](binary(batch_fields())), BINARY_TYPE, SIZES)


@pytest.mark.parametrize("name", [name for name in ENCODERS if name])
@pytest.mark.parametrize("size_bytes", [ANY_RATIO_BYTES + 1, 4 << 20, 256 << 20])
def test_decompression_bomb_is_too_large(name, size_bytes):
    body = ENCODERS[name](bytes(size_bytes))
    with pytest.raises(TooLarge, match="when inflated"):
        decode(body, BINARY_TYPE, SIZES, content_encoding=encoding(name))


@pytest.mark.parametrize("name", [name for name in ENCODERS if name])
def test_small_body_may_have_any_compression_ratio(name):
    text = as_json(batch_fields()) + b" " * (ANY_RATIO_BYTES - 1000)
    body = ENCODERS[name](text)
    assert len(text) > 200 * len(body)
    assert decode(body, JSON_TYPE, SIZES, content_encoding=encoding(name)).rejected == 0


@pytest.mark.parametrize("name", [name for name in ENCODERS if name])
def test_inflated_size_limit_applies_at_any_ratio(name):
    piece = np.random.default_rng(1).bytes(200_000)
    body = ENCODERS[name](piece + bytes(MAX_DECODED_BYTES))
    assert 200 * len(body) > MAX_DECODED_BYTES
    with pytest.raises(TooLarge):
        decode(body, BINARY_TYPE, SIZES, content_encoding=encoding(name))


@pytest.mark.parametrize("header", ["br", "gzip, gzip", "x-gzip", "deflate", "zstd,", "\x00"])
def test_unknown_encoding_error_lists_the_known_ones(header):
    with pytest.raises(UnknownFormat, match="gzip, zstd or none") as refusal:
        decode(b"", BINARY_TYPE, SIZES, content_encoding=header)
    assert refusal.value.members == {"known_encodings": ["gzip", "zstd", "paceline-zlib"]}


@pytest.mark.parametrize("header", ["", "identity", " GZIP ", "Zstd"])
def test_content_encoding_ignores_case_and_spaces(header):
    name = header.strip().lower()
    body = ENCODERS.get(name, bytes)(binary(batch_fields()))
    assert decode(body, BINARY_TYPE, SIZES, content_encoding=header).rejected == 0


def test_unknown_version_or_content_type_error_lists_the_known_ones():
    for body_of, media in FORMS.values():
        with pytest.raises(UnknownFormat, match="wire version 9 is not known") as refusal:
            decode(body_of({**batch_fields(), "version": 9}), media, SIZES)
        assert refusal.value.members == {"known_versions": [1]}
    with pytest.raises(UnknownFormat, match="send application/vnd") as refusal:
        decode(b"", "text/csv", SIZES)
    assert refusal.value.members == {"known_content_types": [BINARY_TYPE, JSON_TYPE]}


@pytest.mark.parametrize("form", FORMS)
def test_only_steps_beyond_the_maximum_jump_are_refused(form):
    body_of, media = FORMS[form]
    newest = 500
    steps = [newest + MAX_STEP_JUMP, newest + MAX_STEP_JUMP + 1]
    body = body_of(batch_fields(columns={"step": steps}))
    decoded = decode(body, media, SIZES, last_step=newest)
    [error] = decoded.errors
    assert (error.index, error.code) == (1, "step_jump")
    assert decoded.batch.columns.step.tolist() == steps[:1]
    assert decode(body, media, SIZES).rejected == 0  # no step of the run is known yet
    with pytest.raises(InvalidRequest, match="no row can be taken"):
        decode(body_of(batch_fields(columns={"step": [2**62, 2**62]})), media, SIZES)


@pytest.mark.parametrize("form", FORMS)
def test_run_cannot_begin_at_a_step_that_no_run_reaches(form):
    body_of, media = FORMS[form]
    steps = [MAX_FIRST_STEP, 10**15]
    decoded = decode(body_of(batch_fields(columns={"step": steps})), media, SIZES)
    assert decoded.batch.columns.step.tolist() == steps[:1]
    [error] = decoded.errors
    assert (error.index, error.code) == (1, "step_jump")
    assert "greatest that a run may begin with" in error.message


def test_done_step_beyond_the_maximum_jump_is_refused():
    body = as_json(batch_fields(steps_done=[[7, 2], [MAX_STEP_JUMP + 8, 0]]))
    assert decode(body, JSON_TYPE, SIZES, last_step=8).rejected == 0
    with pytest.raises(InvalidRequest, match="steps_done has 1000008: a step lies more than"):
        decode(body, JSON_TYPE, SIZES, last_step=7)


@given(st.data())
def test_bounds_are_enforced_alike_in_all_forms(data):
    """Values at and just beyond every bound, in one of two rows, in each form."""
    name = data.draw(st.sampled_from([name for name in WIRE_DTYPES if name != "optype"]))
    dtype = np.iinfo(WIRE_DTYPES[name])
    edges = {-2, -1, 0, 1, 2, 2**31 - 1, 2**53, 2**53 + 1, 86_400 * 10**9, dtype.max, dtype.min}
    value = data.draw(st.sampled_from(sorted(edges)))
    assume(dtype.min <= value <= dtype.max)
    fields = batch_fields(columns={name: [batch_fields()["columns"].get(name, [1])[0], value]})
    results = []
    for body_of, media in FORMS.values():
        decoded = decode(body_of(fields), media, SIZES)
        results.append((decoded.rejected, decoded.errors))
        alone = {key: column[1:] for key, column in fields["columns"].items()}
        if decoded.rejected:
            with pytest.raises(InvalidRequest, match=decoded.errors[0].message[:20]):
                decode(body_of({**fields, "columns": alone}), media, SIZES)
    assert all(result == results[0] for result in results)


@many(100)
@given(st.binary(max_size=200), st.sampled_from([JSON_TYPE, BINARY_TYPE]))
def test_noise_behind_a_sound_header_is_a_batch_or_a_4xx(noise, media):
    check_batch_or_4xx(b"\x28\xb5\x2f\xfd" + noise, media)
    check_batch_or_4xx(b'{"version":1,"rows":[' + noise, media)
