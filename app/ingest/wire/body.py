"""A batch's body: decompressed in bounded space and parsed into structs, its meaning unchecked.

One layer of compression, then msgpack or JSON. Limits and versions of the wire format are here.
"""

import re
import zlib
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np
import zstandard
from paceline_client.recording.wire import DICTIONARY, WITH_DICTIONARY

from app.errors import BadRequest, InvalidRequest, TooLarge, UnsupportedMedia
from app.trace.window import OPTIONAL, WIRE_DTYPES, StepKind


class UnknownFormat(UnsupportedMedia):
    """A content type, encoding or version that is not known; the problem lists those that are.

    `members` are lists by the name that the problem has them under, such as `known_versions`.
    """

    def __init__(self, message: str, **members: Sequence[str | int]) -> None:
        super().__init__(message)
        self.members = {name: list(known) for name, known in members.items()}


GZIP = "gzip"
ZSTD = "zstd"
ENCODINGS = (GZIP, ZSTD, WITH_DICTIONARY)
MAX_BODY_BYTES = 8 << 20
MAX_DECODED_BYTES = 32 << 20
# A batch of operations shrinks to a tenth; one that shrinks this far is an attack.
MAX_RATIO = 200
ANY_RATIO_BYTES = 1 << 20  # up to here the ratio does not matter
MAX_WINDOW_BYTES = 8 << 20  # of zstd's window

_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_DICTIONARY_MAGIC = b"\x78\xf9"  # zlib at its best, with a dictionary
_GZIP_FRAME = 16 + zlib.MAX_WBITS  # zlib's way to say: a gzip header and checksum, nothing else
# Same numbers, other words: the frame does not say how much there is in it.
_NO_SIZE = (zstandard.CONTENTSIZE_UNKNOWN, -1)
_CHUNK_BYTES = 1 << 20

BytesT = TypeVar("BytesT", bytes, bytearray)


def detect_encoding(body: bytes | bytearray) -> str:
    """The encoding that the first bytes of a body are of, "" for none."""
    if body.startswith(_ZSTD_MAGIC):
        return ZSTD
    if body.startswith(_DICTIONARY_MAGIC):
        return WITH_DICTIONARY
    return GZIP if body.startswith(_GZIP_MAGIC) else ""


def parse_content_encoding(content_encoding: str) -> str:
    """The one encoding of the header, "" for none; raises UnknownFormat for others or several."""
    name = content_encoding.strip().lower()
    if name in ("", "identity"):
        return ""
    if name not in ENCODINGS:
        raise UnknownFormat(
            f"Content-Encoding {content_encoding[:100]!r} is not taken: send {GZIP}, {ZSTD} or "
            f"none, one layer, or {WITH_DICTIONARY} to a job that says so",
            known_encodings=ENCODINGS,
        )
    return name


def decompress(body: bytes, encoding: str) -> bytes | bytearray:
    """The body without this encoding; "" leaves it as it is.

    Raises:
        BadRequest: not one whole frame, or there is another one inside.
        TooLarge: more comes out than is taken.
    """
    plain = _DECOMPRESSORS[encoding](body, _limit(len(body))) if encoding else body
    if inner := detect_encoding(plain):
        layers = "twice: send one layer" if encoding else f"with {inner}: say so, Content-Encoding"
        raise BadRequest(f"the body is compressed {layers}")
    return plain


def _limit(wire_bytes: int) -> int:
    if wire_bytes > MAX_BODY_BYTES:
        raise TooLarge(f"a batch has at most {MAX_BODY_BYTES} bytes: split it")
    return min(MAX_DECODED_BYTES, max(ANY_RATIO_BYTES, MAX_RATIO * wire_bytes))


def _gunzip(body: bytes, limit: int) -> bytearray:
    # The last four bytes say how much there is, so that no room is taken twice; zlib checks them.
    plain = bytearray(min(int.from_bytes(body[-4:], "little"), limit))
    gzip, rest, filled = zlib.decompressobj(_GZIP_FRAME), body, 0
    while not gzip.eof:
        try:
            piece = gzip.decompress(rest, _CHUNK_BYTES)
        except zlib.error as error:
            raise _broken_frame_error(GZIP, str(error)) from error
        rest, end = gzip.unconsumed_tail, filled + len(piece)
        if end > limit:
            raise _too_large_error(limit)
        if end > len(plain):
            raise _broken_frame_error(GZIP, "there is more in it than it says")
        if not (piece or rest or gzip.eof):
            raise _broken_frame_error(GZIP, "it ends too early")
        plain[filled:end] = piece
        filled = end
    return _check_end(plain, GZIP, gzip.unused_data, limit)


def _with_dictionary(body: bytes, limit: int) -> bytes:
    size = int.from_bytes(body[-4:], "little")
    zlib_stream = zlib.decompressobj(zdict=DICTIONARY)
    try:
        plain = zlib_stream.decompress(body, min(size, limit) + 1)
    except zlib.error as error:
        raise _broken_frame_error(WITH_DICTIONARY, str(error)) from error
    if len(plain) > limit:
        raise _too_large_error(limit)
    if not zlib_stream.eof or len(plain) != size or zlib_stream.unused_data != body[-4:]:
        raise _broken_frame_error(WITH_DICTIONARY, "it is not as long as its last four bytes say")
    return plain


def _unzstd(body: bytes, limit: int) -> bytes | bytearray:
    zstd = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
    try:
        size = zstandard.get_frame_parameters(body).content_size
        if size in _NO_SIZE:
            return _unzstd_by_chunks(zstd, body, limit)
        # `decompress` believes it before its own limit.
        if size > limit:
            raise _too_large_error(limit)
        return zstd.decompress(body, max_output_size=limit, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise _broken_frame_error(ZSTD, str(error)) from error


def _unzstd_by_chunks(zstd: zstandard.ZstdDecompressor, body: bytes, limit: int) -> bytes:
    # Bounded, but silent about where the frame ends; what it has bounded, the other tells.
    if len(zstd.stream_reader(body).read(limit + 1)) > limit:
        raise _too_large_error(limit)
    stream = zstd.decompressobj()
    plain = stream.decompress(body)
    if not stream.eof:
        raise _broken_frame_error(ZSTD, "it ends too early")
    return _check_end(plain, ZSTD, stream.unused_data, limit)


def _check_end(plain: BytesT, encoding: str, unused: bytes, limit: int) -> BytesT:
    if len(plain) > limit:
        raise _too_large_error(limit)
    if unused:
        raise _broken_frame_error(encoding, "more follows after its end")
    return plain


def _broken_frame_error(encoding: str, reason: str) -> BadRequest:
    return BadRequest(f"the body is no single whole {encoding} frame: {reason}")


def _too_large_error(limit: int) -> TooLarge:
    return TooLarge(
        f"a batch has at most {MAX_DECODED_BYTES} bytes when inflated, and above {ANY_RATIO_BYTES} "
        f"at most {MAX_RATIO} times as many as compressed; this one has more than {limit}: split it"
    )


_DECOMPRESSORS = {GZIP: _gunzip, ZSTD: _unzstd, WITH_DICTIONARY: _with_dictionary}


def decompressed_size(body: bytes) -> int:
    """How many bytes a body from the queue takes when it is opened; at most so many, if unsure."""
    encoding = detect_encoding(body)
    if encoding in (GZIP, WITH_DICTIONARY):
        return min(int.from_bytes(body[-4:], "little"), MAX_DECODED_BYTES)
    if encoding == ZSTD:
        size = int(zstandard.frame_content_size(body))
        return size if 0 <= size <= MAX_DECODED_BYTES else MAX_DECODED_BYTES
    return len(body)


WIRE_VERSION = 1  # what we write
KNOWN_VERSIONS = (1,)  # what we read
MAX_ROWS = 100_000
LAST_STEP = 2**53  # what every JSON reader can hold exactly
LAST_INT32 = 2**31 - 1
# More than the largest batch in JSON has: reading them takes long for nothing.
MAX_COMMAS = 12 * MAX_ROWS + 100
_COUNTED_BYTES = 1 << 20
MAX_OPTYPES = 256  # an index into them is one byte
# What a batch may have beside the keys and forms that every server takes, by the names that
# registering a job answers with: a client sends only what the job answered with.
EXTENSIONS = (
    *("packed", "dropped", "step_kinds", "gpu_health", "placement", "at_step"),
    *("waits", "collectives", "dictionary", "launches"),
)

Body = bytes | bytearray
ABSENT_JSON = msgspec.Raw(b"null")  # JSON's way to leave a key out
ABSENT_BINARY = msgspec.Raw(b"\xc0")  # msgpack's
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Count = Annotated[int, msgspec.Meta(ge=0, le=LAST_STEP)]
Epoch = Annotated[int, msgspec.Meta(ge=1, le=LAST_STEP)]
Small = Annotated[int, msgspec.Meta(ge=0, le=LAST_INT32)]
StepsDone = list[tuple[Count, Count]]
PlacementName = Annotated[
    str, msgspec.Meta(min_length=1, max_length=64, pattern=r"^[^\x00-\x1f\x7f]*\Z")
]
StepKinds = Annotated[list[tuple[Count, StepKind]], msgspec.Meta(max_length=MAX_ROWS)]
Name = Annotated[str, msgspec.Meta(max_length=64)]
# No control characters: a database refuses some of them, a log is split by others.
Host = Annotated[str, msgspec.Meta(max_length=255, pattern=r"^[^\x00-\x1f\x7f]*\Z")]


class PlacementIn(msgspec.Struct, forbid_unknown_fields=True):
    """Where the sender's host stands."""

    rack: PlacementName | None = None
    switch: PlacementName | None = None


class Header(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The fields of a batch beside its operations, in every format."""

    version: int
    epoch: Epoch
    rank: Small
    dp_rank: Small
    stage: Small
    host: Host | None = None
    batch_seq: Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
    dropped: Count | None = None
    step_kinds: StepKinds = []
    placement: PlacementIn | None = None
    at_step: Count | None = None


class PackedColumn(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A column as `app.ingest.batch` reads it: one plane per byte of a value."""

    kind: Literal[0, 1, 2]
    width: Annotated[int, msgspec.Meta(ge=1, le=8)]
    planes: memoryview


Column = memoryview | PackedColumn
LEFT_OUT_OF_JSON = ("seq_id", "mc", "mb_id", *OPTIONAL)


def columns_struct(
    names: Iterable[str], usual_type: Any, optional: Collection[str], absent: Any, **types: Any
) -> Any:
    """A struct with a field per column, of the usual type where `types` name no other.

    Those in `optional` come last; one that is left out is `absent`.
    """
    fields: list[Any] = []
    for name in sorted(names, key=lambda name: name in optional):
        column_type = types.get(name, usual_type)
        if name in optional:
            fields.append((name, column_type | None if absent is None else column_type, absent))
        else:
            fields.append((name, column_type))
    return msgspec.defstruct(
        "Columns", fields, forbid_unknown_fields=True, omit_defaults=True, gc=False
    )


class BinaryColumns(columns_struct(WIRE_DTYPES, Column, OPTIONAL, None)):  # type: ignore[misc]
    """Raw little-endian buffers or packed ones, one a column; `OPTIONAL` ones may be left out.

    How many rows there are is the same in all; `app.ingest.batch` checks it.
    """


class BinaryBatch(Header, forbid_unknown_fields=True, kw_only=True):
    """A batch in `application/vnd.paceline.ops+msgpack`."""

    steps_done: Annotated[StepsDone, msgspec.Meta(max_length=MAX_ROWS)]
    optypes: Annotated[list[Name], msgspec.Meta(max_length=MAX_OPTYPES)]
    columns: BinaryColumns
    collectives: msgspec.Raw = ABSENT_BINARY


class JsonColumns(
    columns_struct(WIRE_DTYPES, msgspec.Raw, LEFT_OUT_OF_JSON, ABSENT_JSON)  # type: ignore[misc]
):
    """Lists as text, one a column."""


class JsonBatch(Header, forbid_unknown_fields=True, kw_only=True):
    """A batch in `application/json`; what is long is still text, read by `json_columns`."""

    steps_done: msgspec.Raw
    columns: JsonColumns | None = None
    rows: msgspec.Raw = ABSENT_JSON
    collectives: msgspec.Raw = ABSENT_JSON


class _Version(msgspec.Struct):
    version: int


_BINARY = msgspec.msgpack.Decoder(BinaryBatch)
_BINARY_VERSION = msgspec.msgpack.Decoder(_Version)
_JSON = msgspec.json.Decoder(JsonBatch)
_JSON_VERSION = msgspec.json.Decoder(_Version)
# ValueError: text that is no UTF-8; RecursionError: nesting without end.
UNDECODABLE = (msgspec.DecodeError, ValueError, RecursionError)


def parse_binary(body: Body) -> BinaryBatch:
    """The batch in a msgpack body; its columns are views into the body."""
    return _parsed(body, _BINARY, _BINARY_VERSION)


def count_byte(text: Body | msgspec.Raw, mark: bytes) -> int:
    """How often one byte is in a text; many times faster than bytes.count where it is often."""
    codes = np.frombuffer(text, np.uint8)
    pieces = range(0, codes.size, _COUNTED_BYTES)
    return sum(
        int(np.count_nonzero(codes[first : first + _COUNTED_BYTES] == mark[0])) for first in pieces
    )


def parse_json(body: Body) -> JsonBatch:
    """The batch in a JSON body."""
    if count_byte(body, b",") > MAX_COMMAS:
        raise TooLarge("the body has more values than a batch may have: split it")
    return _parsed(body, _JSON, _JSON_VERSION)


BatchT = TypeVar("BatchT", BinaryBatch, JsonBatch)


def _parsed(
    body: Body,
    decoder: msgspec.msgpack.Decoder[BatchT] | msgspec.json.Decoder[BatchT],
    versions: msgspec.msgpack.Decoder[_Version] | msgspec.json.Decoder[_Version],
) -> BatchT:
    try:
        batch = decoder.decode(body)
    except UNDECODABLE as error:
        if not isinstance(error, msgspec.ValidationError):
            raise BadRequest(f"the batch cannot be decoded: {error}") from error
        # A later version may have other keys: say that first.
        with suppress(*UNDECODABLE):
            _check_version(versions.decode(body).version)
        raise format_error(str(error)) from error
    _check_version(batch.version)
    return batch


def _check_version(version: int) -> None:
    if version not in KNOWN_VERSIONS:
        known = ", ".join(map(str, KNOWN_VERSIONS))
        raise UnknownFormat(
            f"wire version {version} is not known here: send {known}",
            known_versions=KNOWN_VERSIONS,
        )


def format_error(reason: str) -> InvalidRequest:
    """The refusal of a batch that does not fit the format."""
    return InvalidRequest(f"the batch does not fit wire version {WIRE_VERSION}: {reason}")


_ROOT = re.compile(r"(?<=`)\$")


def format_error_at(place: str, error: Exception) -> InvalidRequest:
    """The same for the part of a batch that is at `place`, such as `$.rows`."""
    reason = str(error) if "`$" in str(error) else f"{error} - at `$`"
    return format_error(_ROOT.sub(lambda _: place, reason))
