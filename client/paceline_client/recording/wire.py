"""Encodes a batch of operations in wire format 1.

Packed columns hold differences, in as few bytes as they need, byte plane by byte plane.
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Optional

from .op_attributes import (
    GPU_ATTRIBUTES,
    LAUNCH_ATTRIBUTES,
    MAX_ATTRIBUTE,
    WAIT_ATTRIBUTES,
    WAIT_OP,
    WORK_ATTRIBUTES,
)

PLAIN_VALUES, DIFFERENCES, AFTER_PREVIOUS_END = 0, 1, 2


def pack_column(name: str, values: Sequence[int], duration_ns: Sequence[int]) -> list[int | bytes]:
    """`[kind, width, planes]` of a column, in the kind that compresses best."""
    if name == "start_ns":
        return list(_planes(AFTER_PREVIOUS_END, _gaps(values, duration_ns)))
    first, second = _planes(PLAIN_VALUES, values), _planes(DIFFERENCES, differences(values))
    return list(first if _compressed_size(first) <= _compressed_size(second) else second)


def differences(values: Sequence[int]) -> list[int]:
    """Each value minus the previous one; the first minus 0."""
    return [value - before for value, before in zip(values, [0, *values])]


def little_endian(column: array[int]) -> bytes:
    """A column's bytes, little endian."""
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column.tobytes()


def _gaps(start_ns: Sequence[int], duration_ns: Sequence[int]) -> list[int]:
    end_ns = [0] + [start + duration for start, duration in zip(start_ns, duration_ns)]
    return [start - before for start, before in zip(start_ns, end_ns)]


def _planes(kind: int, values: Sequence[int]) -> tuple[int, int, bytes]:
    """The lowest byte of all values, then the second, up to the highest byte in use.

    Raises:
        OverflowError: a difference is too large for 8 bytes.
    """
    raw = little_endian(array("q", values))
    width = _width(values)
    return kind, width, b"".join(raw[plane::8] for plane in range(width))


def _width(values: Sequence[int]) -> int:
    """Bytes needed to hold every value with its sign."""
    if not values:
        return 1
    bits = max((value if value >= 0 else ~value).bit_length() for value in values)
    return bits // 8 + 1


def _compressed_size(column: tuple[int, int, bytes]) -> int:
    return len(zlib.compress(column[2]))


CONTENT_TYPE = "application/vnd.paceline.ops+msgpack"
VERSION = 1
MAX_OPTYPE_CHARS = 64
MAX_OPTYPES = 250  # per batch; an index into their list must fit into a byte

# step, optype, start_ns, duration_ns, seq_id, mc, mb_id, attributes
Op = tuple[int, str, int, int, int, int, int, Optional[dict[str, int]]]

# A column's name, its type code in the plain format, and its index in an operation.
_COLUMNS = (
    ("step", "q", 0),
    ("start_ns", "q", 2),
    ("duration_ns", "q", 3),
    ("seq_id", "i", 4),
    ("mc", "h", 5),
    ("mb_id", "i", 6),
)
_PLAIN = {name: code for name, code, _ in _COLUMNS}
_fits = struct.Struct("<qqqihi").pack  # raises if a column cannot hold the value


class Group(NamedTuple):
    """A declared group, to be passed to `Recorder.op`; `at` is its number in this process."""

    at: int
    name: str
    axis: str
    ranks: tuple[int, ...]


NO_GROUP = Group(-1, "", "", ())  # could not be declared: nothing is recorded for it


class GroupBatch(NamedTuple):
    """Group collectives of one batch by columns, with their groups."""

    groups: list[Group]
    kinds: list[str]
    columns: dict[str, array[int]]

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(self.columns["step"])


class Worker:
    """The sending process: its rank, its position in the job, its host."""

    def __init__(
        self,
        rank: int,
        dp_rank: int,
        stage: int,
        host: str | None,
        placement: Mapping[str, str] | None = None,
        *,
        local_rank: int | None = None,
        is_alone: bool = False,
    ) -> None:
        self.rank = rank
        self.dp_rank = dp_rank
        self.stage = stage
        self.host = _safe_name(host or "", 255)
        placed = {name: _safe_name(label, 64) for name, label in (placement or {}).items()}
        self.placement = {name: label for name, label in placed.items() if label}
        self.local_rank = local_rank
        self.is_alone = is_alone  # it records group collectives only


class Batch:
    """The operations of one request, by columns."""

    def __init__(
        self,
        steps_done: Sequence[tuple[int, int]],
        step_kinds: Sequence[tuple[int, str]],
        dropped: int,
        optypes: list[str],
        codes: bytes,
        columns: dict[str, array[int]],
        at_step: int | None = None,
        asides: Collection[int] = (),
        waits_done: Mapping[int, int] | None = None,
        groups: GroupBatch | None = None,
    ) -> None:
        self.steps_done = steps_done
        self.step_kinds = step_kinds
        self.dropped = dropped
        self.optypes = optypes
        self.codes = codes
        self.columns = columns
        self.at_step = at_step  # the step that training has reached, in a heartbeat
        self.asides = asides  # unfinished steps that are not training steps
        self.waits_done = waits_done or {}  # `wait` operations by step, among those of `steps_done`
        self.groups = groups

    @property
    def num_ops(self) -> int:
        """Number of operations."""
        return len(self.codes)

    @property
    def num_group_rows(self) -> int:
        """Number of group collectives."""
        return 0 if self.groups is None else self.groups.num_rows

    @property
    def steps(self) -> set[int]:
        """Steps with operations in the batch or declared done by it."""
        return set(self.columns["step"]) | self.done

    @property
    def done(self) -> set[int]:
        """Steps declared done."""
        return {step for step, _ in self.steps_done}

    def without(self, steps: Collection[int]) -> Batch:
        """A copy without these steps."""
        left = self.of([row for row, step in enumerate(self.columns["step"]) if step not in steps])
        left.steps_done = [done for done in self.steps_done if done[0] not in steps]
        left.step_kinds = [kind for kind in self.step_kinds if kind[0] not in steps]
        return left

    def of(self, rows: Sequence[int]) -> Batch:
        """A copy with these rows, in this order."""
        return Batch(
            self.steps_done,
            self.step_kinds,
            self.dropped,
            self.optypes,
            bytes([self.codes[row] for row in rows]),
            {name: array("q", [c[row] for row in rows]) for name, c in self.columns.items()},
            self.at_step,
            self.asides,
            self.waits_done,
            self.groups,
        )

    def without_waits(self) -> Batch:
        """A copy for a server that does not know `wait` operations."""
        if WAIT_OP not in self.optypes and not self.waits_done:
            return self
        code = self.optypes.index(WAIT_OP) if WAIT_OP in self.optypes else -1
        left = self.of([row for row, of_row in enumerate(self.codes) if of_row != code])
        left.steps_done = [
            (step, num_ops - self.waits_done.get(step, 0)) for step, num_ops in self.steps_done
        ]
        left.waits_done = {}
        return left

    def by_microbatch(self) -> Batch:
        """A copy sorted by micro-batch, which compresses better.

        An operation then often begins where the previous row ends, and types repeat.
        """
        orders = [_sort_key(name) for name in self.optypes]
        keys = [
            (step, orders[code][0], microbatch, orders[code][1], start_ns)
            for step, code, microbatch, start_ns in zip(
                self.columns["step"], self.codes, self.columns["mb_id"], self.columns["start_ns"]
            )
        ]
        return self.of(sorted(range(self.num_ops), key=keys.__getitem__))


def _sort_key(optype: str) -> tuple[str, int]:
    """Direction of a type, and its order within a micro-batch."""
    direction, _, action = optype.partition("-")
    return direction, {"recv": 0, "compute": 1, "send": 2}.get(action.rpartition("-")[2], 3)


def _safe_name(text: str, max_chars: int) -> str:
    """The text shortened and without the characters that the server refuses in a name."""
    return "".join(char for char in text if char.isprintable())[:max_chars]


def fits(op: Op) -> bool:
    """Whether the format can hold an operation's numbers and their differences."""
    try:
        _fits(op[0], op[2], op[3], op[4], op[5], op[6])
    except (struct.error, TypeError):
        return False
    return 0 <= op[0] <= MAX_ATTRIBUTE and 0 <= op[2] < 3 * 2**61 and abs(op[3]) < 2**60


def batch_of(
    ops: Sequence[Op],
    steps_done: Sequence[tuple[int, int]],
    step_kinds: Sequence[tuple[int, str]] = (),
    dropped: int = 0,
    at_step: int | None = None,
    asides: Collection[int] = (),
    waits_done: Mapping[int, int] | None = None,
    groups: GroupBatch | None = None,
) -> Batch:
    """A batch of operations that all fit; counts of a step that was done twice are added up."""
    codes: dict[str, int] = {}
    codes_of_ops = bytes([codes.setdefault(op[1], len(codes)) for op in ops])
    numbers: Sequence[Any] = ops
    columns = {name: array("q", [op[at] for op in numbers]) for name, _, at in _COLUMNS}
    names = {name for op in ops if op[7] for name in op[7]}
    for name in WORK_ATTRIBUTES + GPU_ATTRIBUTES + WAIT_ATTRIBUTES + LAUNCH_ATTRIBUTES:
        if name in names:
            columns[name] = array("q", [(op[7] or {}).get(name, -1) for op in ops])
    done: dict[int, int] = {}
    for step, num_ops in steps_done:
        done[step] = done.get(step, 0) + num_ops
    kinds = sorted(dict(step_kinds).items())
    steps = sorted(done.items())
    names_of_ops = list(codes)
    return Batch(
        steps,
        kinds,
        dropped,
        names_of_ops,
        codes_of_ops,
        columns,
        at_step,
        asides,
        waits_done,
        groups,
    )


def encode(
    worker: Worker, epoch: int, batch_seq: int, batch: Batch, accepts: Collection[str] = ()
) -> bytes:
    """Body of one request; `accepts` lists the server's extensions of format 1.

    It is compressed if `accepts` has "packed": `content_encoding` says how.
    """
    if "step_kinds" not in accepts and (batch.step_kinds or batch.asides):
        # Such a server would take an evaluation for a slow training step.
        batch = batch.without({step for step, _ in batch.step_kinds}.union(batch.asides))
    if "waits" not in accepts:
        batch = batch.without_waits()
    if "packed" in accepts:
        batch = batch.by_microbatch()
    fields: dict[str, Any] = {
        "version": VERSION,
        "epoch": epoch,
        "rank": worker.rank,
        "dp_rank": worker.dp_rank,
        "stage": worker.stage,
        "batch_seq": batch_seq,
        "steps_done": batch.steps_done,
        "optypes": batch.optypes,
        "columns": _columns(batch, accepts),
    }
    if worker.host:
        fields["host"] = worker.host
    if worker.placement and "placement" in accepts:
        fields["placement"] = worker.placement
    if batch.dropped and "dropped" in accepts:
        fields["dropped"] = min(batch.dropped, MAX_ATTRIBUTE)
    if batch.step_kinds:
        fields["step_kinds"] = batch.step_kinds
    if (
        "at_step" in accepts
        and 0 <= (-1 if batch.at_step is None else batch.at_step) <= MAX_ATTRIBUTE
    ):
        fields["at_step"] = batch.at_step
    if "collectives" in accepts and (batch.groups is not None or worker.is_alone):
        fields["collectives"] = _collectives(worker, batch.groups, accepts)
    body = pack(fields)
    if "packed" not in accepts:
        return body
    if "dictionary" in accepts:
        squeeze = zlib.compressobj(9, zdict=DICTIONARY)
        return squeeze.compress(body) + squeeze.flush() + struct.pack("<I", len(body))
    squeeze = zlib.compressobj(9, wbits=31)
    return squeeze.compress(body) + squeeze.flush()


def content_encoding(body: bytes) -> str:
    """The Content-Encoding of an encoded batch, "" for none."""
    return _ENCODINGS.get(body[:2], "")


WITH_DICTIONARY = "paceline-zlib"
_ENCODINGS = {b"\x1f\x8b": "gzip", b"\x78\xf9": WITH_DICTIONARY}


_GROUP_CODES = {"group": "B", "kind": "B", "sequence": "i"}


def _collectives(
    worker: Worker, groups: GroupBatch | None, accepts: Collection[str]
) -> dict[str, Any]:
    """Groups and their rows, with the sender's local rank."""
    fields: dict[str, Any] = {}
    if groups is not None:
        fields["groups"] = [
            {"name": group.name, "axis": group.axis, **_members(group.ranks)}
            for group in groups.groups
        ]
        fields["kinds"] = groups.kinds
        fields["columns"] = {
            name: pack_column(name, values, groups.columns["duration_ns"])
            if "packed" in accepts
            else little_endian(array(_GROUP_CODES.get(name, "q"), values))
            for name, values in groups.columns.items()
        }
    if worker.local_rank is not None:
        fields["local_rank"] = worker.local_rank
    if worker.is_alone:
        fields["alone"] = True
    return fields


def _members(ranks: Sequence[int]) -> dict[str, Any]:
    """Ranks as (first, count, stride) if evenly spaced, as in nearly all groups."""
    distance = ranks[1] - ranks[0]
    if distance > 0 and all(ranks[at] - ranks[at - 1] == distance for at in range(1, len(ranks))):
        return {"runs": [(ranks[0], len(ranks), distance)]}
    return {"ranks": ranks}


def _columns(batch: Batch, accepts: Collection[str]) -> dict[str, Any]:
    known = {
        name: values
        for name, values in batch.columns.items()
        if (name not in GPU_ATTRIBUTES or "gpu_health" in accepts)
        and (name not in WAIT_ATTRIBUTES or "waits" in accepts)
        and (name not in LAUNCH_ATTRIBUTES or "launches" in accepts)
    }
    columns: dict[str, Any] = {"optype": batch.codes}
    for name, values in known.items():
        if "packed" in accepts:
            columns[name] = pack_column(name, values, known["duration_ns"])
        else:
            columns[name] = little_endian(array(_PLAIN.get(name, "q"), values))
    return columns


def pack(value: Any) -> bytes:
    """A value as msgpack; only the types that occur in a batch."""
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        return _pack_int(value)
    if isinstance(value, str):
        text = value.encode()
        return _head(len(text), 0xA0, 32, 0xD9) + text
    if isinstance(value, bytes):
        return _head(len(value), 0, 0, 0xC4) + value
    if isinstance(value, dict):
        pairs = b"".join(pack(key) + pack(item) for key, item in value.items())
        return _head(len(value), 0x80, 16, 0xDD) + pairs
    return _head(len(value), 0x90, 16, 0xDB) + b"".join(pack(item) for item in value)


def _head(size: int, short: int, short_below: int, code: int) -> bytes:
    """Type and length: one byte if it fits, else the smallest of 8 (not for containers), 16 and
    32 bits, whose codes are consecutive.
    """
    if size < short_below:
        return bytes([short | size])
    if size < 256 and code in (0xC4, 0xD9):
        return bytes([code, size])
    if size < 65536:
        return struct.pack(">BH", code + 1, size)
    return struct.pack(">BI", code + 2, size)


def _pack_int(value: int) -> bytes:
    if 0 <= value < 128:
        return bytes([value])
    if -(2**15) <= value < 2**15:
        return b"\xd1" + struct.pack(">h", value)
    if -(2**31) <= value < 2**31:
        return b"\xd2" + struct.pack(">i", value)
    return b"\xd3" + struct.pack(">q", value)


# What nearly every batch says, for compression to refer to: names and codes take a third of a
# batch of one step. Servers have the same bytes, so they never change; others would be an extension
# of another name.
DICTIONARY = pack(
    {
        "collectives": {"kinds": ["all-reduce", "all-gather", "reduce-scatter", "all-to-all"]},
        "at_step": 0,
        "dropped": 0,
        "placement": {"rack": "", "switch": ""},
        "columns": {
            name: [0, 1, bytes(1)]
            for name in ("tokens", "seq_len_sq", "bytes", "sm_clock_mhz", "temperature_c")
        },
        "version": 1,
        "epoch": 1,
        "rank": 0,
        "dp_rank": 0,
        "stage": 0,
        "batch_seq": 0,
        "steps_done": [(0, 0)],
        "optypes": [
            *("wait", "gc-pause", "data-wait", "embedding-grads-all-reduce"),
            *("layernorm-grads-all-reduce", "params-all-gather", "grads-all-reduce"),
            *("optimizer-clip-main-grad", "grads-reduce-scatter", "optimizer"),
            *("forward-recv", "forward-compute", "forward-send"),
            *("backward-recv", "backward-compute", "backward-send"),
        ],
    }
) + pack(
    {
        "columns": {
            "optype": bytes(1),
            "step": [0, 1, bytes(1)],
            "start_ns": [2, 8, bytes(1)],
            "duration_ns": [0, 4, bytes(1)],
            "seq_id": [1, 1, bytes(1)],
            "mc": [0, 1, bytes(1)],
            "mb_id": [1, 1, bytes(1)],
        },
        "host": "",
    }
)
