"""Which rows of a batch can be taken, and why the others cannot."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.ingest.batch import OpColumns
from app.ingest.wire import LAST_INT32, LAST_STEP
from app.trace.job import Parallelism
from app.trace.ops import OP_NAMES, OpTypes

MAX_DURATION_NS = 86_400 * 10**9  # a day
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


def check(
    columns: OpColumns, parallelism: Parallelism, op_types: OpTypes, name_of: Callable[[int], str]
) -> Checked:
    """The rows that keep to every rule; each other one has the first rule that it breaks.

    `name_of` a row is the name of its operation type as it came.
    """
    rules = _rules(columns, parallelism)
    broken = np.stack([bad for bad, _, _ in rules])
    taken: Bools = np.logical_not(broken.any(axis=0))
    errors = []
    for index in np.flatnonzero(~taken)[:MAX_ERRORS].tolist():
        _, code, message = rules[int(broken[:, index].argmax())]
        if code == _UNKNOWN:
            message = _not_known(name_of(index), op_types)
        errors.append(RowError(index, code, message))
    return Checked(taken, errors)


def _rules(columns: OpColumns, parallelism: Parallelism) -> list[tuple[Bools, str, str]]:
    last_chunk = min(parallelism.vpp_size, 2**15) - 1
    return [
        (columns.optype == UNKNOWN_OPTYPE, _UNKNOWN, ""),
        _outside(columns.step, "step", 0, LAST_STEP),
        _outside(columns.start_ns, "start_ns", 0, 2**63 - 1),
        _outside(columns.duration_ns, "duration_ns", 0, MAX_DURATION_NS),
        _outside(columns.seq_id, "seq_id", 0, LAST_INT32),
        _outside(columns.mc, "mc", -1, last_chunk),
        _outside(columns.mb_id, "mb_id", -1, LAST_INT32),
    ]


def _outside(values: NDArray[np.int64], name: str, least: int, most: int) -> tuple[Bools, str, str]:
    bad = (values < least) | (values > most)
    return bad, f"{name}_out_of_range", f"{name} must lie in {least}..{most}"


def _not_known(name: str, op_types: OpTypes) -> str:
    known = [*(spec.name for spec in op_types.user), *OP_NAMES]
    more = ", ..." if len(known) > _MAX_NAMES else ""
    return (
        f"operation type {name!r} is not known: register it in the job's op_types, or use one of "
        f"{', '.join(known[:_MAX_NAMES])}{more}"
    )
