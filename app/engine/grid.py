"""Lay a window's rows out as a matrix: one row per operation of a replica, one column per lane."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.engine.template import Template
from app.errors import InvalidTrace
from app.trace.job import Parallelism
from app.trace.ops import OP_NAMES, OP_SPECS, Kind
from app.trace.window import Floats, Ints, Trace, Window

_IS_ANNOTATION = np.array([spec.kind is Kind.ANNOTATION for spec in OP_SPECS])
# Op types whose model chunk means something (what-if model, section 1).
_HAS_CHUNK = np.array(
    [
        name in {"forward-compute", "backward-compute", "params-all-gather", "grads-reduce-scatter"}
        for name in OP_NAMES
    ]
)


@dataclass(frozen=True, slots=True)
class Grid:
    """Recorded times of every operation in every lane; lane = dp_rank * steps + step position.

    Shapes: `start_s` and `duration_s` [ops, lanes], `rank` [dp, pp].
    """

    template: Template
    steps: tuple[int, ...]
    start_s: Floats
    duration_s: Floats
    rank: Ints

    @property
    def num_steps(self) -> int:
        """Number of steps."""
        return len(self.steps)


def lay_out(window: Window) -> Grid:
    """The window's operations as a grid.

    Raises:
        InvalidTrace: there is no step, or replicas or steps differ in their operations.
    """
    if not window.steps:
        raise InvalidTrace(f"window {window.id} has no complete step to analyse")
    parallelism, trace = window.job.parallelism, _simulated_rows(window.trace)
    if not trace.num_ops:
        raise InvalidTrace(f"no operation was recorded in the steps of window {window.id}")
    position = _positions(trace.step, window.steps)
    template = _template(trace, position, parallelism)
    op = _op_of_row(trace, template)
    num_lanes = parallelism.dp_size * len(window.steps)
    lane = trace.dp_rank * len(window.steps) + position
    cell = op * num_lanes + lane
    _check_every_cell_once(trace, cell, template, num_lanes)
    start_s, duration_s = (np.empty(template.num_ops * num_lanes) for _ in range(2))
    start_s[cell], duration_s[cell] = trace.start_s, trace.duration_s
    rank = np.empty((parallelism.dp_size, parallelism.pp_size), np.int64)
    rank[trace.dp_rank, trace.stage] = trace.rank
    shape = (template.num_ops, num_lanes)
    return Grid(template, window.steps, start_s.reshape(shape), duration_s.reshape(shape), rank)


def _simulated_rows(trace: Trace) -> Trace:
    annotation = _IS_ANNOTATION[trace.optype]
    return trace.select(~annotation) if annotation.any() else trace


def _positions(step: Ints, steps: tuple[int, ...]) -> Ints:
    """[rows], position of each row's step among the window's."""
    known = np.asarray(steps, np.int64)
    position = np.minimum(np.searchsorted(known, step), known.size - 1)
    if not (known[position] == step).all():
        stray = int(step[known[position] != step][0])
        raise InvalidTrace(f"the trace has step {stray}, which is not among the window's steps")
    return position


def _template(trace: Trace, position: Ints, parallelism: Parallelism) -> Template:
    rows = np.flatnonzero((position == 0) & (trace.dp_rank == 0))
    name_order = np.argsort(np.argsort(np.array(OP_NAMES)))
    order = np.lexsort(
        (
            name_order[trace.optype[rows]],
            trace.seq_id[rows],
            trace.start_s[rows],
            trace.stage[rows],
        )
    )
    rows = rows[order]
    start_s = trace.start_s[rows]
    return Template(
        parallelism,
        trace.stage[rows],
        trace.optype[rows],
        trace.seq_id[rows],
        trace.mc[rows],
        start_s,
        start_s + trace.duration_s[rows],
    )


def _op_of_row(trace: Trace, template: Template) -> Ints:
    """[rows], the template's operation that each row records."""
    # Numbered from 0 without gaps on each worker, so never more of them than operations.
    seq_size = int(trace.seq_id.max()) + 1
    if seq_size > template.num_ops:
        raise InvalidTrace(
            f"seq_id {seq_size - 1} in a step of {template.num_ops} operations a replica: "
            "operations of one type are numbered from 0 without gaps"
        )

    def key(stage: Ints, optype: NDArray[np.int16], seq_id: Ints) -> Ints:
        return (stage * len(OP_SPECS) + optype) * seq_size + seq_id

    table = np.full(template.parallelism.pp_size * len(OP_SPECS) * seq_size, -1, np.int64)
    table[key(template.stage, template.optype, template.seq_id)] = np.arange(template.num_ops)
    op = table[key(trace.stage, trace.optype, trace.seq_id)]
    other = (op < 0) | (_HAS_CHUNK[trace.optype] & (trace.mc != template.mc[op]))
    if other.any():
        raise InvalidTrace(
            f"{_describe(trace, int(np.flatnonzero(other)[0]))} has no counterpart in the first "
            "step of dp rank 0: steps and replicas of different structure cannot be averaged"
        )
    return op


def _check_every_cell_once(trace: Trace, cell: Ints, template: Template, num_lanes: int) -> None:
    count = np.bincount(cell, minlength=template.num_ops * num_lanes)
    if (count == 1).all():
        return
    if (count > 1).any():
        row = int(np.flatnonzero(count[cell] > 1)[0])
        raise InvalidTrace(f"{_describe(trace, row)} is recorded more than once")
    op = int(np.flatnonzero(count == 0)[0]) // num_lanes
    raise InvalidTrace(
        f"{template.describe(op)} is missing in some step or replica: "
        "a step needs every operation of every worker"
    )


def _describe(trace: Trace, row: int) -> str:
    return (
        f"step {trace.step[row]}, dp rank {trace.dp_rank[row]}, stage {trace.stage[row]}: "
        f"{OP_NAMES[trace.optype[row]]} {trace.seq_id[row]} (chunk {trace.mc[row]})"
    )
