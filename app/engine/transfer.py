"""How long an operation itself took: for one that meets peers, from the last arrival on."""

import numpy as np

from app.engine.graph import StepGraph
from app.engine.grid import Grid
from app.trace.ops import OP_SPECS, Axis
from app.trace.window import Floats

# Clocks of hosts disagree; a transfer this negative says nothing but that (section 4).
NEGATIVE_TRANSFER_S = -0.010

_NEIGHBOUR_OR_ALONE = np.array([spec.axis in (Axis.NONE, Axis.NEIGHBOUR) for spec in OP_SPECS])


def own_durations(grid: Grid, graph: StepGraph) -> Floats:
    """[ops, lanes], seconds: transfer duration of operations that meet, recorded of all others.

    transfer = end - max(start over the unit, and over dp ranks where they meet); at or below
    -10 ms it counts as 0, smaller negatives stay (what-if model, section 4).
    """
    duration_s = grid.duration_s.copy()
    sizes = np.diff(graph.unit_ptr)
    optype = grid.template.optype
    for unit in np.flatnonzero((sizes > 1) | graph.meets_dp_ranks):
        ops = graph.unit_ops[graph.unit_ptr[unit] : graph.unit_ptr[unit + 1]]
        if sizes[unit] == 1 and _NEIGHBOUR_OR_ALONE[optype[ops[0]]]:
            continue
        met_s = grid.start_s[ops].max(axis=0)
        if graph.meets_dp_ranks[unit]:
            by_dp_rank = met_s.reshape(-1, grid.num_steps)
            met_s = np.broadcast_to(by_dp_rank.max(axis=0), by_dp_rank.shape).reshape(-1)
        transfer_s = grid.start_s[ops] + grid.duration_s[ops] - met_s
        duration_s[ops] = np.where(transfer_s <= NEGATIVE_TRANSFER_S, 0.0, transfer_s)
    return duration_s
