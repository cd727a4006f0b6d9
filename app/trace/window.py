"""A window: successive training steps of one job, as columns with one row per operation."""

from bisect import bisect_left
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from app.errors import InvalidRequest, InvalidTrace
from app.trace.job import Job

if TYPE_CHECKING:
    from app.trace.collectives import Collectives

Ints = NDArray[np.int64]
Integers = NDArray[np.signedinteger[Any]]  # of any width
Floats = NDArray[np.float64]

WindowState = Literal["open", "complete", "incomplete", "superseded"]

# What a step can be beside an ordinary training step, which is why it is not analysed.
StepKind = Literal["eval", "checkpoint", "first"]


# Held as narrow as they can be: a large job's window has tens of millions of rows, and one
# type for each column means one compiled kernel.
TRACE_DTYPES: dict[str, type[np.generic]] = {
    "step": np.int64,
    "dp_rank": np.int32,
    "stage": np.int16,
    "rank": np.int32,
    "optype": np.int16,
    "seq_id": np.int32,
    "mc": np.int16,
    "mb_id": np.int32,
    "start_s": np.float64,
    "duration_s": np.float64,
}

# What a client may say of an operation beside; -1 where it has not, and None where nobody has.
# `tokens` and `seq_len_sq` (the sum of the squares of its sequences' lengths) are of a
# micro-batch, `bytes` of a transfer, the others of the GPU when the operation ended: `xid` is the
# number of the last error that its driver has logged since the step before. `contains_waits` is 1
# for a computation that may contain waits for other ranks which no `wait` operation shows.
OPTIONAL = (
    *("tokens", "seq_len_sq", "bytes"),
    *("sm_clock_mhz", "temperature_c", "power_w", "xid"),
    "contains_waits",
)


@dataclass(frozen=True, slots=True)
class Trace:
    """Recorded operations as parallel columns, in any order; held as `TRACE_DTYPES`.

    Shapes: all [ops]. `optype` is a code of the job's `OpTypes`. `start_s` counts from any
    origin that the operations of one step share; `mc` is -1 where an operation has no model
    chunk, `mb_id` -1 where it has no micro-batch.

    Raises:
        InvalidTrace: a number is too large for its column.
    """

    step: Integers
    dp_rank: Integers
    stage: Integers
    rank: Integers
    optype: Integers
    seq_id: Integers
    mc: Integers
    mb_id: Integers
    start_s: Floats
    duration_s: Floats
    tokens: Ints | None = None
    seq_len_sq: Ints | None = None
    bytes: Ints | None = None
    sm_clock_mhz: Ints | None = None
    temperature_c: Ints | None = None
    power_w: Ints | None = None
    xid: Ints | None = None
    contains_waits: Ints | None = None

    def __post_init__(self) -> None:
        for name, dtype in TRACE_DTYPES.items():
            object.__setattr__(self, name, _held(name, getattr(self, name), np.dtype(dtype)))
        for name in OPTIONAL:
            if (values := getattr(self, name)) is not None:
                object.__setattr__(self, name, _held(name, values, np.dtype(np.int64)))

    @property
    def num_ops(self) -> int:
        """Number of rows."""
        return int(self.step.size)

    def select(self, rows: NDArray[np.bool_] | Ints) -> "Trace":
        """The trace with only some of its rows."""
        named = ((each.name, getattr(self, each.name)) for each in fields(self))
        chosen: dict[str, Any] = {
            name: all_ if all_ is None else all_[rows] for name, all_ in named
        }
        return Trace(**chosen)


@dataclass(frozen=True, slots=True)
class SkippedStep:
    """A step that is not analysed, with the reason in words; nothing is guessed in its place.

    One of a `kind` is left out for what it is, whoever reported it: nothing that comes later
    changes that.
    """

    step: int
    reason: str
    missing: tuple[int, ...] = ()  # global ranks, ascending
    kind: StepKind | None = None

    def lacks(self, rank: int) -> bool:
        """Whether it is this rank that did not report all of it."""
        at = bisect_left(self.missing, rank)
        return at < len(self.missing) and self.missing[at] == rank


@dataclass(frozen=True, slots=True)
class Window:
    """Successive complete steps of one epoch of a job, and what is known about the others.

    `id` is "{epoch}-{first step}". `steps` are ascending; every worker reported every op of each.
    `hosts` names the host of each (dp rank, stage), as far as known, and `places` the (dp rank,
    stage) of ranks in `missing`, where the recorder knows them. `origin_ns` [steps] is the absolute
    time, by the workers' own clocks, from which the starts of each step's operations count; None
    where times of different steps have nothing to do with each other. `collectives` are those that
    members of tensor-, context- and expert-parallel groups recorded; None where nobody did.
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
    collectives: "Collectives | None" = None

    @property
    def id(self) -> str:
        """Name of the window in routes."""
        return f"{self.epoch}-{self.first_step}"

    def only(self, steps: Collection[int]) -> "Window":
        """The window as if it had these of its steps and no others, skipped ones left out.

        Raises:
            InvalidRequest: one of them was not recorded, or not by everybody.
        """
        if not steps:
            raise InvalidRequest(f"no step of window {self.id} is chosen: name at least one")
        for step in sorted(steps):
            if step not in self.steps:
                raise InvalidRequest(
                    f"step {step} is no complete step of window {self.id}, "
                    f"which has {ranges(self.steps)}"
                )
        chosen = tuple(sorted(set(steps)))
        trace = self.trace.select(np.isin(self.trace.step, chosen))
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
        )

    @property
    def missing(self) -> list[int]:
        """Global ranks that did not report some step of the window, ascending."""
        return sorted({rank for step in self.skipped for rank in step.missing})


def _held(name: str, values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    if values.dtype != dtype and dtype.kind == "i" and values.size:
        limits = np.iinfo(dtype)
        if values.max() > limits.max or values.min() < limits.min:
            raise InvalidTrace(f"column {name} holds {values.max()}: at most {limits.max} is taken")
    # Contiguous and writeable too: anything else would be compiled for once more.
    return np.require(values, dtype, ["C", "A", "W"])


def ranges(steps: tuple[int, ...]) -> str:
    """Ascending numbers as people write them: 3-7, 9."""
    found: list[list[int]] = []
    for step in steps:
        if found and step == found[-1][1] + 1:
            found[-1][1] = step
        else:
            found.append([step, step])
    shown = [f"{first}-{last}" if last > first else str(first) for first, last in found[:8]]
    return ", ".join(shown) + (", ..." if len(found) > 8 else "")
