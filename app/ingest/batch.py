"""One batch of one worker: its operations as columns, and the collectives inside its groups.

Also the columns of the wire as arrays, and which rows are accepted. Packed columns hold differences
in as few bytes as they need, laid out so that they compress well: a value has `width` bytes,
little-endian, two's complement; byte 0 of all rows comes first, then byte 1 of all rows, and so on.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.errors import InvalidRequest, TooLarge
from app.ingest.wire.body import (
    LAST_INT32,
    LAST_STEP,
    MAX_OPTYPES,
    MAX_ROWS,
    BinaryBatch,
    BinaryColumns,
    Column,
    PackedColumn,
)
from app.trace.collectives import RankGroup
from app.trace.job import Parallelism, Placement
from app.trace.ops import BUILT_IN, OP_NAMES, OpTypes
from app.trace.window import OPTIONAL, WIRE_DTYPES, Ints, OpColumns, StepKind

Bools = NDArray[np.bool_]

VALUES, DIFFERENCES, AFTER_END = 0, 1, 2
_BYTES = 8  # of what a column is unpacked to
# Differences of at most so many bytes cannot leave 64 bits, in however many rows a batch has.
_SAFE_WIDTH = 5


def column_length(
    name: str, column: Column, dtype: np.dtype[Any] | None = None, place: str = ""
) -> int:
    """How many values a column of the wire has; None: raw ones have the type of operations.

    `place` comes before the words of an error in a raw column.

    Raises:
        InvalidRequest: no whole number of them, or they count from another column's.
    """
    if isinstance(column, memoryview):
        size = (_DTYPES[name] if dtype is None else dtype).itemsize
        rows, rest = divmod(column.nbytes, size)
        if rest:
            raise InvalidRequest(
                f"{place}column {name} has {column.nbytes} bytes: not a multiple of {size}"
            )
        return rows
    if column.kind == AFTER_END and name != "start_ns":
        raise InvalidRequest(f"column {name} is packed by kind {AFTER_END}: only start_ns may be")
    rows, rest = divmod(column.planes.nbytes, column.width)
    if rest:
        raise InvalidRequest(
            f"column {name} has {column.planes.nbytes} bytes: not a multiple of its width, "
            f"{column.width}"
        )
    return rows


def unpack_values(name: str, column: PackedColumn, duration_ns: Ints | None = None) -> Ints:
    """[ops] int64, of a column whose length was checked.

    `duration_ns` are those of the same rows; starts may be packed as differences to the end of the
    row before.

    Raises:
        InvalidRequest: the differences add up to what 64 bits do not hold.
    """
    values = _signed(column)
    if column.kind == VALUES or not values.size:
        return values
    is_safe = column.width <= _SAFE_WIDTH
    if column.kind == AFTER_END and duration_ns is not None:
        gaps, values = values, values.copy()
        values[1:] += duration_ns[:-1]
        _check_overflow(name, values[1:] < gaps[1:], duration_ns[:-1] < 0)
        is_safe = False
    sums = np.cumsum(values, dtype=np.int64)
    if not is_safe:
        _check_overflow(name, sums[1:] < sums[:-1], values[1:] < 0)
    return sums


def _signed(column: PackedColumn) -> Ints:
    """The values in eight bytes each: put into the upper ones, and shifted down with their sign."""
    width = column.width
    if width == 1:  # as many columns are
        return np.frombuffer(column.planes, np.int8).astype(np.int64)
    planes = np.frombuffer(column.planes, np.uint8).reshape(width, -1)
    wide = np.zeros((planes.shape[1], _BYTES), np.uint8)
    wide[:, _BYTES - width :] = planes.T
    return wide.reshape(-1).view("<i8") >> np.int64(8 * (_BYTES - width))


def _check_overflow(name: str, became_less: Bools, is_less: Bools) -> None:
    """Refuse sums that overflow 64 bits: a sum is less than before only after a negative term."""
    if not np.array_equal(became_less, is_less):
        row = int(np.argmax(became_less != is_less)) + 1
        raise InvalidRequest(f"column {name} leaves 64 bits in row {row}")


MAX_DURATION_NS = 86_400 * 10**9  # a day
LAST_START_NS = 2**63 - 1 - MAX_DURATION_NS  # so that every end is a number, too
MAX_STEP_JUMP = 1_000_000
# 30 years at a step a second: a run that began later would take no step of its other workers.
MAX_FIRST_STEP = 1_000_000_000
MAX_ERRORS = 20
UNKNOWN_OPTYPE = -1
_UNKNOWN = "unknown_optype"
_MAX_NAMES = 30


@dataclass(frozen=True, slots=True)
class RowError:
    """Why one row was refused."""

    index: int
    code: str
    message: str


# Which rows break a rule ([rows]), its code, and a message.
Breach = tuple[Bools, str, str]


@dataclass(frozen=True, slots=True)
class RowRules:
    """Rules for the rows of a job; `last_step` is the newest step known of its run."""

    parallelism: Parallelism
    op_types: OpTypes = BUILT_IN
    last_step: int | None = None

    @property
    def last_step_taken(self) -> int:
        """The newest step that a row may be of."""
        return MAX_FIRST_STEP if self.last_step is None else self.last_step + MAX_STEP_JUMP

    def bounds(self) -> Iterator[tuple[str, int, int]]:
        """Name, least and greatest value of each column of integers."""
        yield "step", 0, LAST_STEP
        yield "start_ns", 0, LAST_START_NS
        yield "duration_ns", 0, MAX_DURATION_NS
        yield "seq_id", 0, LAST_INT32
        yield "mc", -1, min(self.parallelism.vpp_size, 2**15) - 1
        yield "mb_id", -1, LAST_INT32
        for name in OPTIONAL:
            yield name, -1, LAST_STEP


def are_all_valid(columns: OpColumns, rules: RowRules) -> bool:
    """Whether all rows are valid, by each column's least and greatest value."""
    if not columns.num_ops:
        return True
    if columns.optype.min() == UNKNOWN_OPTYPE or columns.step.max() > rules.last_step_taken:
        return False
    for name, least, most in rules.bounds():
        values = getattr(columns, name)
        if values is not None and (values.min() < least or values.max() > most):
            return False
    return True


def check_rows(
    columns: OpColumns, rules: RowRules, name_of: Callable[[int], str]
) -> tuple[Bools, list[RowError]]:
    """Which rows keep to every rule ([ops] booleans), and errors of the first few others.

    `name_of` a row is the name of its operation type as it came.
    """
    breaches = [
        (columns.optype == UNKNOWN_OPTYPE, _UNKNOWN, ""),
        *(
            out_of_range(getattr(columns, name), name, least, most)
            for name, least, most in rules.bounds()
            if getattr(columns, name) is not None
        ),
        (columns.step > rules.last_step_taken, "step_jump", jump_message(rules)),
    ]
    is_refused, errors = refused_rows(breaches, MAX_ERRORS)
    for at, error in enumerate(errors):
        if error.code == _UNKNOWN:
            message = _unknown_optype_message(name_of(error.index), rules.op_types)
            errors[at] = replace(error, message=message)
    return ~is_refused, errors


def refused_rows(
    breaches: Sequence[Breach], max_errors: int | None = None
) -> tuple[Bools, list[RowError]]:
    """Which rows break a rule, and errors of the first few: of a row's breaches the first."""
    broken = np.stack([is_broken for is_broken, _, _ in breaches])
    is_refused: Bools = np.logical_or.reduce(broken)
    errors = []
    for index in np.flatnonzero(is_refused)[:max_errors].tolist():
        _, code, message = breaches[int(broken[:, index].argmax())]
        errors.append(RowError(index, code, message))
    return is_refused, errors


def jump_message(rules: RowRules) -> str:
    """Why a step is too far ahead."""
    if rules.last_step is None:
        return f"step lies above {MAX_FIRST_STEP}, the greatest that a run may begin with"
    return (
        f"step lies more than {MAX_STEP_JUMP} above {rules.last_step}, the newest of this run: "
        "register a new run of the job if it is meant"
    )


def out_of_range(values: NDArray[Any], name: str, least: int, most: int) -> Breach:
    """The rows whose value lies outside these bounds."""
    is_broken = (values < least) | (values > most)
    return is_broken, f"{name}_out_of_range", f"{name} must lie in {least}..{most}"


def _unknown_optype_message(name: str, op_types: OpTypes) -> str:
    known = [*(spec.name for spec in op_types.user), *OP_NAMES]
    more = ", ..." if len(known) > _MAX_NAMES else ""
    return (
        f"operation type {name!r} is not known: register it in the job's op_types, or use one of "
        f"{', '.join(known[:_MAX_NAMES])}{more}"
    )


_DTYPES = {name: np.dtype(code) for name, code in WIRE_DTYPES.items()}

_NO_INDEX = -1  # in place of a packed number that is the position of no name

OptypeNameOf = Callable[[int], str]  # of a row's operation type


def columns_from_buffers(wire: BinaryColumns, optypes: list[str], op_types: OpTypes) -> OpColumns:
    """Columns of a binary batch: views of it, but for the operation types and what is packed."""
    columns: dict[str, Column] = {
        name: column for name in WIRE_DTYPES if (column := getattr(wire, name)) is not None
    }
    check_lengths({name: column_length(name, column) for name, column in columns.items()})
    arrays: dict[str, NDArray[Any]] = {}
    for name in starts_last(columns):
        column = columns[name]
        if isinstance(column, memoryview):
            arrays[name] = np.frombuffer(column, _DTYPES[name])
        elif name == "optype":
            arrays[name] = _indices(column)
        else:
            values = unpack_values(name, column, arrays.get("duration_ns"))
            arrays[name] = _narrowed(values, _DTYPES[name], column)
    codes = _codes_of(op_types, optypes) if op_types.user else _built_in_codes(tuple(optypes))
    return OpColumns(optype=codes[arrays.pop("optype")], **arrays)


def starts_last(names: Iterable[str]) -> list[str]:
    """The columns with `start_ns` last: packed, it may count from the ends of the rows before."""
    return sorted(names, key="start_ns".__eq__)


@lru_cache(64)
def _built_in_codes(optypes: tuple[str, ...]) -> NDArray[np.int16]:
    """The same for a job without types of its own: nearly all of its batches name the same ones."""
    return _codes_of(BUILT_IN, optypes)


def _codes_of(op_types: OpTypes, optypes: Sequence[str]) -> NDArray[np.int16]:
    """The code of each index that a byte can hold, with a sign (it counts from the end) or without.

    Not to be written to.
    """
    codes = np.full(2 * MAX_OPTYPES, UNKNOWN_OPTYPE, dtype=np.int16)
    codes[: len(optypes)] = [op_types.codes.get(name, UNKNOWN_OPTYPE) for name in optypes]
    return codes


def optype_names_in(wire: BinaryBatch) -> OptypeNameOf:
    """The operation type of each row as sent; "none" for a row without one."""
    column = wire.columns.optype
    indices = column if isinstance(column, memoryview) else _indices(column)

    def name(row: int) -> str:
        index = indices[row]
        return wire.optypes[index] if 0 <= index < len(wire.optypes) else "none"

    return name


def columns_to_buffers(columns: OpColumns, op_types: OpTypes) -> tuple[list[str], dict[str, bytes]]:
    """Names of operation types, and the columns as the binary format has them.

    `optype` is written as the position of its name: codes are another version's business.
    """
    codes, positions = np.unique(columns.optype, return_inverse=True)
    numbered = replace(columns, optype=positions.astype(np.int16))
    buffers = {
        name: column.astype(dtype).tobytes()
        for name, dtype in WIRE_DTYPES.items()
        if (column := getattr(numbered, name)) is not None
    }
    return [op_types.name(code) for code in codes], buffers


def _indices(column: PackedColumn) -> Ints:
    """Positions in `optypes`, negative where a number can be none."""
    indices = unpack_values("optype", column)
    if column.width == 1 and column.kind == VALUES:
        return indices
    return np.where((indices < 0) | (indices >= MAX_OPTYPES), _NO_INDEX, indices)


def _narrowed(values: Ints, dtype: np.dtype[Any], column: PackedColumn) -> NDArray[Any]:
    """As wide as a column that is not packed, for memory's sake, unless a value has no room."""
    if dtype.itemsize == values.itemsize or not values.size:
        return values.astype(dtype, copy=False)
    fits = column.kind == VALUES and column.width <= dtype.itemsize
    if not fits:
        limits = np.iinfo(dtype)
        fits = limits.min <= values.min() and values.max() <= limits.max
    return values.astype(dtype) if fits else values  # which the rules then refuse


def check_lengths(lengths: dict[str, int]) -> None:
    """Refuse columns that are too long, or of different lengths."""
    if max(lengths.values()) > MAX_ROWS:
        raise TooLarge(f"a batch has at most {MAX_ROWS} rows: split it")
    if len(set(lengths.values())) > 1:
        raise InvalidRequest(f"columns must be of equal length, got {lengths}")


GROUP_COLUMNS = ("step", "group", "kind", "sequence", "start_ns", "duration_ns", "num_bytes")


@dataclass(frozen=True, slots=True, eq=False)
class GroupColumns:
    """Collectives inside groups as parallel columns, not to be written.

    Shapes: all columns [rows] int64. `group` indexes `groups`, `kind` indexes `kinds`. Times are
    nanoseconds of the rank's own clock; `start_ns` and `num_bytes` are -1 where not known.
    """

    groups: tuple[RankGroup, ...]
    kinds: tuple[str, ...]
    step: Ints
    group: Ints
    kind: Ints
    sequence: Ints
    start_ns: Ints
    duration_ns: Ints
    num_bytes: Ints

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return int(self.step.size)


@dataclass(frozen=True, slots=True, eq=False)
class GroupRows(GroupColumns):
    """Collectives of one batch inside its rank's groups.

    Of a rank that is `alone` nothing else is recorded: no step waits for it. `local_rank` numbers
    the GPUs of its host, None if not known.
    """

    local_rank: int | None = None
    is_alone: bool = False

    def select(self, rows: NDArray[Any] | slice) -> "GroupRows":
        """The same with only some of the rows."""
        return replace(self, **{name: getattr(self, name)[rows] for name in GROUP_COLUMNS})


@dataclass(frozen=True, slots=True, eq=False)
class OpBatch:
    """One batch of one worker.

    `steps_done` holds (step, number of its operations in all batches so far) for every step that
    the worker has finished, `step_kinds` which of them are no training steps. `dropped` is how many
    operations its recorder has dropped since it began, `placement` where its host stands, `at_step`
    a step that it has come to and does not record; None where it does not say. `collectives` are
    those that it recorded inside its groups. `wire` is the body as it came, when it says exactly
    this batch.
    """

    epoch: int
    rank: int
    dp_rank: int
    stage: int
    host: str | None
    batch_seq: int
    steps_done: tuple[tuple[int, int], ...]
    columns: OpColumns
    dropped: int | None = None
    step_kinds: tuple[tuple[int, StepKind], ...] = ()
    placement: Placement | None = None
    at_step: int | None = None
    collectives: GroupRows | None = None
    wire: bytes | None = field(default=None, repr=False)

    @property
    def is_alone(self) -> bool:
        """Whether its rank records nothing but what happens inside its groups."""
        return self.collectives is not None and self.collectives.is_alone

    @property
    def num_group_rows(self) -> int:
        """Number of collectives inside groups."""
        return 0 if self.collectives is None else self.collectives.num_rows

    @property
    def newest_step(self) -> int | None:
        """The newest step that the worker has reached, by this batch."""
        recorded = int(self.columns.step.max()) if self.columns.num_ops else None
        return max((step for step in (recorded, self.at_step) if step is not None), default=None)
