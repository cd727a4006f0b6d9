"""Dependencies of one replica's step, as units in topological order.

A unit is a set of operations that meet and end together, each after its own transfer: a p2p
pair, one collective over stages, or a single operation. (What-if model, section 3.)
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.engine.rules import Edge
from app.engine.rules.end_of_step import end_of_step_edges
from app.engine.rules.groups import stage_groups
from app.engine.rules.parameters import parameter_edges
from app.engine.rules.pipeline import DIRECTIONS, first_backward_edges, match, pairs
from app.engine.rules.streams import stream_edges
from app.engine.template import Template
from app.errors import InvalidTrace
from app.trace.ops import OP_SPECS, Axis
from app.trace.window import Ints

_MEETS_DP_RANKS = np.array([spec.axis in (Axis.DP, Axis.DP_AND_STAGES) for spec in OP_SPECS])


@dataclass(frozen=True, slots=True)
class StepGraph:
    """Dependencies in compressed sparse row form.

    Unit u has the operations `unit_ops[unit_ptr[u] : unit_ptr[u + 1]]`; every operation that they
    wait for is in a unit of smaller number. Operation v waits for
    `preds[pred_ptr[v] : pred_ptr[v + 1]]`.

    Shapes: `unit_ptr` [units + 1], `unit_ops` [ops], `meets_dp_ranks` [units], `pred_ptr`
    [ops + 1], `preds` [edges], `is_last` [ops].
    """

    unit_ptr: Ints
    unit_ops: Ints
    meets_dp_ranks: NDArray[np.bool_]
    pred_ptr: Ints
    preds: Ints
    is_last: NDArray[np.bool_]  # the step ends with the latest of these

    @property
    def num_ops(self) -> int:
        """Number of operations of one replica in one step."""
        return int(self.unit_ops.size)


def build(template: Template) -> StepGraph:
    """The graph of one replica's step.

    Raises:
        InvalidTrace: operations wait for each other in a circle, or sends and recvs do not pair.
    """
    edges, groups = _edges_and_groups(template)
    preds: list[list[int]] = [[] for _ in range(template.num_ops)]
    for before, after in edges:
        preds[after].append(before)
    units = _in_topological_order(template, preds, groups)
    return StepGraph(
        _pointers([len(unit) for unit in units]),
        np.array([op for unit in units for op in unit], np.int64),
        _MEETS_DP_RANKS[template.optype[[unit[0] for unit in units]]],
        _pointers([len(set(ops)) for ops in preds]),
        np.array([op for ops in preds for op in sorted(set(ops))], np.int64),
        _last_ops(template),
    )


def _edges_and_groups(template: Template) -> tuple[list[Edge], list[list[int]]]:
    stages = range(template.parallelism.pp_size)
    edges: list[Edge] = []
    groups = stage_groups(template)
    for stage in stages:
        edges += stream_edges(template, stage)
        edges += first_backward_edges(template, stage)
        edges += parameter_edges(template, stage)
        edges += end_of_step_edges(template, stage)
    for direction in DIRECTIONS:
        matched = [match(template, stage, direction) for stage in stages]
        edges += [edge for stage in matched for edge in stage.edges]
        groups += pairs(template, matched, direction)
    return edges, groups


def _in_topological_order(
    template: Template, preds: list[list[int]], groups: list[list[int]]
) -> list[list[int]]:
    """All units, every one after those that it waits for (Kahn's algorithm)."""
    grouped = {op for group in groups for op in group}
    units = groups + [[op] for op in range(template.num_ops) if op not in grouped]
    unit_of = [0] * template.num_ops
    for unit, ops in enumerate(units):
        for op in ops:
            unit_of[op] = unit
    waits_for = [{unit_of[pred] for op in ops for pred in preds[op]} for ops in units]
    followers: list[list[int]] = [[] for _ in units]
    for unit, before in enumerate(waits_for):
        for other in before:
            followers[other].append(unit)
    missing = [len(before) for before in waits_for]
    ready = [unit for unit, count in enumerate(missing) if count == 0]
    for unit in ready:  # grows while it is walked
        for follower in followers[unit]:
            missing[follower] -= 1
            if missing[follower] == 0:
                ready.append(follower)
    if len(ready) < len(units):
        _refuse_cycle(template, [units[unit] for unit, count in enumerate(missing) if count])
    return [units[unit] for unit in ready]


def _refuse_cycle(template: Template, units: list[list[int]]) -> None:
    named = ", ".join(template.describe(op) for unit in units[:4] for op in unit[:2])
    raise InvalidTrace(
        f"operations wait for each other in a circle: {named}"
        + (f" and {len(units) - 4} more" if len(units) > 4 else "")
    )


def _last_ops(template: Template) -> NDArray[np.bool_]:
    """The optimizer ends the step; a trace without one ends with its latest operation."""
    optimizers = np.zeros(template.num_ops, np.bool_)
    for stage in range(template.parallelism.pp_size):
        optimizers[template.ops(stage, "optimizer")] = True
    return optimizers if optimizers.any() else np.ones(template.num_ops, np.bool_)


def _pointers(sizes: list[int]) -> Ints:
    return np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
