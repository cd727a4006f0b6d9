"""Replay a step with any durations, over all lanes at once: when would each step have ended?

Lanes are [peers, groups], groups contiguous: the peers of a group meet wherever dp ranks
synchronise. An ordinary simulation has the dp ranks as peers and the steps as groups; the exact
worker slowdown has two peers, the replica of the worker and one ideal replica that stands for all
others, and (dp rank, step) as groups (what-if model, section 5).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.engine.compiled import kernel
from app.engine.graph import StepGraph
from app.trace.window import Floats, Ints

Keep = NDArray[np.bool_]

_ALL, _NONE, _SOME = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Durations:
    """What an operation takes, as recorded and ideally.

    Shapes: `recorded_s` [ops, lanes], `ideal_s` [ops], `op_class` [ops]. Operations of one class
    are always kept or idealised together.
    """

    recorded_s: Floats
    ideal_s: Floats
    op_class: Ints


def step_times(graph: StepGraph, durations: Durations, keep: Keep, num_groups: int) -> Floats:
    """Step time of every group when only some operations keep their recorded durations.

        start(op) = max(end(pred)), end(op) = max(start over its unit and peers) + duration(op)

    Args:
        graph: dependencies of one replica's step.
        durations: recorded and ideal durations.
        keep: [classes, peers], whether that peer's operations of the class keep their recorded
            duration. A peer that keeps any must have recorded lanes: recorded lane =
            peer * num_groups + group.
        num_groups: number of independent simulations beside each other.

    Returns:
        [groups], seconds from the step's start to the end of its last optimizer.
    """
    num_peers = keep.shape[1]
    kept = keep.sum(axis=1)
    mode = np.where(kept == num_peers, _ALL, np.where(kept == 0, _NONE, _SOME)).astype(np.int8)
    end_s = np.empty((graph.num_ops, num_peers * num_groups))
    last_s = np.full(num_peers * num_groups, -np.inf)
    _replay(
        graph.unit_ptr, graph.unit_ops, graph.meets_dp_ranks, graph.pred_ptr, graph.preds,
        graph.is_last, durations.recorded_s, durations.ideal_s, durations.op_class,
        keep, mode, num_peers, num_groups, end_s, last_s,
    )  # fmt: skip
    latest: Floats = last_s.reshape(num_peers, num_groups).max(axis=0)
    return latest


@kernel
def _replay(  # type: ignore[no-untyped-def]
    unit_ptr, unit_ops, meets, pred_ptr, preds, is_last, recorded_s, ideal_s, op_class,
    keep, mode, num_peers, num_groups, end_s, last_s,
):  # fmt: skip
    num_lanes = num_peers * num_groups
    start_s = np.empty(num_lanes)
    meet_s = np.empty(num_groups)
    for unit in range(meets.size):
        first = True
        for member in range(unit_ptr[unit], unit_ptr[unit + 1]):
            op = unit_ops[member]
            for edge in range(pred_ptr[op], pred_ptr[op + 1]):
                before_s = end_s[preds[edge]]
                if first:
                    for lane in range(num_lanes):
                        start_s[lane] = before_s[lane]
                    first = False
                else:
                    for lane in range(num_lanes):
                        start_s[lane] = max(start_s[lane], before_s[lane])
        if first:
            start_s[:] = 0.0
        if meets[unit] and num_peers > 1:
            for group in range(num_groups):
                meet_s[group] = start_s[group]
            for peer in range(1, num_peers):
                base = peer * num_groups
                for group in range(num_groups):
                    meet_s[group] = max(meet_s[group], start_s[base + group])
            for peer in range(num_peers):
                base = peer * num_groups
                for group in range(num_groups):
                    start_s[base + group] = meet_s[group]
        for member in range(unit_ptr[unit], unit_ptr[unit + 1]):
            op = unit_ops[member]
            kind = op_class[op]
            mine_s = end_s[op]
            if mode[kind] == _NONE:
                ideal = ideal_s[op]
                for lane in range(num_lanes):
                    mine_s[lane] = start_s[lane] + ideal
            elif mode[kind] == _ALL:
                took_s = recorded_s[op]
                for lane in range(num_lanes):
                    mine_s[lane] = start_s[lane] + took_s[lane]
            else:
                took_s = recorded_s[op]
                ideal = ideal_s[op]
                for peer in range(num_peers):
                    base = peer * num_groups
                    if keep[kind, peer]:
                        for lane in range(base, base + num_groups):
                            mine_s[lane] = start_s[lane] + took_s[lane]
                    else:
                        for lane in range(base, base + num_groups):
                            mine_s[lane] = start_s[lane] + ideal
            if is_last[op]:
                for lane in range(num_lanes):
                    last_s[lane] = max(last_s[lane], mine_s[lane])
