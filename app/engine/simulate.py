"""Replay a step with any durations, over all lanes at once: when would each step have ended?

Lanes are [peers, groups], groups contiguous: the peers of a group meet wherever dp ranks
synchronise, and those of one block wherever expert-parallel ranks do. An ordinary simulation has
the dp ranks as peers and the steps as groups; the exact worker slowdown has as peers the replica
of the worker and ideal replicas that stand for all others, and (dp rank, step) as groups
(what-if model, section 5).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.engine.compiled import kernel
from app.engine.graph import StepGraph
from app.trace.window import Floats, Ints

Keep = NDArray[np.bool_]
Sources = NDArray[np.int32]

# Where a row's durations come from; 0 and above are rows of `edited_s`.
RECORDED, IDEAL, _MIXED = -1, -2, -3

# Ends that are still waited for should stay in the cache. Measured from 256 KiB to 4 MiB: smaller
# tiles read the recorded rows in pieces too short.
_TILE_BYTES = 1 << 21

# Behind the ends: when a unit may start, a row of zeros, and the latest end so far.
_SCRATCH_ROWS = 3


@dataclass(frozen=True, slots=True)
class Durations:
    """What each row of the graph takes, as recorded and ideally.

    Shapes: `recorded_s` [rows, lanes], `ideal_s` [rows], `op_class` [rows]. Rows of one class
    are always kept or idealised together.
    """

    recorded_s: Floats
    ideal_s: Floats
    op_class: Ints


@dataclass(frozen=True, slots=True)
class Peers:
    """How lanes hang together: `block` [peers] is the expert-parallel block of each."""

    block: Ints
    num_groups: int

    @property
    def num_peers(self) -> int:
        """Number of replicas that are told apart."""
        return int(self.block.size)


_NOTHING_EDITED = np.empty((1, 1))


def step_times(graph: StepGraph, durations: Durations, keep: Keep, peers: Peers) -> Floats:
    """Step time of every group when only some operations keep their recorded durations.

        start(op) = max(end(pred)), end(op) = max(start over its unit and peers) + duration(op)

    Args:
        graph: dependencies of one replica's step.
        durations: recorded and ideal durations.
        keep: [classes, peers], whether that peer's operations of the class keep their recorded
            duration. A peer that keeps any must have recorded lanes: recorded lane =
            peer * num_groups + group.
        peers: who meets whom.

    Returns:
        [groups], seconds from the step's start to the end of its last optimizer.
    """
    kept_by = keep.sum(axis=1)
    of_class = np.where(kept_by == peers.num_peers, RECORDED, np.where(kept_by, _MIXED, IDEAL))
    source = of_class[durations.op_class].astype(np.int32)
    return _step_times(graph, durations, source, _NOTHING_EDITED, keep, peers)


def edited_step_times(
    graph: StepGraph, durations: Durations, source: Sources, edited_s: Floats, peers: Peers
) -> Floats:
    """Step time of every group with durations from anywhere.

    Args:
        graph: dependencies of one replica's step.
        durations: recorded and ideal durations.
        source: [rows], the row of `edited_s` to take, or `RECORDED`, or `IDEAL`.
        edited_s: [edited rows, lanes], seconds.
        peers: who meets whom.

    Returns:
        [groups], seconds.
    """
    keep = np.zeros((1, peers.num_peers), np.bool_)
    return _step_times(graph, durations, source.astype(np.int32), edited_s, keep, peers)


def ends(graph: StepGraph, durations: Durations, source: Sources, peers: Peers) -> Floats:
    """[rows, lanes], seconds: when every operation ends, from recorded and ideal durations."""
    end_s = np.empty((graph.num_rows + _SCRATCH_ROWS, peers.num_peers * peers.num_groups))
    every_row = np.arange(graph.num_rows)
    keep = np.zeros((1, peers.num_peers), np.bool_)
    last_s = np.empty(peers.num_groups)
    _replay(
        graph.unit_ptr, graph.unit_ops, graph.meets, graph.pred_ptr, graph.preds, graph.is_last,
        every_row, durations.recorded_s, durations.ideal_s, durations.op_class, source,
        _NOTHING_EDITED, keep, peers.block, peers.num_groups, 0, peers.num_groups, end_s, last_s,
    )  # fmt: skip
    return end_s[: graph.num_rows]


def _step_times(
    graph: StepGraph,
    durations: Durations,
    source: Sources,
    edited_s: Floats,
    keep: Keep,
    peers: Peers,
) -> Floats:
    slots, num_groups = graph.slots, peers.num_groups
    of_one_group = 8 * slots.num_slots * peers.num_peers
    tile = min(num_groups, max(64, _TILE_BYTES // of_one_group // 8 * 8))
    end_s = np.empty((slots.num_slots + _SCRATCH_ROWS, peers.num_peers * tile))
    last_s = np.empty(num_groups)
    for first in range(0, num_groups, tile):
        _replay(
            graph.unit_ptr, graph.unit_ops, graph.meets, graph.pred_ptr, graph.preds,
            graph.is_last, slots.of_row, durations.recorded_s, durations.ideal_s,
            durations.op_class, source, edited_s, keep, peers.block, num_groups,
            first, min(first + tile, num_groups), end_s, last_s,
        )  # fmt: skip
    return last_s


@kernel
def _replay(  # type: ignore[no-untyped-def]
    unit_ptr, unit_ops, meets, pred_ptr, preds, is_last, slot, recorded_s, ideal_s, op_class,
    source, edited_s, keep, block, num_groups, first_group, end_group, end_s, last_s,
):  # fmt: skip
    # Rows of one array are addressed by number: views of them would be counted in and out.
    num_peers, width = block.size, end_group - first_group
    num_lanes = num_peers * width
    waiting, zero, step = end_s.shape[0] - 3, end_s.shape[0] - 2, end_s.shape[0] - 1
    end_s[zero, :num_lanes] = 0.0
    end_s[step, :num_lanes] = -np.inf
    whole = width == num_groups
    for unit in range(meets.size):
        start = zero
        found = 0
        for member in range(unit_ptr[unit], unit_ptr[unit + 1]):
            row = unit_ops[member]
            for edge in range(pred_ptr[row], pred_ptr[row + 1]):
                before = slot[preds[edge]]
                found += 1
                if found == 1:
                    start = before
                else:
                    for lane in range(num_lanes):
                        end_s[waiting, lane] = max(end_s[start, lane], end_s[before, lane])
                    start = waiting
        if meets[unit] != 0 and num_peers > 1:
            since = 0
            for peer in range(1, num_peers + 1):
                if peer < num_peers and (meets[unit] == 1 or block[peer] == block[since]):
                    continue
                for group in range(width):
                    latest_s = end_s[start, since * width + group]
                    for lane in range((since + 1) * width + group, peer * width, width):
                        latest_s = max(latest_s, end_s[start, lane])
                    for lane in range(since * width + group, peer * width, width):
                        end_s[waiting, lane] = latest_s
                since = peer
            start = waiting
        for member in range(unit_ptr[unit], unit_ptr[unit + 1]):
            row = unit_ops[member]
            mine, origin = slot[row], source[row]
            if origin == -2:
                ideal = ideal_s[row]
                for lane in range(num_lanes):
                    end_s[mine, lane] = end_s[start, lane] + ideal
            elif origin == -1 and whole:
                for lane in range(num_lanes):
                    end_s[mine, lane] = end_s[start, lane] + recorded_s[row, lane]
            elif origin >= 0 and whole:
                for lane in range(num_lanes):
                    end_s[mine, lane] = end_s[start, lane] + edited_s[origin, lane]
            else:
                ideal = ideal_s[row]
                for peer in range(num_peers):
                    base, at = peer * width, peer * num_groups + first_group
                    if origin == -1 or (origin == -3 and keep[op_class[row], peer]):
                        for group in range(width):
                            end_s[mine, base + group] = (
                                end_s[start, base + group] + recorded_s[row, at + group]
                            )
                    elif origin == -3:
                        for lane in range(base, base + width):
                            end_s[mine, lane] = end_s[start, lane] + ideal
                    else:
                        for group in range(width):
                            end_s[mine, base + group] = (
                                end_s[start, base + group] + edited_s[origin, at + group]
                            )
            if is_last[row]:
                for lane in range(num_lanes):
                    end_s[step, lane] = max(end_s[step, lane], end_s[mine, lane])
    for group in range(width):
        latest_s = end_s[step, group]
        for peer in range(1, num_peers):
            latest_s = max(latest_s, end_s[step, peer * width + group])
        last_s[first_group + group] = latest_s
