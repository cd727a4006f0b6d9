"""The wire formats as they lie in the bytes, before any meaning is checked."""

from contextlib import suppress
from typing import Annotated, Literal

import msgspec
import numpy as np

from app.errors import BadRequest, InvalidRequest, PacelineError, TooLarge
from app.ingest.unknown import UnknownFormat
from app.trace.window import StepKind

WIRE_VERSION = 1  # what we write
KNOWN_VERSIONS = (1,)  # what we read
MAX_ROWS = 100_000
LAST_STEP = 2**53  # what every JSON reader can hold exactly
LAST_INT32 = 2**31 - 1
# More than the largest batch in JSON has: reading them takes long for nothing.
MAX_COMMAS = 12 * MAX_ROWS + 100
_COUNTED_BYTES = 1 << 20
MAX_OPTYPES = 256  # an index into them is one byte
# What a batch may have beside the first release's keys and forms, by the names that registering a
# job answers with: a client sends nothing that it was not told of.
EXTENSIONS = (
    *("packed", "dropped", "step_kinds", "gpu_health", "placement", "at_step"),
    *("waits", "collectives"),
)

Body = bytes | bytearray
ABSENT = msgspec.Raw(b"null")  # JSON's way to leave a key out
ABSENT_BINARY = msgspec.Raw(b"\xc0")  # msgpack's
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Count = Annotated[int, msgspec.Meta(ge=0, le=LAST_STEP)]
Epoch = Annotated[int, msgspec.Meta(ge=1, le=LAST_STEP)]
Small = Annotated[int, msgspec.Meta(ge=0, le=LAST_INT32)]
StepsDone = list[tuple[Count, Count]]
Place = Annotated[str, msgspec.Meta(min_length=1, max_length=64, pattern=r"^[^\x00-\x1f\x7f]*\Z")]
StepKinds = Annotated[list[tuple[Count, StepKind]], msgspec.Meta(max_length=MAX_ROWS)]
Name = Annotated[str, msgspec.Meta(max_length=64)]
# No control characters: a database refuses some of them, a log is split by others. A line's end was
# taken by mistake: what lies in queue and spool may have one, what is pushed may not (`codec`).
Host = Annotated[str, msgspec.Meta(max_length=255, pattern=r"^[^\x00-\x1f\x7f]*\n?\Z")]


class PlacementIn(msgspec.Struct, forbid_unknown_fields=True):
    """Where the sender's host stands."""

    rack: Place | None = None
    switch: Place | None = None


class Header(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What all formats say of a batch beside its operations."""

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


class Packed(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A column as `app.ingest.packed` reads it: so many bytes a value, each byte's plane whole."""

    kind: Literal[0, 1, 2]
    width: Annotated[int, msgspec.Meta(ge=1, le=8)]
    planes: memoryview


Column = memoryview | Packed


class BinaryColumns(msgspec.Struct, forbid_unknown_fields=True):
    """Raw little-endian buffers or packed ones, one a column; those after `mb_id` may be left out.

    How many rows there are is the same in all; `app.ingest.columns` checks it.
    """

    step: Column
    optype: Column
    start_ns: Column
    duration_ns: Column
    seq_id: Column
    mc: Column
    mb_id: Column
    tokens: Column | None = None
    seq_len_sq: Column | None = None
    bytes: Column | None = None
    sm_clock_mhz: Column | None = None
    temperature_c: Column | None = None
    power_w: Column | None = None
    xid: Column | None = None
    contains_waits: Column | None = None


class BinaryBatch(Header, forbid_unknown_fields=True, kw_only=True):
    """A batch in `application/vnd.paceline.ops+msgpack`."""

    steps_done: Annotated[StepsDone, msgspec.Meta(max_length=MAX_ROWS)]
    optypes: Annotated[list[Name], msgspec.Meta(max_length=MAX_OPTYPES)]
    columns: BinaryColumns
    collectives: msgspec.Raw = ABSENT_BINARY


class JsonColumns(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Lists as text, one a column."""

    step: msgspec.Raw
    optype: msgspec.Raw
    start_ns: msgspec.Raw
    duration_ns: msgspec.Raw
    seq_id: msgspec.Raw = ABSENT
    mc: msgspec.Raw = ABSENT
    mb_id: msgspec.Raw = ABSENT
    tokens: msgspec.Raw = ABSENT
    seq_len_sq: msgspec.Raw = ABSENT
    bytes: msgspec.Raw = ABSENT
    sm_clock_mhz: msgspec.Raw = ABSENT
    temperature_c: msgspec.Raw = ABSENT
    power_w: msgspec.Raw = ABSENT
    xid: msgspec.Raw = ABSENT
    contains_waits: msgspec.Raw = ABSENT


class JsonBatch(Header, forbid_unknown_fields=True, kw_only=True):
    """A batch in `application/json`; what is long is still text, read by `json_columns`."""

    steps_done: msgspec.Raw
    columns: JsonColumns | None = None
    rows: msgspec.Raw = ABSENT
    collectives: msgspec.Raw = ABSENT


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
    try:
        batch = _BINARY.decode(body)
    except UNDECODABLE as error:
        raise _refusal(error, _BINARY_VERSION, body) from error
    if batch.version not in KNOWN_VERSIONS:
        raise _unknown_version(batch.version)
    return batch


def count(text: Body | msgspec.Raw, mark: bytes) -> int:
    """How often one byte is in a text; many times faster than bytes.count where it is often."""
    found = np.frombuffer(text, np.uint8)
    pieces = range(0, found.size, _COUNTED_BYTES)
    return sum(
        int(np.count_nonzero(found[first : first + _COUNTED_BYTES] == mark[0])) for first in pieces
    )


def parse_json(body: Body) -> JsonBatch:
    """The batch in a JSON body."""
    if count(body, b",") > MAX_COMMAS:
        raise TooLarge("the body has more values than a batch may have: split it")
    try:
        batch = _JSON.decode(body)
    except UNDECODABLE as error:
        raise _refusal(error, _JSON_VERSION, body) from error
    if batch.version not in KNOWN_VERSIONS:
        raise _unknown_version(batch.version)
    return batch


_VersionDecoder = msgspec.msgpack.Decoder[_Version] | msgspec.json.Decoder[_Version]


def _refusal(error: Exception, versions: _VersionDecoder, body: Body) -> PacelineError:
    if not isinstance(error, msgspec.ValidationError):
        return BadRequest(f"the batch cannot be decoded: {error}")
    # A later version may have other keys: say that first.
    with suppress(*UNDECODABLE):
        version = versions.decode(body).version
        if version not in KNOWN_VERSIONS:
            return _unknown_version(version)
    return misfit(str(error))


def misfit(reason: str) -> InvalidRequest:
    """The refusal of a batch whose parts are not what the format says."""
    return InvalidRequest(f"the batch does not fit wire version {WIRE_VERSION}: {reason}")


def _unknown_version(version: int) -> UnknownFormat:
    known = ", ".join(map(str, KNOWN_VERSIONS))
    return UnknownFormat(
        f"wire version {version} is not known here: send {known}", known_versions=KNOWN_VERSIONS
    )
