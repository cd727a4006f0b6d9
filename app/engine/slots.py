"""Where a replay keeps ends: only those still waited for, so that they stay in the cache.

A step of 6,000 operations in 2,048 lanes has 98 MB of ends; those of which somebody may still
ask at any one time are a few hundred rows.
"""

from dataclasses import dataclass

import numpy as np

from app.engine.compiled import kernel
from app.trace.window import Ints


@dataclass(frozen=True, slots=True)
class Slots:
    """`of_row` [rows], and how many there are."""

    of_row: Ints
    num_slots: int


def slots(unit_ptr: Ints, unit_ops: Ints, pred_ptr: Ints, preds: Ints) -> Slots:
    """A slot is free again once the last row that waits for its row has been replayed."""
    of_row, num_slots = _allot(unit_ptr, unit_ops, pred_ptr, preds)
    return Slots(of_row, int(num_slots))


@kernel
def _allot(unit_ptr, unit_ops, pred_ptr, preds):  # type: ignore[no-untyped-def]
    num_rows = unit_ops.size
    last_user = np.full(num_rows, -1, np.int64)
    for unit in range(unit_ptr.size - 1):
        for member in range(unit_ptr[unit], unit_ptr[unit + 1]):
            row = unit_ops[member]
            for edge in range(pred_ptr[row], pred_ptr[row + 1]):
                last_user[preds[edge]] = unit
    of_row = np.full(num_rows, -1, np.int64)
    free = np.empty(num_rows, np.int64)
    num_free, num_slots = 0, 0
    for unit in range(unit_ptr.size - 1):
        # Slots that this unit frees are not for itself: it reads them while it writes its own.
        for member in range(unit_ptr[unit], unit_ptr[unit + 1]):
            row = unit_ops[member]
            if num_free:
                num_free -= 1
                of_row[row] = free[num_free]
            else:
                of_row[row] = num_slots
                num_slots += 1
        for member in range(unit_ptr[unit], unit_ptr[unit + 1]):
            row = unit_ops[member]
            for edge in range(pred_ptr[row], pred_ptr[row + 1]):
                before = preds[edge]
                if last_user[before] == unit:
                    free[num_free] = of_row[before]
                    num_free += 1
                    last_user[before] = -2
            if last_user[row] == -1:
                free[num_free] = of_row[row]
                num_free += 1
    return of_row, num_slots
