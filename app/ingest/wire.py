"""The two wire formats as they lie in the bytes, before any meaning is checked."""

from contextlib import suppress
from typing import Annotated

import msgspec

from app.errors import BadRequest, InvalidRequest, PacelineError, UnsupportedMedia

WIRE_VERSION = 1
MAX_ROWS = 100_000
LAST_STEP = 2**53  # what every JSON reader can hold exactly
LAST_INT32 = 2**31 - 1
MAX_OPTYPES = 256  # an index into them is one byte

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Count = Annotated[int, msgspec.Meta(ge=0, le=LAST_STEP)]
Epoch = Annotated[int, msgspec.Meta(ge=1, le=LAST_STEP)]
Small = Annotated[int, msgspec.Meta(ge=0, le=LAST_INT32)]
Name = Annotated[str, msgspec.Meta(max_length=64)]
# No control characters: a database refuses some of them, a log is split by others.
Host = Annotated[str, msgspec.Meta(max_length=255, pattern=r"^[^\x00-\x1f\x7f]*$")]


class Header(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What both formats say of a batch beside its columns."""

    version: int
    epoch: Epoch
    rank: Small
    dp_rank: Small
    stage: Small
    host: Host | None = None
    batch_seq: Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
    steps_done: Annotated[list[tuple[Count, Count]], msgspec.Meta(max_length=MAX_ROWS)]


class BinaryColumns(msgspec.Struct, forbid_unknown_fields=True):
    """Raw little-endian buffers, one a column."""

    step: memoryview
    optype: memoryview
    start_ns: memoryview
    duration_ns: memoryview
    seq_id: memoryview
    mc: memoryview
    mb_id: memoryview


class BinaryBatch(Header, forbid_unknown_fields=True, kw_only=True):
    """A batch in `application/vnd.paceline.ops+msgpack`."""

    optypes: Annotated[list[Name], msgspec.Meta(max_length=MAX_OPTYPES)]
    columns: BinaryColumns


class JsonColumns(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Lists, one a column; the last three may be left out."""

    step: list[Int64]
    optype: list[Name]
    start_ns: list[Int64]
    duration_ns: list[Int64]
    seq_id: list[Int64] | None = None
    mc: list[Int64] | None = None
    mb_id: list[Int64] | None = None


class JsonBatch(Header, forbid_unknown_fields=True, kw_only=True):
    """A batch in `application/json`."""

    columns: JsonColumns


class _Version(msgspec.Struct):
    version: int


class _Epoch(msgspec.Struct):
    epoch: Epoch


_BINARY = msgspec.msgpack.Decoder(BinaryBatch)
_BINARY_VERSION = msgspec.msgpack.Decoder(_Version)
_BINARY_EPOCH = msgspec.msgpack.Decoder(_Epoch)
_JSON = msgspec.json.Decoder(JsonBatch)
_JSON_VERSION = msgspec.json.Decoder(_Version)
# ValueError: text that is no UTF-8; RecursionError: nesting without end.
_UNDECODABLE = (msgspec.DecodeError, ValueError, RecursionError)


def parse_binary(body: bytes) -> BinaryBatch:
    """The batch in a msgpack body; its columns are views into the body."""
    try:
        batch = _BINARY.decode(body)
    except _UNDECODABLE as error:
        raise _refusal(error, _BINARY_VERSION, body) from error
    if batch.version != WIRE_VERSION:
        raise _unknown_version(batch.version)
    return batch


def parse_epoch(body: bytes) -> int:
    """The epoch in a msgpack body, of which nothing else is looked at."""
    try:
        return _BINARY_EPOCH.decode(body).epoch
    except _UNDECODABLE as error:
        raise _refusal(error, _BINARY_VERSION, body) from error


def parse_json(body: bytes) -> JsonBatch:
    """The batch in a JSON body."""
    try:
        batch = _JSON.decode(body)
    except _UNDECODABLE as error:
        raise _refusal(error, _JSON_VERSION, body) from error
    if batch.version != WIRE_VERSION:
        raise _unknown_version(batch.version)
    return batch


_VersionDecoder = msgspec.msgpack.Decoder[_Version] | msgspec.json.Decoder[_Version]


def _refusal(error: Exception, versions: _VersionDecoder, body: bytes) -> PacelineError:
    if not isinstance(error, msgspec.ValidationError):
        return BadRequest(f"the batch cannot be decoded: {error}")
    # A later version may have other keys: say that first.
    with suppress(*_UNDECODABLE):
        version = versions.decode(body).version
        if version != WIRE_VERSION:
            return _unknown_version(version)
    return InvalidRequest(f"the batch does not fit wire version {WIRE_VERSION}: {error}")


def _unknown_version(version: int) -> UnsupportedMedia:
    return UnsupportedMedia(f"wire version {version} is not known here: send {WIRE_VERSION}")
