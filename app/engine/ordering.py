"""Units of operations, each after those that it waits for (Kahn's algorithm)."""

from dataclasses import dataclass

import numpy as np

from app.engine.compiled import kernel
from app.trace.window import Ints


@dataclass(frozen=True, slots=True)
class Units:
    """Rows unit by unit; `unplaced` wait for each other or for such, none if all is well.

    `unit_of` [rows] numbers units as they were given.
    """

    unit_ptr: Ints
    unit_ops: Ints
    unit_of: Ints
    unplaced: Ints


def in_topological_order(
    groups: list[list[int]], num_rows: int, pred_ptr: Ints, preds: Ints
) -> Units:
    """Groups and the rows that are in none, each after those that it waits for."""
    unit_of = np.full(num_rows, -1, np.int64)
    for unit, rows in enumerate(groups):
        unit_of[rows] = unit
    alone = np.flatnonzero(unit_of < 0)
    unit_of[alone] = np.arange(len(groups), len(groups) + alone.size)
    num_units = len(groups) + alone.size
    members = np.argsort(unit_of, kind="stable")
    member_ptr = np.concatenate(([0], np.cumsum(np.bincount(unit_of, minlength=num_units))))
    order = _order(unit_of, members, member_ptr, pred_ptr, preds)
    done = np.zeros(num_units, np.bool_)
    done[order] = True
    sizes = np.diff(member_ptr)[order]
    unit_ptr = np.concatenate(([0], np.cumsum(sizes)))
    unit_ops = np.empty(num_rows, np.int64)
    _gather(order, members, member_ptr, unit_ops)
    return Units(unit_ptr, unit_ops, unit_of, np.flatnonzero(~done[unit_of]))


def a_circle(units: Units, pred_ptr: Ints, preds: Ints) -> list[int]:
    """Rows of which each waits for the next, or ends together with one that does; the last for
    the first."""
    unplaced = set(units.unplaced.tolist())
    walked: list[int] = []
    row = min(unplaced)
    seen: set[int] = set()
    while units.unit_of[row] not in seen:
        seen.add(int(units.unit_of[row]))
        walked.append(row)
        together = [each for each in unplaced if units.unit_of[each] == units.unit_of[row]]
        waits_for = [p for each in together for p in preds[pred_ptr[each] : pred_ptr[each + 1]]]
        row = next(int(each) for each in waits_for if int(each) in unplaced)
    units_walked = [int(units.unit_of[each]) for each in walked]
    return walked[units_walked.index(int(units.unit_of[row])) :]


@kernel
def _order(unit_of, members, member_ptr, pred_ptr, preds):  # type: ignore[no-untyped-def]
    num_units = member_ptr.size - 1
    missing = np.zeros(num_units, np.int64)
    num_followers = np.zeros(unit_of.size + 1, np.int64)
    for row in range(unit_of.size):
        missing[unit_of[row]] += pred_ptr[row + 1] - pred_ptr[row]
        for edge in range(pred_ptr[row], pred_ptr[row + 1]):
            num_followers[preds[edge] + 1] += 1
    follower_ptr = np.cumsum(num_followers)
    filled = follower_ptr.copy()
    followers = np.empty(preds.size, np.int64)
    for row in range(unit_of.size):
        for edge in range(pred_ptr[row], pred_ptr[row + 1]):
            followers[filled[preds[edge]]] = unit_of[row]
            filled[preds[edge]] += 1
    ready = np.empty(num_units, np.int64)
    found = 0
    for unit in range(num_units):
        if missing[unit] == 0:
            ready[found] = unit
            found += 1
    walked = 0
    while walked < found:
        unit = ready[walked]
        walked += 1
        for member in range(member_ptr[unit], member_ptr[unit + 1]):
            row = members[member]
            for edge in range(follower_ptr[row], follower_ptr[row + 1]):
                follower = followers[edge]
                missing[follower] -= 1
                if missing[follower] == 0:
                    ready[found] = follower
                    found += 1
    return ready[:found]


@kernel
def _gather(order, members, member_ptr, rows):  # type: ignore[no-untyped-def]
    filled = 0
    for unit in order:
        for member in range(member_ptr[unit], member_ptr[unit + 1]):
            rows[filled] = members[member]
            filled += 1
