"""Which one of its type in its step is an operation, and of which micro-batch?"""

import numpy as np

from app.errors import InvalidTrace
from app.trace.ops import OP_CODES, OpTypes
from app.trace.readers.merging import Rows
from app.trace.window import Ints

NUMBERED = [
    OP_CODES[name]
    for name in (
        "forward-compute",
        "backward-compute",
        "backward-input-compute",
        "backward-weight-compute",
    )
]
_TIMES = ("optype", "mc", "mb_id", "start_ns", "duration_ns")


def in_order(rows: Rows, *, holds_seconds: bool) -> Rows:
    """The rows of one rank and step by their starts, a copy."""
    starts = rows["start_ns"].view(np.float64) if holds_seconds else rows["start_ns"]
    return rows[np.argsort(starts, kind="stable")]


def number(rows: Rows, op_types: OpTypes) -> None:
    """Give rows in order of start their `seq_id`, unless the files have numbered them.

    Raises:
        InvalidTrace: an operation is there twice.
    """
    if (rows["seq_id"] < 0).any():
        _refuse_repeated(rows, op_types)
        rows["seq_id"] = _count_within(rows["optype"].astype(np.int64))
        return
    key = np.sort(rows["optype"].astype(np.int64) << 32 | rows["seq_id"])
    again = np.flatnonzero(key[1:] == key[:-1])
    if again.size:
        _refuse(op_types.name(int(key[again[0]] >> 32)), again.size)


def number_microbatches(rows: Rows) -> None:
    """Give computations without a micro-batch one, by their order within their model chunk."""
    is_numbered = np.isin(rows["optype"], NUMBERED) & (rows["mb_id"] < 0)
    key = rows["optype"].astype(np.int64) << 16 | (rows["mc"] + 1)
    rows["mb_id"] = np.where(is_numbered, _count_within(key), rows["mb_id"])


def _refuse_repeated(rows: Rows, op_types: OpTypes) -> None:
    # Nothing on a worker happens twice at the same time, in the same length. Where it takes no
    # time at all, the clock may have been too coarse to tell two apart.
    ordered = rows[np.lexsort([rows[name] for name in _TIMES])]
    same = ordered["duration_ns"][1:] > 0
    for name in _TIMES:
        same &= ordered[name][1:] == ordered[name][:-1]
    if same.any():
        _refuse(op_types.name(int(ordered["optype"][1:][same][0])), int(same.sum()))


def _refuse(name: str, count: int) -> None:
    are = "operation is" if count == 1 else "operations are"
    raise InvalidTrace(f"{count:,} {are} there twice, {name} first: give each file once")


def _count_within(key: Ints) -> Ints:
    """[rows], how many earlier rows have the same key."""
    order = np.argsort(key, kind="stable")
    begins = np.flatnonzero(np.diff(key[order], prepend=key[order[0]] - 1))
    lengths = np.diff(begins, append=key.size)
    found = np.empty(key.size, np.int64)
    found[order] = np.arange(key.size) - np.repeat(begins, lengths)
    return found
