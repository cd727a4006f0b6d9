"""Rows as workers record them: without what they do not have, and computations as wholes.

Rows are columns by name, all [rows], with `start_s` and `end_s` by a perfect clock.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.trace.ops import OP_CODES
from benchmarks.strangers.graph import BACKWARD, FORWARD, StepGraph
from benchmarks.strangers.simulation import Simulated

Rows = dict[str, NDArray[Any]]
Ints = NDArray[np.int64]
# The client sends no shorter waits.
LEAST_WAIT_S = 1e-6


def present_rows(graph: StepGraph, simulated: Simulated, rows: Rows) -> Rows:
    """The rows of a replica's own operations, numbered as if there were no others."""
    if simulated.is_absent is None:
        return rows
    is_there = ~simulated.is_absent
    seq_id = np.zeros(is_there.shape, np.int64)
    for optype, stage in {*zip(graph.optype.tolist(), graph.stage.tolist(), strict=True)}:
        ops = np.flatnonzero((graph.optype == optype) & (graph.stage == stage))
        ops = ops[np.argsort(graph.seq_id[ops])]
        seq_id[:, ops] = np.cumsum(is_there[:, ops], axis=1) - 1
    kept = is_there.ravel()
    found = {name: values[kept] for name, values in rows.items()}
    found["seq_id"] = seq_id.ravel()[kept]
    found["mb_id"] = np.where(
        found["mb_id"] >= 0, _microbatches(graph, is_there).ravel()[kept], found["mb_id"]
    )
    return found


def _microbatches(graph: StepGraph, is_there: NDArray[np.bool_]) -> Ints:
    """[steps, ops, dp ranks], each replica's own number of an operation's micro-batch."""
    first = graph.of(FORWARD) & (graph.stage == 0) & (graph.mc <= 0)
    ops = np.flatnonzero(first)[np.argsort(graph.mb[first])]
    own = np.cumsum(is_there[:, ops], axis=1) - 1
    found: Ints = own[:, np.maximum(graph.mb, 0)]
    return found


def whole_rows(graph: StepGraph, simulated: Simulated, rows: Rows) -> Rows:
    """The rows with each computation as a whole, where it was simulated in parts.

    `contains_waits` is 1 for computations beside which collectives are under way, else -1.
    """
    size = simulated.start_s.shape
    is_part = graph.span >= 0
    is_launching = np.zeros(graph.num_ops, bool)
    is_launching[graph.dep[(graph.share > 0) & (graph.share < 1)]] = True
    rows["contains_waits"] = np.broadcast_to(
        np.where(is_part | is_launching, 1, -1)[None, :, None], size
    ).ravel()
    is_first = ~is_part
    last_of, seq_id = np.arange(graph.num_ops), graph.seq_id.copy()
    for span in np.unique(graph.span[is_part]):
        ops = np.flatnonzero(graph.span == span)
        is_first[ops[0]], last_of[ops[0]] = True, ops[-1]
    for optype in (FORWARD, BACKWARD):
        ops = np.flatnonzero(graph.of(optype) & is_first)
        seq_id[ops] = np.arange(ops.size)
    kept = np.broadcast_to(is_first[None, :, None], size).ravel()
    shape = np.reshape(rows["end_s"], size)
    ends = {"end_s": shape[:, last_of].ravel()}
    ends["seq_id"] = np.broadcast_to(seq_id[None, :, None], size).ravel()
    return {name: values[kept] for name, values in (rows | ends).items()}


def wait_rows(graph: StepGraph, simulated: Simulated) -> Rows:
    """A row for each wait of a computation's stream, numbered by start."""
    num_steps, _, dp = simulated.start_s.shape
    begun, ended = [np.empty((num_steps, 0, dp))], [np.empty((num_steps, 0, dp))]
    previous, end = -1, np.empty((num_steps, dp))
    for after, collective in graph.waits.tolist():
        free = simulated.end_s[:, after]
        free = np.maximum(free, end) if after == previous else free
        previous, end = after, simulated.end_s[:, collective]
        begun.append(free[:, None])
        ended.append(end[:, None])
    start_s, end_s = np.concatenate(begun, axis=1), np.concatenate(ended, axis=1)
    is_seen = end_s - start_s > LEAST_WAIT_S
    seq_id = np.cumsum(is_seen, axis=1) - 1
    step, _, dp_rank = np.nonzero(is_seen)
    none = np.full(step.size, -1)
    return {
        "optype": np.full(step.size, OP_CODES["wait"]),
        "stage": np.zeros(step.size, np.int64),
        "seq_id": seq_id[is_seen],
        "mc": none,
        "mb_id": none,
        "step": step,
        "dp_rank": dp_rank,
        "start_s": start_s[is_seen],
        "end_s": end_s[is_seen],
    }


def joined(rows: Rows, more: Rows) -> Rows:
    """Both; -1 where the second has no such column."""
    size = len(more["step"])
    return {
        name: np.concatenate([values, more.get(name, np.full(size, -1))])
        for name, values in rows.items()
    }
