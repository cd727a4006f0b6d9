"""A window: successive training steps of one job, as columns with one row per operation.

The columns' names and types are declared here, once, for batches, stored windows, traces and
simulated records. The structs of `app.ingest.wire` are the wire format's own declaration; a test
compares them. Step lists are written as ranges: 3,5-9.
"""

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from app.errors import InvalidRequest, InvalidTrace
from app.trace.collectives import Collectives
from app.trace.job import Job

NS_PER_S = 1_000_000_000
S_PER_NS = 1e-9

Ints = NDArray[np.int64]
Integers = NDArray[np.signedinteger[Any]]  # of any width
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class OpColumn:
    """One column: how tables and traces hold it, and the wire; None where the wire has it not."""

    name: str
    stored: type[np.generic]
    wire: str | None
    is_optional: bool = False


# Held as narrow as they can be: a large job's window has tens of millions of rows, and one type
# for each column means one compiled kernel.
# The optional ones: `tokens` and `seq_len_sq` (the sum of the squares of its sequences' lengths)
# are of a micro-batch, `bytes` of a transfer, the others of the GPU when the operation ended:
# `xid` is the number of the last error that its driver has logged since the step before.
# `contains_waits` is 1 for a computation that may contain waits for other ranks which no `wait`
# operation shows.
OP_COLUMNS = (
    OpColumn("step", np.int64, "<i8"),
    OpColumn("rank", np.int32, None),
    OpColumn("dp_rank", np.int32, None),
    OpColumn("stage", np.int16, None),
    OpColumn("optype", np.int16, "u1"),
    OpColumn("seq_id", np.int32, "<i4"),
    OpColumn("mc", np.int16, "<i2"),
    OpColumn("mb_id", np.int32, "<i4"),
    OpColumn("start_ns", np.int64, "<i8"),
    OpColumn("duration_ns", np.int64, "<i8"),
    *(
        OpColumn(name, np.int64, "<i8", is_optional=True)
        for name in (
            *("tokens", "seq_len_sq", "bytes", "sm_clock_mhz", "temperature_c", "power_w"),
            *("xid", "contains_waits"),
        )
    ),
)
OPTIONAL = tuple(column.name for column in OP_COLUMNS if column.is_optional)
TABLE_DTYPES = {column.name: column.stored for column in OP_COLUMNS}
# Without the optional columns; seconds in place of the clocks' nanoseconds.
TRACE_DTYPES: dict[str, type[np.generic]] = {
    **{
        column.name: column.stored
        for column in OP_COLUMNS
        if not column.is_optional and not column.name.endswith("_ns")
    },
    "start_s": np.float64,
    "duration_s": np.float64,
}
# In the order of the wire format (docs/wire-format.md).
REQUIRED_WIRE_COLUMNS = ("step", "optype", "start_ns", "duration_ns", "seq_id", "mc", "mb_id")
_WIRE_TYPES = {column.name: column.wire for column in OP_COLUMNS if column.wire is not None}
WIRE_DTYPES = {name: _WIRE_TYPES[name] for name in (*REQUIRED_WIRE_COLUMNS, *OPTIONAL)}
_NAMES = tuple({**TABLE_DTYPES, **TRACE_DTYPES})


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class OpAttributes:
    """What every form of operations has, as parallel columns: all [ops], not to be written.

    `optype` is a code of the job's `OpTypes`; `mc` is -1 where an operation has no model chunk,
    `mb_id` -1 where it has no micro-batch. The `OPTIONAL` columns are -1 where an operation has no
    value, None where no operation has.
    """

    step: Ints
    optype: NDArray[np.int16]
    seq_id: Integers
    mc: Integers
    mb_id: Integers
    tokens: Ints | None = None
    seq_len_sq: Ints | None = None
    bytes: Ints | None = None
    sm_clock_mhz: Ints | None = None
    temperature_c: Ints | None = None
    power_w: Ints | None = None
    xid: Ints | None = None
    contains_waits: Ints | None = None

    @property
    def num_ops(self) -> int:
        """Number of rows."""
        return int(self.step.size)

    def columns(self) -> dict[str, NDArray[Any]]:
        """The columns that are there, by name, in the order of `OP_COLUMNS`."""
        named = ((name, getattr(self, name, None)) for name in _NAMES)
        return {name: values for name, values in named if values is not None}

    def select(self, rows: NDArray[Any] | slice) -> Self:
        """The same with only some of the rows."""
        return type(self)(**{name: values[rows] for name, values in self.columns().items()})


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class OpColumns(OpAttributes):
    """Operations as one worker recorded them: times are nanoseconds of its own clock."""

    start_ns: Ints
    duration_ns: Ints


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PlacedOps(OpColumns):
    """Operations of many workers, each row with its worker; clocks are the workers' own."""

    rank: Integers
    dp_rank: Integers
    stage: Integers

    def recorded(self) -> OpColumns:
        """The columns of a batch."""
        return OpColumns(**{name: getattr(self, name) for name in WIRE_DTYPES})


WindowState = Literal["open", "complete", "incomplete", "superseded"]

# Kinds of step that are not analysed; None is an ordinary training step.
StepKind = Literal["eval", "checkpoint", "first"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace(OpAttributes):
    """Recorded operations as parallel columns, in any order; held as `TRACE_DTYPES`.

    Shapes: all [ops]. `start_s` counts from any origin that the operations of one step share.

    Raises:
        InvalidTrace: a number is too large for its column.
    """

    dp_rank: Integers
    stage: Integers
    rank: Integers
    start_s: Floats
    duration_s: Floats

    def __post_init__(self) -> None:
        for name, values in self.columns().items():
            dtype = np.dtype(TRACE_DTYPES.get(name, np.int64))
            object.__setattr__(self, name, _as_column(name, values, dtype))

    def of_steps(self, steps: Collection[int]) -> "Trace":
        """The rows of these steps."""
        return self.select(np.isin(self.step, list(steps)))

    def at(self, name: str, rows: Ints) -> NDArray[Any]:
        """One column of only some rows; of a `RunTrace` cheaper than the column."""
        found: NDArray[Any] = getattr(self, name)[rows]
        return found

    def rows_of_type(self, code: int) -> Ints:
        """Numbers of the rows of one operation type, ascending."""
        return np.flatnonzero(self.optype == code)


@dataclass(frozen=True, slots=True)
class SkippedStep:
    """A step that is not analysed, with the reason in words.

    One of a `kind` is left out for what it is, by any worker: nothing that comes later
    changes that.
    """

    step: int
    reason: str
    missing: tuple[int, ...] = ()  # global ranks, ascending
    kind: StepKind | None = None

    def is_missing(self, rank: int) -> bool:
        """Whether this rank did not report the whole step."""
        at = bisect_left(self.missing, rank)
        return at < len(self.missing) and self.missing[at] == rank


WorkerPlace = tuple[int, int]  # dp rank, stage


@dataclass(frozen=True, slots=True)
class PartialSteps:
    """What was recorded of skipped steps that lack operations; app.trace.imputation completes them.

    `steps` are among the window's `skipped`, ascending; `trace`, `origin_ns` [steps] and
    `collectives` as a window has them, but the collectives are those of all of its steps.
    """

    steps: tuple[SkippedStep, ...]
    trace: Trace
    origin_ns: tuple[int, ...] | None = None
    collectives: Collectives | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Imputed:
    """Operations of a window that were not recorded.

    `absent` has the steps from which a worker is absent, so that all of its operations are imputed,
    `ranks` the global ranks of these workers; `lone` [ops, 5] are the others: step, dp rank, stage,
    op type code, seq_id. `ops_by_step` counts all of them. `lacking` are the completed steps as
    they were. `clock_of` names for an absent worker the one by whose clock its times are, where its
    own is not known.
    """

    absent: Mapping[WorkerPlace, tuple[int, ...]]
    lone: NDArray[np.int64]
    ops_by_step: Mapping[int, int]
    ranks: Mapping[WorkerPlace, int]
    lacking: tuple[SkippedStep, ...]
    clock_of: Mapping[WorkerPlace, WorkerPlace] = field(default_factory=dict)

    @property
    def num_ops(self) -> int:
        """Number of imputed operations."""
        return sum(self.ops_by_step.values())

    def ranks_in(self, step: int) -> list[int]:
        """Global ranks, ascending, of the workers that are absent from a step."""
        return sorted(self.ranks[worker] for worker, steps in self.absent.items() if step in steps)

    def only(self, steps: Collection[int]) -> "Imputed":
        """The same for some of the steps."""
        absent = {
            worker: tuple(step for step in of_worker if step in steps)
            for worker, of_worker in self.absent.items()
        }
        return replace(
            self,
            absent={worker: of_worker for worker, of_worker in absent.items() if of_worker},
            lone=self.lone[np.isin(self.lone[:, 0], list(steps))],
            ops_by_step={step: n for step, n in self.ops_by_step.items() if step in steps},
            lacking=tuple(each for each in self.lacking if each.step in steps),
        )


@dataclass(frozen=True, slots=True)
class Window:
    """Successive complete steps of one epoch of a job, and what is known about the others.

    `id` is "{epoch}-{first step}". `steps` are ascending; every worker reported every op of each.
    `hosts` names the host of each (dp rank, stage), as far as known, and `places` the (dp rank,
    stage) of ranks in `missing`, where the recorder knows them. `origin_ns` [steps] is the absolute
    time, by the workers' own clocks, from which the starts of each step's operations count; None
    where times of different steps have nothing to do with each other. `collectives` are those that
    members of tensor-, context- and expert-parallel groups recorded; None without such recordings.
    `partial` are the rows of skipped steps that may be completed; after that, `imputed` says which
    operations of `steps` were not recorded.
    """

    job: Job
    epoch: int
    first_step: int
    steps: tuple[int, ...]
    trace: Trace
    skipped: tuple[SkippedStep, ...] = ()
    state: WindowState = "open"
    revision: int = 1
    hosts: Mapping[tuple[int, int], str] = field(default_factory=dict)
    places: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    origin_ns: tuple[int, ...] | None = None
    collectives: Collectives | None = None
    partial: PartialSteps | None = None
    imputed: Imputed | None = None

    @property
    def id(self) -> str:
        """Id of the window in routes."""
        return f"{self.epoch}-{self.first_step}"

    def only(self, steps: Collection[int]) -> "Window":
        """The window with only these of its steps.

        Raises:
            InvalidRequest: a step was not recorded by every rank.
        """
        if not steps:
            raise InvalidRequest(f"no step of window {self.id} is chosen: name at least one")
        for step in sorted(steps):
            if step not in self.steps:
                raise InvalidRequest(
                    f"step {step} is no complete step of window {self.id}, "
                    f"which has {step_ranges(self.steps)}"
                )
        chosen = tuple(sorted(set(steps)))
        trace = self.trace.of_steps(chosen)
        origin_ns = self.origin_ns and tuple(
            each for step, each in zip(self.steps, self.origin_ns, strict=True) if step in chosen
        )
        collectives = self.collectives and self.collectives.select(
            np.isin(self.collectives.step, chosen)
        )
        return replace(
            self,
            steps=chosen,
            trace=trace,
            skipped=(),
            origin_ns=origin_ns,
            collectives=collectives,
            partial=None,
            imputed=self.imputed and self.imputed.only(chosen),
        )

    @property
    def missing(self) -> list[int]:
        """Global ranks that did not report some step of the window, ascending."""
        return sorted({rank for ranks in self.missing_by_step.values() for rank in ranks})

    @property
    def missing_by_step(self) -> dict[int, tuple[int, ...]]:
        """Global ranks that did not report a step, by step, as far as any is missing.

        A rank that lost a lone operation of a completed step is not among them.
        """
        found = {each.step: each.missing for each in self.skipped if each.missing}
        if self.imputed is not None:
            found |= {
                each.step: tuple(ranks)
                for each in self.imputed.lacking
                if (ranks := self.imputed.ranks_in(each.step))
            }
        return found


def _as_column(name: str, values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    if values.dtype == dtype and values.flags.carray:
        return values
    if values.dtype != dtype and dtype.kind == "i" and values.size:
        limits = np.iinfo(dtype)
        if values.max() > limits.max or values.min() < limits.min:
            raise InvalidTrace(f"column {name} holds {values.max()}: at most {limits.max} is taken")
    # Contiguous and writeable too: anything else would be compiled for once more.
    return np.require(values, dtype, ["C", "A", "W"])


def step_ranges(steps: tuple[int, ...]) -> str:
    """Ascending numbers as ranges: 3-7, 9."""
    found: list[list[int]] = []
    for step in steps:
        if found and step == found[-1][1] + 1:
            found[-1][1] = step
        else:
            found.append([step, step])
    shown = [f"{first}-{last}" if last > first else str(first) for first, last in found[:8]]
    return ", ".join(shown) + (", ..." if len(found) > 8 else "")


_MAX_DIGITS = 18


def parse_step_ranges(named: str, steps: Sequence[int]) -> tuple[int, ...]:
    """The named ones, ascending; of a range those that are among `steps`, a single one anyway.

    Raises:
        InvalidRequest: the text names no step, or a range has none of `steps`.
    """
    found: set[int] = set()
    for part in named.split(","):
        low, high = _parse_range(part.strip())
        inside = {low} if low == high else {step for step in steps if low <= step <= high}
        if not inside:
            raise InvalidRequest(
                f"there is no step from {low} to {high}: choose from {steps[0]} to {steps[-1]}"
            )
        found |= inside
    return tuple(sorted(found))


def _parse_range(part: str) -> tuple[int, int]:
    first, dash, last = part.partition("-")
    low, high = (_parse_step(text, part) for text in (first, last if dash else first))
    if low > high:
        raise InvalidRequest(f"steps {part} end before they begin: write {high}-{low}")
    return low, high


def _parse_step(text: str, part: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
        raise InvalidRequest(f"{part[:40]!r} names no step: write 3 or 5-9, with commas between")
    return int(text)
