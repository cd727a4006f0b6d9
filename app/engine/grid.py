"""Lay a window's rows out as a matrix: one row per operation of a replica, one column per lane."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from app.engine import placing
from app.engine.spans import step_spans
from app.engine.template import Template
from app.errors import InvalidTrace
from app.trace.job import Job
from app.trace.ops import Kind, OpTypes
from app.trace.window import Floats, Ints, Trace, Window

# Op types whose model chunk is part of the structure (what-if model, section 1).
_HAS_CHUNK = frozenset(
    {
        "forward-compute",
        "backward-compute",
        "backward-input-compute",
        "backward-weight-compute",
        "params-all-gather",
        "grads-reduce-scatter",
    }
)


class OtherStructure(InvalidTrace):
    """Some step or replica has other operations than the first step of dp rank 0."""


@dataclass(frozen=True)
class Grid:
    """Recorded times of every operation in every lane; lane = dp_rank * steps + step position.

    Shapes: `start_s` and `duration_s` [ops, lanes], `rank` [dp, pp]. `origin_s` [steps] is what
    each step's times count from, by one clock since a moment that all of the window's grids share;
    None where times of different steps have nothing to do with each other. `shift_s` [pp, lanes] is
    what a correction of clocks added to a worker's starts. `steady_began_s` [steps] is when a step
    began where it follows another (steady_state.py), in its own times.
    """

    template: Template
    steps: tuple[int, ...]
    start_s: Floats
    duration_s: Floats
    rank: Ints
    origin_s: Floats | None = None
    shift_s: Floats | None = None
    steady_began_s: Floats | None = None

    @property
    def num_steps(self) -> int:
        """Number of steps."""
        return len(self.steps)

    @cached_property
    def spans_s(self) -> tuple[Floats, Floats]:
        """Earliest start and latest end of every step over all workers, [steps] seconds."""
        return step_spans(self.start_s, self.duration_s, self.num_steps)

    @property
    def began_s(self) -> Floats:
        """[steps], when each step began: with its predecessor's end, else its earliest start."""
        return self.spans_s[0] if self.steady_began_s is None else self.steady_began_s

    def with_begins(self, began_s: Floats) -> "Grid":
        """The same times, of steps that began at these moments [steps]."""
        grid = replace(self, steady_began_s=began_s)
        vars(grid)["spans_s"] = self.spans_s  # the same times have the same spans
        return grid


def lay_out(window: Window) -> Grid:
    """The window's operations as a grid.

    Raises:
        OtherStructure: replicas or steps differ in their operations.
        InvalidTrace: there is no step, or an operation is recorded more than once.
    """
    if not window.steps:
        raise InvalidTrace(f"window {window.id} has no complete step to analyse")
    job, trace = window.job, window.trace
    template = _template(window)
    num_lanes = job.parallelism.dp_size * len(window.steps)
    shape = (template.num_ops, num_lanes)
    start_s, duration_s = np.full(shape, np.nan), np.empty(shape)
    rank = np.full((job.parallelism.dp_size, job.parallelism.pp_size), -1, np.int64)
    columns = placing.Columns(
        trace=trace,
        steps=np.asarray(window.steps, np.int64),
        simulated=is_simulated(job.op_types),
        has_chunk=has_chunk(job.op_types),
        table=_table(template),
        mc_of_op=template.mc,
    )
    problem, row = placing.place(columns, start_s, duration_s, rank)
    if problem != placing.GOOD:
        _refuse(problem, row, trace, template, start_s)
    return Grid(template, window.steps, start_s, duration_s, rank, origin_s(window, window.steps))


def origin_s(window: Window, steps: Sequence[int]) -> Floats | None:
    """[steps], what the times of some steps count from, since that of the window's first step."""
    if window.origin_ns is None:
        return None
    by_step = dict(zip(window.steps, window.origin_ns, strict=True))
    since_ns = [by_step[step] - window.origin_ns[0] for step in steps]
    return np.asarray(np.array(since_ns, np.int64) * 1e-9)


def is_simulated(types: OpTypes) -> Any:
    """[codes], whether operations of a type are replayed at all."""
    return types.flags(lambda spec: spec.kind is not Kind.ANNOTATION)


def has_chunk(types: OpTypes) -> Any:
    """[codes], whether the model chunk of a type is part of the structure."""
    return types.flags(lambda spec: spec.name in _HAS_CHUNK)


def _template(window: Window) -> Template:
    trace, job = window.trace, window.job
    simulated = is_simulated(job.op_types)
    rows = placing.rows_of(trace.step, trace.dp_rank, trace.optype, simulated, window.steps[0], 0)
    if not rows.size:
        raise (OtherStructure if len(window.steps) > 1 else InvalidTrace)(
            f"no operation of dp rank 0 was recorded in step {window.steps[0]} of window "
            f"{window.id}"
        )
    rows = rows[_recorded_order(trace, rows, job)]
    start_s, end_s = _times(window, rows)
    return Template(
        parallelism=job.parallelism,
        op_types=job.op_types,
        stage=trace.stage[rows].astype(np.int64),
        optype=trace.optype[rows].astype(np.int64),
        seq_id=trace.seq_id[rows].astype(np.int64),
        mc=trace.mc[rows].astype(np.int64),
        mb_id=trace.mb_id[rows].astype(np.int64),
        start_s=start_s,
        end_s=end_s,
    )


def _times(window: Window, rows: Ints) -> tuple[Floats, Floats]:
    """[rows] starts and ends, in seconds.

    Of whole nanoseconds they are by each stage's own first start, and exact: the same to the last
    bit however far the stages' clocks are apart.
    """
    start_s, duration_s = window.trace.start_s[rows], window.trace.duration_s[rows]
    if window.origin_ns is None:
        return start_s, start_s + duration_s
    start_ns, duration_ns = np.rint(start_s * 1e9), np.rint(duration_s * 1e9)
    stage = window.trace.stage[rows]
    first_ns = np.full(window.job.parallelism.pp_size, np.inf)
    np.minimum.at(first_ns, np.clip(stage, 0, first_ns.size - 1), start_ns)
    start_ns -= first_ns[np.clip(stage, 0, first_ns.size - 1)]
    return start_ns * 1e-9, (start_ns + duration_ns) * 1e-9


def _recorded_order(trace: Trace, rows: Ints, job: Job) -> Ints:
    """Positions in `rows`, by stage, start, seq_id and name of the type."""
    by_name = np.zeros(max(job.op_types.by_code) + 1, np.int64)
    for position, name in enumerate(sorted(job.op_types.codes)):
        by_name[job.op_types.codes[name]] = position
    keys = (by_name[trace.optype[rows]], trace.seq_id[rows], trace.start_s[rows], trace.stage[rows])
    return np.lexsort(keys)


def _table(template: Template) -> Any:
    """[stages, codes, seq ids], the template's operation, -1 where it has none."""
    # Numbered from 0 without gaps on each worker, so never more of them than operations.
    pp_size, last = template.parallelism.pp_size, int(template.seq_id.max())
    if template.stage.min() < 0 or template.stage.max() >= pp_size:
        raise InvalidTrace(f"stage {template.stage.max()} of a job with pp_size {pp_size}")
    if last >= template.num_ops:
        raise InvalidTrace(
            f"seq_id {last} in a step of {template.num_ops} operations a replica: "
            "operations of one type are numbered from 0 without gaps"
        )
    shape = (pp_size, max(template.present) + 1, last + 1)
    table = np.full(shape, -1, np.int32)
    cell = (template.stage, template.optype, template.seq_id)
    table[cell] = np.arange(template.num_ops)
    return table


def _refuse(problem: int, row: int, trace: Trace, template: Template, start_s: Floats) -> None:
    if problem == placing.STRAY:
        raise InvalidTrace(
            f"the trace has step {trace.step[row]}, which is not among the window's steps"
        )
    if problem == placing.TWICE:
        raise InvalidTrace(f"{describe(trace, row, template)} is recorded more than once")
    if problem == placing.NOT_FINITE:
        raise InvalidTrace(f"{describe(trace, row, template)} has a time that is no finite number")
    if problem == placing.OTHER:
        raise OtherStructure(
            f"{describe(trace, row, template)} has no counterpart in the first step of dp rank 0"
        )
    op = int(np.argwhere(np.isnan(start_s))[0, 0])
    raise OtherStructure(
        f"{template.describe(op)} is missing in some step or replica: "
        "a step needs every operation of every worker"
    )


def describe(trace: Trace, row: int, template: Template) -> str:
    """One row in words, for messages."""
    return (
        f"step {trace.step[row]}, dp rank {trace.dp_rank[row]}, stage {trace.stage[row]}: "
        f"{template.op_types.name(trace.optype[row])} {trace.seq_id[row]} (chunk {trace.mc[row]})"
    )
