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
    """A column's type in tables and traces, and in batches; `wire` is None where these lack it."""

    name: str
    stored: type[np.generic]
    wire: str | None


# `tokens` and `seq_len_sq` (the sum of the squares of its sequences' lengths) belong to a
# micro-batch, `bytes` to a transfer, the others to the GPU at the end of the operation: `xid` is
# the number of the last error that its driver has logged since the step before. `contains_waits`
# is 1 for a computation that may contain waits for other ranks without a `wait` operation.
# `launch_lag_us` is how long after its launch by the host an operation began on the GPU.
OPTIONAL = (
    *("tokens", "seq_len_sq", "bytes", "sm_clock_mhz", "temperature_c", "power_w"),
    *("xid", "contains_waits", "launch_lag_us"),
)
# Types are as narrow as possible, since a large job's window has tens of millions of rows. Every
# column has one type only, so that kernels are compiled once.
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
    *(OpColumn(name, np.int64, "<i8") for name in OPTIONAL),
)
TABLE_DTYPES = {column.name: column.stored for column in OP_COLUMNS}
# Without the optional columns; seconds in place of the clocks' nanoseconds.
TRACE_DTYPES: dict[str, type[np.generic]] = {
    **{
        name: dtype
        for name, dtype in TABLE_DTYPES.items()
        if name not in OPTIONAL and not name.endswith("_ns")
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
    """The columns of every table of operations: all [ops], read-only.

    `optype` is a code of the job's `OpTypes`; `mc` is -1 for an operation without a model chunk,
    `mb_id` -1 for one without a micro-batch. In the `OPTIONAL` columns -1 is no value; a column
    without any value is None.
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
    launch_lag_us: Ints | None = None

    @property
    def num_ops(self) -> int:
        """Number of rows."""
        return int(self.step.size)

    def columns(self) -> dict[str, NDArray[Any]]:
        """The columns that are not None, by name, in the order of `OP_COLUMNS`."""
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
        """One column of only some rows; a `RunTrace` does not expand the whole column for it."""
        values: NDArray[Any] = getattr(self, name)[rows]
        return values

    def rows_of_type(self, code: int) -> Ints:
        """Numbers of the rows of one operation type, ascending."""
        return np.flatnonzero(self.optype == code)


@dataclass(frozen=True, slots=True)
class SkippedStep:
    """A step that is not analysed, with the reason in words.

    A step of a `kind` is no training step, as a worker reported: operations that arrive later do
    not change that. `sent` are those of the `missing` ranks that sent a part of it, as far as
    app.trace.imputation knows.
    """

    step: int
    reason: str
    missing: tuple[int, ...] = ()  # global ranks, ascending
    kind: StepKind | None = None
    sent: tuple[int, ...] = ()

    def is_missing(self, rank: int) -> bool:
        """Whether this rank did not report the whole step."""
        at = bisect_left(self.missing, rank)
        return at < len(self.missing) and self.missing[at] == rank


WorkerPlace = tuple[int, int]  # dp rank, stage


@dataclass(frozen=True, slots=True)
class PartialSteps:
    """The recorded part of skipped steps with lost operations, for app.trace.imputation.

    `steps` are some of the window's `skipped`, ascending. `trace` and `origin_ns` [steps] are of
    these steps, as in a window; `collectives` are of these and of the window's complete steps.
    """

    steps: tuple[SkippedStep, ...]
    trace: Trace
    origin_ns: tuple[int, ...] | None = None
    collectives: Collectives | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Imputed:
    """The operations of a window that were imputed, since they were not recorded.

    `absent`: the steps of which a worker has no operation of its own, and `ranks`, the global ranks
    of these workers. `lone` [ops, 5]: single operations of other workers, as step, dp rank, stage,
    op type code and seq_id. `ops_by_step`: the number of imputed operations. `lacking`: the
    completed steps as they were skipped. `clock_of`: for absent workers with an unknown clock, the
    worker by whose clock their times are.
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

    def absent_ranks(self, step: int) -> tuple[int, ...]:
        """Global ranks, ascending, of the workers that are absent from a step."""
        absent = (self.ranks[worker] for worker, steps in self.absent.items() if step in steps)
        return tuple(sorted(absent))

    def only(self, steps: Collection[int]) -> "Imputed":
        """The same for some of the steps."""
        absent = {
            worker: chosen
            for worker, absent_steps in self.absent.items()
            if (chosen := tuple(step for step in absent_steps if step in steps))
        }
        return replace(
            self,
            absent=absent,
            lone=self.lone[np.isin(self.lone[:, 0], list(steps))],
            ops_by_step={step: n for step, n in self.ops_by_step.items() if step in steps},
            lacking=tuple(skip for skip in self.lacking if skip.step in steps),
        )


@dataclass(frozen=True, slots=True)
class Window:
    """Successive complete steps of one epoch of a job, and the steps among them that were skipped.

    `id` is "{epoch}-{first step}". `steps` are ascending; every worker reported every op of each.
    `hosts` maps (dp rank, stage) to the name of its host, `places` maps ranks in `missing` to their
    (dp rank, stage), both as far as known. `origin_ns` [steps] is the absolute time, by the
    workers' own clocks, from which the starts of a step's operations count; None where the times of
    different steps are unrelated. `collectives` were recorded by the members of tensor-, context-
    and expert-parallel groups; None without such recordings. `partial` are the rows of skipped
    steps before imputation; after it, `imputed` are the operations of `steps` without a recording.
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
        """The window with only these steps; raises InvalidRequest if a rank did not record one."""
        if not steps:
            raise InvalidRequest(f"no step of window {self.id} is chosen: name at least one")
        for step in sorted(steps):
            if step not in self.steps:
                raise InvalidRequest(
                    f"step {step} is no complete step of window {self.id}, "
                    f"which has {step_ranges(self.steps)}"
                )
        chosen = tuple(sorted(set(steps)))
        table = self.collectives
        origin_ns = self.origin_ns and tuple(
            ns for step, ns in zip(self.steps, self.origin_ns, strict=True) if step in chosen
        )
        return replace(
            self,
            steps=chosen,
            trace=self.trace.of_steps(chosen),
            skipped=(),
            origin_ns=origin_ns,
            collectives=table and table.select(np.isin(table.step, chosen)),
            partial=None,
            imputed=self.imputed and self.imputed.only(chosen),
        )

    @property
    def missing(self) -> list[int]:
        """Global ranks that did not report some step of the window, ascending."""
        return sorted({rank for ranks in self.missing_by_step.values() for rank in ranks})

    @property
    def missing_by_step(self) -> dict[int, tuple[int, ...]]:
        """For every step that some ranks did not report, these global ranks.

        A rank that lost single operations of a completed step is not among them.
        """
        missing = {skip.step: skip.missing for skip in self.skipped if skip.missing}
        if self.imputed is not None:
            for skip in self.imputed.lacking:
                if ranks := self.imputed.absent_ranks(skip.step):
                    missing[skip.step] = ranks
        return missing

    @property
    def silent_by_step(self) -> dict[int, tuple[int, ...]]:
        """The same with only the ranks of which no row of the step came."""
        lacking = () if self.imputed is None else self.imputed.lacking
        sent = {skip.step: skip.sent for skip in (*self.skipped, *lacking)}
        return {
            step: tuple(rank for rank in ranks if rank not in sent[step])
            for step, ranks in self.missing_by_step.items()
        }


def _as_column(name: str, values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    if values.dtype == dtype and values.flags.carray:
        return values
    if values.dtype != dtype and dtype.kind == "i" and values.size:
        limits = np.iinfo(dtype)
        if values.max() > limits.max or values.min() < limits.min:
            raise InvalidTrace(f"column {name} holds {values.max()}: at most {limits.max} is taken")
    # Kernels would be compiled again for arrays that are not contiguous or not writeable.
    return np.require(values, dtype, ["C", "A", "W"])


def step_ranges(steps: tuple[int, ...]) -> str:
    """Ascending numbers as ranges: 3-7, 9."""
    ranges: list[list[int]] = []
    for step in steps:
        if ranges and step == ranges[-1][1] + 1:
            ranges[-1][1] = step
        else:
            ranges.append([step, step])
    shown = [f"{first}-{last}" if last > first else str(first) for first, last in ranges[:8]]
    return ", ".join(shown) + (", ..." if len(ranges) > 8 else "")


_MAX_DIGITS = 18


def parse_step_ranges(text: str, steps: Sequence[int]) -> tuple[int, ...]:
    """The steps in a text such as "3, 5-9", ascending.

    A range stands for the members of `steps` within it; a single number need not be in `steps`.

    Raises:
        InvalidRequest: a part is no number or range, or a range has none of `steps`.
    """
    chosen: set[int] = set()
    for part in text.split(","):
        low, high = _parse_range(part.strip())
        inside = {low} if low == high else {step for step in steps if low <= step <= high}
        if not inside:
            raise InvalidRequest(
                f"there is no step from {low} to {high}: choose from {steps[0]} to {steps[-1]}"
            )
        chosen |= inside
    return tuple(sorted(chosen))


def _parse_range(part: str) -> tuple[int, int]:
    first, dash, last = part.partition("-")
    ends = first, last if dash else first
    if not all(end.isascii() and end.isdecimal() and len(end) <= _MAX_DIGITS for end in ends):
        raise InvalidRequest(f"{part[:40]!r} names no step: write 3 or 5-9, with commas between")
    low, high = map(int, ends)
    if low > high:
        raise InvalidRequest(f"steps {part} end before they begin: write {high}-{low}")
    return low, high
