"""Durations that a replay uses: own (transfer) durations and ideal durations.

The own duration of an operation with peers runs from the last arrival. The ideal is the duration of
its type without stragglers.
"""

import warnings
from functools import partial

import numpy as np
from numpy.typing import NDArray

from app.engine.graph import StepGraph
from app.engine.grid import ABSENT, Grid
from app.engine.kernels import all_of, in_parallel, kernel
from app.engine.medians import median_of_rows
from app.engine.template import Template
from app.trace.window import Floats, Ints

# A transfer this negative only shows that hosts' clocks disagree.
NEGATIVE_TRANSFER_S = -0.010


def own_durations(grid: Grid, graph: StepGraph) -> Floats:
    """[rows, lanes], seconds: transfer duration of operations that meet, recorded of all others.

    transfer = end - max(start over the unit, and over dp ranks where they meet); at or below
    -10 ms it counts as 0, smaller negatives stay (docs/glossary.md, "own duration"). A milestone
    has its share of its operation's.
    """
    own_s = np.empty((graph.num_rows, grid.start_s.shape[1]))
    start_s = grid.start_s
    if grid.imputed is not None:  # the last arrival is one that was recorded
        start_s = np.where(grid.imputed == ABSENT, -np.inf, start_s)
    block = np.arange(grid.template.parallelism.dp_size) // grid.template.parallelism.ep_size
    in_parallel(
        grid.start_s.size,
        graph.meets.size,
        lambda first, end: _own(
            graph.unit_ptr, graph.unit_ops, graph.meets, start_s, grid.duration_s,
            grid.num_steps, block, NEGATIVE_TRANSFER_S, first, end, own_s,
        ),
    )  # fmt: skip
    if grid.imputed is not None:
        impute_transfers(graph, own_s, grid.imputed, grid.num_steps)
    for row, (op, share) in enumerate(
        zip(graph.milestone_of, graph.milestone_share, strict=True), start=graph.num_ops
    ):
        own_s[row] = own_s[op] * share
    return own_s


def impute_transfers(
    graph: StepGraph, own_s: Floats, flags: NDArray[np.int8], num_steps: int
) -> None:
    """Correct `own_s` [rows, lanes] where a member of a unit was not recorded.

    `flags` is `Grid.imputed`. When an absent worker arrived is unknown.

    The transfer is the median of the same operation's on the dp ranks where all members are
    known, or over all steps where there is none. That of a member that was recorded is at most what
    it seems, which includes its wait for the unknown one.
    """
    sizes = np.diff(graph.unit_ptr)
    for unit in np.flatnonzero((sizes > 1) | (graph.meets != 0)):
        rows = graph.unit_ops[graph.unit_ptr[unit] : graph.unit_ptr[unit + 1]]
        rows = rows[rows < graph.num_ops]
        if not rows.size or not flags[rows].any():
            continue
        imputed = flags[rows] > 0
        unknown = imputed
        # Where dp ranks meet, the others know when the last recorded member arrived.
        if graph.meets[unit] == 0:
            unknown = imputed | (flags[rows] == ABSENT).any(axis=0)
        known_s = np.where(unknown, np.nan, own_s[rows])
        usual_s = _medians_of_steps(known_s, num_steps)
        seems_s = np.where(imputed, np.inf, own_s[rows])
        own_s[rows] = np.where(unknown, np.minimum(usual_s, seems_s), own_s[rows])


def _medians_of_steps(known_s: Floats, num_steps: int) -> Floats:
    """[rows, lanes], medians over dp ranks of [rows, lanes] with NaN; 0 where none is known."""
    by_step = known_s.reshape(known_s.shape[0], -1, num_steps)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of slices without any value
        medians_s = np.nanmedian(by_step, axis=1)
        overall_s = np.nanmedian(known_s, axis=1, keepdims=True)
    medians_s = np.where(np.isnan(medians_s), np.nan_to_num(overall_s, nan=0.0), medians_s)
    return np.asarray(np.tile(medians_s, (1, by_step.shape[1])))


@kernel
def _own(  # type: ignore[no-untyped-def]
    unit_ptr, unit_ops, meets, start_s, duration_s, num_steps, block, negative_s, first, end, own_s
):
    num_ops, num_lanes = start_s.shape
    met_s = np.empty(num_lanes)
    latest_s = np.empty(num_steps)
    for unit in range(first, end):
        lead = unit_ops[unit_ptr[unit]]
        if unit_ptr[unit + 1] - unit_ptr[unit] == 1 and meets[unit] == 0:
            if lead < num_ops:
                for lane in range(num_lanes):
                    own_s[lead, lane] = duration_s[lead, lane]
            continue
        for lane in range(num_lanes):
            met_s[lane] = start_s[lead, lane]
        for member in range(unit_ptr[unit] + 1, unit_ptr[unit + 1]):
            member_s = start_s[unit_ops[member]]
            for lane in range(num_lanes):
                met_s[lane] = max(met_s[lane], member_s[lane])
        if meets[unit]:
            since = 0
            for peer in range(1, block.size + 1):
                if peer < block.size and (meets[unit] == 1 or block[peer] == block[since]):
                    continue
                latest_s[:] = -np.inf
                for lane in range(since * num_steps, peer * num_steps):
                    step = lane % num_steps
                    latest_s[step] = max(latest_s[step], met_s[lane])
                for lane in range(since * num_steps, peer * num_steps):
                    met_s[lane] = latest_s[lane % num_steps]
                since = peer
        for member in range(unit_ptr[unit], unit_ptr[unit + 1]):
            row = unit_ops[member]
            row_own_s, began_s, took_s = own_s[row], start_s[row], duration_s[row]
            for lane in range(num_lanes):
                # This order gives exactly the duration if it waits for no peer.
                transfer_s = took_s[lane] - (met_s[lane] - began_s[lane])
                row_own_s[lane] = 0.0 if transfer_s <= negative_s else transfer_s


def ideal_durations(template: Template, duration_s: Floats) -> Floats:
    """[ops], seconds: one ideal per op type, over all steps, stages and dp ranks together.

    The mean for compute, since the same work in total has to be done; the median for
    communication, since a flapping link makes outliers that would drag a mean.
    """
    ideal_s, by_code = np.empty(template.num_ops), template.op_types.by_code
    ops_of_type = {code: np.flatnonzero(template.optype == code) for code in template.present}
    typical_s = all_of(
        duration_s.size,
        [
            partial(_mean if by_code[code].idealised_by_mean else median_of_rows, duration_s, ops)
            for code, ops in ops_of_type.items()
        ],
    )
    for ops, of_type_s in zip(ops_of_type.values(), typical_s, strict=True):
        ideal_s[ops] = of_type_s
    return ideal_s


def _mean(duration_s: Floats, ops: Ints) -> float:
    # Row by row, for an exact sum over millions of values.
    return float(row_sums(duration_s, ops).mean() / duration_s.shape[1])


@kernel
def row_sums(values, rows):  # type: ignore[no-untyped-def]
    """[rows], the sums of some rows of [..., lanes]."""
    sums = np.zeros(rows.size)
    for position in range(rows.size):
        for lane in range(values.shape[1]):
            sums[position] += values[rows[position], lane]
    return sums
