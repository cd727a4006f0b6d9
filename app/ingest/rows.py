"""Which rows of a batch can be taken, and why the others cannot."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.ingest.batch import OpColumns
from app.ingest.wire import LAST_INT32, LAST_STEP
from app.trace.job import Parallelism
from app.trace.ops import BUILT_IN, OP_NAMES, OpTypes
from app.trace.window import OPTIONAL

MAX_DURATION_NS = 86_400 * 10**9  # a day
LAST_START_NS = 2**63 - 1 - MAX_DURATION_NS  # so that every end is a number, too
MAX_STEP_JUMP = 1_000_000
MAX_ERRORS = 20
UNKNOWN_OPTYPE = -1
_UNKNOWN = "unknown_optype"
_MAX_NAMES = 30

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class RowError:
    """Why one row was refused."""

    index: int
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Checked:
    """Which rows are taken ([ops] booleans), and the first few reasons for the others."""

    taken: Bools
    errors: list[RowError]


@dataclass(frozen=True, slots=True)
class Rules:
    """What a job's rows must keep to; `last_step` is the newest step known of its run."""

    parallelism: Parallelism
    op_types: OpTypes = BUILT_IN
    last_step: int | None = None

    @property
    def last_step_taken(self) -> int:
        """The newest step that a row may be of."""
        return LAST_STEP if self.last_step is None else self.last_step + MAX_STEP_JUMP

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


def all_kept(columns: OpColumns, rules: Rules) -> bool:
    """Whether every row keeps to every rule, from each column's least and greatest value."""
    if not columns.num_ops:
        return True
    if columns.optype.min() == UNKNOWN_OPTYPE or columns.step.max() > rules.last_step_taken:
        return False
    for name, least, most in rules.bounds():
        values = getattr(columns, name)
        if values is not None and (values.min() < least or values.max() > most):
            return False
    return True


def check(columns: OpColumns, rules: Rules, name_of: Callable[[int], str]) -> Checked:
    """The rows that keep to every rule; each other one has the first rule that it breaks.

    `name_of` a row is the name of its operation type as it came.
    """
    kinds = _breaches(columns, rules)
    broken = np.stack([bad for bad, _, _ in kinds])
    taken: Bools = np.logical_not(broken.any(axis=0))
    errors = []
    for index in np.flatnonzero(~taken)[:MAX_ERRORS].tolist():
        _, code, message = kinds[int(broken[:, index].argmax())]
        if code == _UNKNOWN:
            message = _not_known(name_of(index), rules.op_types)
        errors.append(RowError(index, code, message))
    return Checked(taken, errors)


def _breaches(columns: OpColumns, rules: Rules) -> list[tuple[Bools, str, str]]:
    """Which rows break a rule, its code, and what to say; the first that a row breaks counts."""
    return [
        (columns.optype == UNKNOWN_OPTYPE, _UNKNOWN, ""),
        *(
            _outside(getattr(columns, name), name, least, most)
            for name, least, most in rules.bounds()
            if getattr(columns, name) is not None
        ),
        (columns.step > rules.last_step_taken, "step_jump", jump_message(rules)),
    ]


def jump_message(rules: Rules) -> str:
    """Why a step is too far ahead."""
    return (
        f"step lies more than {MAX_STEP_JUMP} above {rules.last_step}, the newest of this run: "
        "register a new run of the job if it is meant"
    )


def _outside(values: NDArray[Any], name: str, least: int, most: int) -> tuple[Bools, str, str]:
    bad = (values < least) | (values > most)
    return bad, f"{name}_out_of_range", f"{name} must lie in {least}..{most}"


def _not_known(name: str, op_types: OpTypes) -> str:
    known = [*(spec.name for spec in op_types.user), *OP_NAMES]
    more = ", ..." if len(known) > _MAX_NAMES else ""
    return (
        f"operation type {name!r} is not known: register it in the job's op_types, or use one of "
        f"{', '.join(known[:_MAX_NAMES])}{more}"
    )
