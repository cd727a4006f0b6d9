"""Dependencies of one replica's step, as units in topological order.

A unit is a set of operations that meet and end together, each after its own transfer: a p2p
pair, one collective over stages, or a single operation. (docs/replay.md)
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.engine.ordering import a_circle, in_topological_order
from app.engine.rules import Edge
from app.engine.rules.beside import beside
from app.engine.rules.end_of_step import end_of_step_edges
from app.engine.rules.gradients import launch_gradients
from app.engine.rules.groups import stage_groups
from app.engine.rules.launch import Launches
from app.engine.rules.milestones import Milestones
from app.engine.rules.parameters import parameter_edges
from app.engine.rules.pipeline import DIRECTIONS, first_backward_edges, pipeline
from app.engine.rules.streams import in_streams, one_before, stream_edges
from app.engine.rules.user_types import own_edges, own_groups
from app.engine.slots import Slots, slots
from app.engine.template import Template
from app.errors import InvalidTrace
from app.trace.ops import Axis
from app.trace.window import Floats, Ints

NOBODY, ALL_DP_RANKS, EP_BLOCK = range(3)
_MEETS = {
    Axis.DP: ALL_DP_RANKS,
    Axis.DP_AND_STAGES: ALL_DP_RANKS,
    Axis.EP: EP_BLOCK,
}


@dataclass(frozen=True)
class StepGraph:
    """Dependencies in compressed sparse row form.

    Rows are the template's operations, and after them milestones: row `num_ops + m` ends when the
    share `milestone_share[m]` of operation `milestone_of[m]` has run. Unit u has the rows
    `unit_ops[unit_ptr[u] : unit_ptr[u + 1]]`; every row that they wait for is in a unit of
    smaller number. Row v waits for `preds[pred_ptr[v] : pred_ptr[v + 1]]`.

    Shapes: `unit_ptr` [units + 1], `unit_ops` [rows], `meets` [units] (whom among the dp ranks),
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

    @property
    def num_rows(self) -> int:
        """Number of operations and milestones."""
        return int(self.unit_ops.size)

    @cached_property
    def slots(self) -> Slots:
        """Where a replay keeps the ends that are still waited for."""
        return slots(self.unit_ptr, self.unit_ops, self.pred_ptr, self.preds)


def build(template: Template) -> StepGraph:
    """The graph of one replica's step.

    Raises:
        InvalidTrace: operations wait for each other in a circle, or sends and recvs do not pair.
    """
    milestones = Milestones.of(template)
    edges, groups = _edges_and_groups(template, milestones)
    num_rows = template.num_ops + len(milestones.of_op)
    pred_ptr, preds = _predecessors(edges, milestones, num_rows)
    units = in_topological_order(groups, num_rows, pred_ptr, preds)
    if units.unplaced.size:
        _refuse_circle(template, a_circle(units, pred_ptr, preds))
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
    )


def _edges_and_groups(
    template: Template, milestones: Milestones
) -> tuple[list[Edge], list[list[int]]]:
    edges: list[Edge] = []
    for stage in range(template.parallelism.pp_size):
        here = beside(template, stage)
        streams = in_streams(template, stage, here)
        before = one_before(streams)
        launches = Launches(template, stage, milestones, edges)
        edges += stream_edges(streams)
        edges += first_backward_edges(template, stage)
        edges += parameter_edges(template, stage, here, launches, before)
        edges += end_of_step_edges(template, stage, here)
        launch_gradients(template, stage, here, launches, before)
        edges += own_edges(template, stage, here, launches, before)
    groups = stage_groups(template) + own_groups(template)
    for direction in DIRECTIONS:
        more, pairs = pipeline(template, direction)
        edges += more
        groups += pairs
    return edges, groups


def _predecessors(edges: list[Edge], milestones: Milestones, num_rows: int) -> tuple[Ints, Ints]:
    """What each row waits for, each once and ascending, as pointers and rows."""
    pairs = np.array(edges, np.int64).reshape(-1, 2)
    found = np.unique(pairs[:, 1] * num_rows + pairs[:, 0])
    after, before = np.divmod(found, num_rows)
    if milestones.of_op:
        # A moment inside an operation comes after all that the operation waits for.
        first = np.searchsorted(after, np.arange(num_rows + 1))
        waits = [before[first[op] : first[op + 1]] for op in milestones.of_op]
        of = np.arange(num_rows - len(waits), num_rows)
        after = np.concatenate([after, np.repeat(of, [each.size for each in waits])])
        before = np.concatenate([before, *waits])
    counts = np.bincount(after, minlength=num_rows)
    return np.concatenate(([0], np.cumsum(counts))), before


def _refuse_circle(template: Template, rows: list[int]) -> None:
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
        by_code[code] = _MEETS.get(template.op_types.by_code[code].axis, NOBODY)
    of_row: Any = np.zeros(template.num_ops + milestone_of.size, np.int8)
    of_row[: template.num_ops] = by_code[template.optype]
    return np.asarray(of_row)


def _last_ops(template: Template, num_rows: int) -> NDArray[np.bool_]:
    """The optimizer ends the step; a trace without one ends with its latest operation."""
    last = np.zeros(num_rows, np.bool_)
    for stage in range(template.parallelism.pp_size):
        last[template.ops(stage, "optimizer")] = True
    if not last.any():
        last[: template.num_ops] = True
    return last
