"""Dependency graph of one replica's step, as units in topological order.

A unit is a set of operations that meet and end together, each after its own transfer: a p2p
pair, one collective over stages, or a single operation. The rules (app/engine/rules) give the
edges; units are sorted by Kahn's algorithm. (docs/replay.md)

Replays keep the end of an operation only until its last successor is done, so that live ends fit
the cache: of 98 MB of ends (6,000 operations in 2,048 lanes) a few hundred rows are live at a time
(`RowSlots`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from app.engine.grid import Grid
from app.engine.kernels import kernel
from app.engine.rules.overlap import Milestones
from app.engine.rules.pipeline import edges_and_groups
from app.engine.template import Edge, Template
from app.errors import InvalidTrace
from app.trace.ops import Axis
from app.trace.window import Floats, Ints


@dataclass(frozen=True, slots=True)
class RowSlots:
    """Slot of each row, `of_row` [rows], and the number of slots.

    A slot is free again after the last successor of its row.
    """

    of_row: Ints
    num_slots: int


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
        # A unit cannot use the slots that it frees: it reads them while it writes its own.
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


@dataclass(frozen=True, slots=True)
class Units:
    """Rows unit by unit; `unplaced` rows are in or behind a cycle.

    `unit_of` [rows] numbers units as they were given.
    """

    unit_ptr: Ints
    unit_ops: Ints
    unit_of: Ints
    unplaced: Ints


def in_topological_order(
    groups: list[list[int]], num_rows: int, pred_ptr: Ints, preds: Ints
) -> Units:
    """Units in topological order: the groups, and each other row as a unit of its own."""
    unit_of = np.full(num_rows, -1, np.int64)
    unit_of[_flat(groups)] = np.repeat(np.arange(len(groups)), [len(rows) for rows in groups])
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
    place = np.arange(unit_ptr[-1]) - np.repeat(unit_ptr[:-1], sizes)
    unit_ops = members[np.repeat(member_ptr[order], sizes) + place]
    return Units(unit_ptr, unit_ops, unit_of, np.flatnonzero(~done[unit_of]))


def find_cycle(units: Units, pred_ptr: Ints, preds: Ints) -> list[int]:
    """Rows of which each waits for the next, or ends together with one that does; the last row
    waits for the first."""
    unplaced = set(units.unplaced.tolist())
    walked: list[int] = []
    row = min(unplaced)
    seen: set[int] = set()
    while units.unit_of[row] not in seen:
        seen.add(int(units.unit_of[row]))
        walked.append(row)
        members = [other for other in unplaced if units.unit_of[other] == units.unit_of[row]]
        waits_for = [
            int(before)
            for member in members
            for before in preds[pred_ptr[member] : pred_ptr[member + 1]]
        ]
        row = next(before for before in waits_for if before in unplaced)
    return walked[units.unit_of[walked].tolist().index(units.unit_of[row]) :]


@kernel
def _order(unit_of, members, member_ptr, pred_ptr, preds):  # type: ignore[no-untyped-def]
    num_units = member_ptr.size - 1
    missing = np.zeros(num_units, np.int64)
    follower_ptr = np.zeros(unit_of.size + 1, np.int64)
    for row in range(unit_of.size):
        missing[unit_of[row]] += pred_ptr[row + 1] - pred_ptr[row]
        for edge in range(pred_ptr[row], pred_ptr[row + 1]):
            follower_ptr[preds[edge] + 1] += 1
    for row in range(unit_of.size):
        follower_ptr[row + 1] += follower_ptr[row]
    filled = follower_ptr.copy()
    followers = np.empty(preds.size, np.int64)
    for row in range(unit_of.size):
        for edge in range(pred_ptr[row], pred_ptr[row + 1]):
            followers[filled[preds[edge]]] = unit_of[row]
            filled[preds[edge]] += 1
    ready = np.empty(num_units, np.int64)
    num_ready = 0
    for unit in range(num_units):
        if missing[unit] == 0:
            ready[num_ready] = unit
            num_ready += 1
    walked = 0
    while walked < num_ready:
        unit = ready[walked]
        walked += 1
        for member in range(member_ptr[unit], member_ptr[unit + 1]):
            row = members[member]
            for edge in range(follower_ptr[row], follower_ptr[row + 1]):
                follower = followers[edge]
                missing[follower] -= 1
                if missing[follower] == 0:
                    ready[num_ready] = follower
                    num_ready += 1
    return ready[:num_ready]


NO_PEERS, ALL_DP_RANKS, EP_BLOCK = range(3)
_MEETS = {
    Axis.DP: ALL_DP_RANKS,
    Axis.DP_AND_STAGES: ALL_DP_RANKS,
    Axis.EP: EP_BLOCK,
}


@dataclass(frozen=True)
class StepGraph:
    """Dependencies in compressed sparse row form.

    Rows are the template's operations, and after them milestones: row `num_ops + m` ends when the
    share `milestone_share[m]` of operation `milestone_of[m]` has run, as lane `milestone_lane[m]`
    recorded it. Where the share is 0 or less it is no moment of the operation, but part of a
    `Resumption`, and its lane is -1. Unit u has the rows
    `unit_ops[unit_ptr[u] : unit_ptr[u + 1]]`; every row that they wait for is in a unit of
    smaller number. Row v waits for `preds[pred_ptr[v] : pred_ptr[v + 1]]`.

    Shapes: `unit_ptr` [units + 1], `unit_ops` [rows], `meets` [units] (which dp ranks meet),
    `pred_ptr` [rows + 1], `preds` [edges], `is_last` [rows].
    """

    num_ops: int
    unit_ptr: Ints
    unit_ops: Ints
    meets: NDArray[np.int8]
    pred_ptr: Ints
    preds: Ints
    is_last: NDArray[np.bool_]  # the step ends with the latest of these
    milestone_of: Ints
    milestone_share: Floats
    milestone_lane: Ints

    @property
    def num_rows(self) -> int:
        """Number of operations and milestones."""
        return int(self.unit_ops.size)

    def shared_units(self, chosen: NDArray[np.bool_]) -> Ints:
        """Units of several workers that have one of the chosen operations [ops] first."""
        lead, sizes = self.unit_ops[self.unit_ptr[:-1]], np.diff(self.unit_ptr)
        is_chosen = np.append(chosen, np.zeros(self.num_rows - self.num_ops, np.bool_))
        return np.flatnonzero(((sizes > 1) | (self.meets != NO_PEERS)) & is_chosen[lead])

    @cached_property
    def slots(self) -> RowSlots:
        """Slots of the live ends in a replay."""
        return RowSlots(*_allot(self.unit_ptr, self.unit_ops, self.pred_ptr, self.preds))


def build_graph(grid: Grid) -> StepGraph:
    """The graph of one replica's step in the grid.

    Raises:
        InvalidTrace: operations wait in a circle, or sends and recvs do not pair.
    """
    template = grid.template
    milestones = Milestones(template.num_ops)
    edges, groups = edges_and_groups(grid, milestones)
    num_rows = template.num_ops + len(milestones.of_op)
    pred_ptr, preds = _predecessors(edges, milestones, num_rows)
    units = in_topological_order(groups, num_rows, pred_ptr, preds)
    if units.unplaced.size:
        _refuse_cycle(template, find_cycle(units, pred_ptr, preds))
    of_op = np.asarray(milestones.of_op, np.int64)
    return StepGraph(
        num_ops=template.num_ops,
        unit_ptr=units.unit_ptr,
        unit_ops=units.unit_ops,
        meets=_meets(template, of_op)[units.unit_ops[units.unit_ptr[:-1]]],
        pred_ptr=pred_ptr,
        preds=preds,
        is_last=_last_ops(template, num_rows),
        milestone_of=of_op,
        milestone_share=np.asarray(milestones.share, np.float64),
        milestone_lane=np.asarray(milestones.lane, np.int64),
    )


@dataclass(frozen=True, slots=True)
class Resumption:
    """Operation `op` waits for the end of `awaited` when a `share` of its own time has passed.

    `launches` are the milestones (positions) inside the operation that come after that.
    """

    op: int
    awaited: int
    share: float
    launches: tuple[int, ...]


def with_resumptions(
    graph: StepGraph, template: Template, resumptions: list[Resumption]
) -> StepGraph:
    """The graph with waits in the middle of operations; without them if they make a circle.

    What is left of an operation after a wait follows its end, so the operation ends no earlier than
    the end of `awaited` plus the other share of its own time. A row of the negative share, which
    the operation waits for, says the same: it ends that long before, and the operation's time is
    added to it.
    """
    num_rows = graph.num_rows
    after = np.repeat(np.arange(num_rows), np.diff(graph.pred_ptr)).tolist()
    edges = list(zip(graph.preds.tolist(), after, strict=True))
    of_op, share = graph.milestone_of.tolist(), graph.milestone_share.tolist()
    for resumption in resumptions:
        row = graph.num_ops + len(of_op)
        of_op.append(resumption.op)
        share.append(-resumption.share)
        edges += [(resumption.awaited, row), (row, resumption.op)]
        edges += [(row, graph.num_ops + launch) for launch in resumption.launches]
    for op in {resumption.op for resumption in resumptions}:
        if graph.pred_ptr[op] == graph.pred_ptr[op + 1]:
            # It begins with the step at the earliest: a row of no time that waits for nothing.
            edges.append((graph.num_ops + len(of_op), op))
            of_op.append(op)
            share.append(0.0)
    num_rows = graph.num_ops + len(of_op)
    pred_ptr, preds = _predecessors(edges, Milestones(num_rows), num_rows)
    several = np.flatnonzero(np.diff(graph.unit_ptr) > 1)
    groups = [
        graph.unit_ops[graph.unit_ptr[unit] : graph.unit_ptr[unit + 1]].tolist() for unit in several
    ]
    units = in_topological_order(groups, num_rows, pred_ptr, preds)
    if units.unplaced.size:
        return graph
    milestone_of = np.asarray(of_op, np.int64)
    return StepGraph(
        num_ops=graph.num_ops,
        unit_ptr=units.unit_ptr,
        unit_ops=units.unit_ops,
        meets=_meets(template, milestone_of)[units.unit_ops[units.unit_ptr[:-1]]],
        pred_ptr=pred_ptr,
        preds=preds,
        is_last=np.append(graph.is_last, np.zeros(num_rows - graph.num_rows, np.bool_)),
        milestone_of=milestone_of,
        milestone_share=np.asarray(share, np.float64),
        milestone_lane=np.append(graph.milestone_lane, np.full(num_rows - graph.num_rows, -1)),
    )


def _predecessors(edges: list[Edge], milestones: Milestones, num_rows: int) -> tuple[Ints, Ints]:
    """Predecessors of each row, unique and ascending, as pointers and rows."""
    pairs = _flat(edges).reshape(-1, 2)
    after, before = np.divmod(np.unique(pairs[:, 1] * num_rows + pairs[:, 0]), num_rows)
    if milestones.of_op:
        # A milestone has the predecessors of its operation.
        first = np.searchsorted(after, np.arange(num_rows + 1))
        waits = [before[first[op] : first[op + 1]] for op in milestones.of_op]
        rows = np.arange(num_rows - len(waits), num_rows)
        after = np.concatenate([after, np.repeat(rows, [before_op.size for before_op in waits])])
        before = np.concatenate([before, *waits])
    counts = np.bincount(after, minlength=num_rows)
    return np.concatenate(([0], np.cumsum(counts))), before


def _flat(rows: Iterable[Iterable[int]]) -> Ints:
    return np.fromiter(chain.from_iterable(rows), np.int64)


def _refuse_cycle(template: Template, rows: list[int]) -> None:
    ops = [op for op in rows if op < template.num_ops]
    named = ", ".join(template.describe(op) for op in ops[:6])
    raise InvalidTrace(
        f"operations wait for each other in a circle: {named}"
        + (f" and {len(ops) - 6} more" if len(ops) > 6 else "")
        + ": check the order of their start times"
    )


def _meets(template: Template, milestone_of: Ints) -> NDArray[np.int8]:
    by_code = np.zeros(max(template.op_types.by_code) + 1, np.int8)
    for code in template.present:
        by_code[code] = _MEETS.get(template.op_types.by_code[code].axis, NO_PEERS)
    return np.append(by_code[template.optype], np.zeros(milestone_of.size, np.int8))


def _last_ops(template: Template, num_rows: int) -> NDArray[np.bool_]:
    """The optimizer ends the step; a trace without one ends with its latest operation."""
    last = np.zeros(num_rows, np.bool_)
    for stage in range(template.parallelism.pp_size):
        last[template.of_stage[stage]["optimizer"]] = True
    if not last.any():
        last[: template.num_ops] = True
    return last
