"""A window's operations as a matrix: one row per operation of a replica, one column per lane.

A lane is one replica in one step. The second half places each recorded operation.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.engine.kernels import in_parallel, kernel
from app.engine.template import Template
from app.errors import InvalidTrace
from app.trace.job import Job
from app.trace.ops import OpKind, OpTypes
from app.trace.runs import RunTrace
from app.trace.window import Floats, Ints, Trace, Window


@kernel
def _spans(start_s, duration_s, num_steps, first, end):  # type: ignore[no-untyped-def]
    num_lanes = start_s.shape[1]
    earliest_s, latest_s = np.full(num_lanes, np.inf), np.full(num_lanes, -np.inf)
    for op in range(first, end):
        began_s, took_s = start_s[op], duration_s[op]
        for lane in range(num_lanes):
            earliest_s[lane] = min(earliest_s[lane], began_s[lane])
            latest_s[lane] = max(latest_s[lane], began_s[lane] + took_s[lane])
    first_s, last_s = np.full(num_steps, np.inf), np.full(num_steps, -np.inf)
    for lane in range(num_lanes):
        step = lane % num_steps
        first_s[step] = min(first_s[step], earliest_s[lane])
        last_s[step] = max(last_s[step], latest_s[lane])
    return first_s, last_s


# Op types whose model chunk is part of the structure (docs/replay.md, section 7).
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


# An operation that was not recorded: of a worker that recorded the rest of the step, or nothing.
LONE, ABSENT = 1, 2


class OtherStructure(InvalidTrace):
    """Some step or replica has other operations than the one that the template is read from."""


@dataclass(frozen=True)
class Grid:
    """Recorded times of every operation in every lane; lane = dp_rank * steps + step position.

    Shapes: `start_s` and `duration_s` [ops, lanes], `rank` [dp, pp]. `origin_s` [steps] is the
    origin of each step's times, on one clock and since one moment for all of the window's grids;
    None if times of different steps are unrelated. `shift_s` [pp, lanes] is the clock correction of
    a worker's starts. `steady_began_s` [steps] is the begin of a step that follows another
    (steady_state.py), in its own times. `imputed` [ops, lanes] marks the operations
    that nobody recorded as `LONE` or `ABSENT`; None where there are none.
    """

    template: Template
    steps: tuple[int, ...]
    start_s: Floats
    duration_s: Floats
    rank: Ints
    origin_s: Floats | None = None
    shift_s: Floats | None = None
    steady_began_s: Floats | None = None
    imputed: NDArray[np.int8] | None = None

    @cached_property
    def num_steps(self) -> int:
        """Number of steps."""
        return len(self.steps)

    @cached_property
    def spans_s(self) -> tuple[Floats, Floats]:
        """Earliest start and latest end of every step over all workers, [steps] seconds."""
        parts = in_parallel(
            self.start_s.size,
            self.start_s.shape[0],
            lambda first, end: _spans(self.start_s, self.duration_s, self.num_steps, first, end),
        )
        earliest_s, latest_s = (np.stack(part) for part in zip(*parts, strict=True))
        return earliest_s.min(axis=0), latest_s.max(axis=0)

    @cached_property
    def began_s(self) -> Floats:
        """[steps], begin of each step: in steady state, else its earliest start."""
        return self.spans_s[0] if self.steady_began_s is None else self.steady_began_s

    def with_begins(self, began_s: Floats) -> "Grid":
        """The grid with these begins [steps] in steady state."""
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
    start_s, duration_s = np.empty(shape), np.empty(shape)
    in_parallel(start_s.size, shape[0], lambda first, end: start_s[first:end].fill(np.nan))
    rank = np.full((job.parallelism.dp_size, job.parallelism.pp_size), -1, np.int64)
    steps, table = np.asarray(window.steps, np.int64), _table(template)
    simulated, chunked = is_simulated(job.op_types), has_chunk(job.op_types)
    columns = Columns(trace, steps, simulated, chunked, table, template.mc)
    problem, row = place_rows(columns, start_s, duration_s, rank)
    if problem != GOOD:
        _refuse(problem, row, trace, template, start_s)
    grid = Grid(template, window.steps, start_s, duration_s, rank, origin_s(window, window.steps))
    return replace(grid, imputed=_imputed(window, template, table))


def _imputed(
    window: Window, template: Template, table: NDArray[np.int32]
) -> NDArray[np.int8] | None:
    """[ops, lanes], the operations that were not recorded; None where there are none."""
    imputed, steps = window.imputed, np.asarray(window.steps, np.int64)
    if imputed is None:
        return None
    flags = np.zeros((template.num_ops, window.job.parallelism.dp_size * steps.size), np.int8)
    for (dp_rank, stage), of_worker in imputed.absent.items():
        lanes = dp_rank * steps.size + np.flatnonzero(np.isin(steps, of_worker))
        flags[np.ix_(template.stage == stage, lanes)] = ABSENT
    lone = imputed.lone[np.isin(imputed.lone[:, 0], steps)]
    step, dp_rank, stage, code, seq_id = lone.T
    flags[table[stage, code, seq_id], dp_rank * steps.size + np.searchsorted(steps, step)] = LONE
    return flags if flags.any() else None


def origin_s(window: Window, steps: Sequence[int]) -> Floats | None:
    """[steps], origins of the times of some steps, since the origin of the window's first step."""
    if window.origin_ns is None:
        return None
    by_step = dict(zip(window.steps, window.origin_ns, strict=True))
    since_ns = [by_step[step] - window.origin_ns[0] for step in steps]
    return np.asarray(np.array(since_ns, np.int64) * 1e-9)


def is_simulated(types: OpTypes) -> Any:
    """[codes], whether operations of a type are replayed at all."""
    return types.flags(lambda spec: spec.kind is not OpKind.ANNOTATION)


def has_chunk(types: OpTypes) -> Any:
    """[codes], whether the model chunk of a type is part of the structure."""
    return types.flags(lambda spec: spec.name in _HAS_CHUNK)


def _template(window: Window) -> Template:
    trace, job = window.trace, window.job
    simulated = is_simulated(job.op_types)
    step_at, dp_rank = _best_recorded(window)
    step = window.steps[step_at]
    rows = rows_of(trace, simulated, step, dp_rank)
    if not rows.size:
        raise (OtherStructure if len(window.steps) > 1 else InvalidTrace)(
            f"no operation of dp rank {dp_rank} was recorded in step {step} of window {window.id}"
        )
    lane = trace.select(rows)
    lane = lane.select(_recorded_order(lane, job))
    columns = (lane.stage, lane.optype, lane.seq_id, lane.mc, lane.mb_id)
    stage, optype, seq_id, mc, mb_id = (column.astype(np.int64) for column in columns)
    return Template(
        job.parallelism, job.op_types, stage, optype, seq_id, mc, mb_id, *_times(window, lane),
        dp_rank, step_at,
    )  # fmt: skip


def _best_recorded(window: Window) -> tuple[int, int]:
    """Position of a step and a dp rank: the first of those of which least was imputed.

    Imputed times are no record of which operation followed which.
    """
    if (imputed := window.imputed) is None:
        return 0, 0
    steps = np.asarray(window.steps, np.int64)
    num_imputed = np.zeros((steps.size, window.job.parallelism.dp_size), np.int64)
    for (dp_rank, _), of_worker in imputed.absent.items():
        # More than all lone operations together.
        num_imputed[np.isin(steps, of_worker), dp_rank] += imputed.num_ops
    lone = imputed.lone[np.isin(imputed.lone[:, 0], steps)]
    np.add.at(num_imputed, (np.searchsorted(steps, lone[:, 0]), lone[:, 1]), 1)
    return divmod(int(num_imputed.argmin()), num_imputed.shape[1])


def _times(window: Window, lane: Trace) -> tuple[Floats, Floats]:
    """[ops] starts and ends of some of its operations, in seconds.

    Nanosecond times count from each stage's first start, so the result does not depend on the
    stages' clock offsets, to the last bit.
    """
    start_s, duration_s = lane.start_s, lane.duration_s
    if window.origin_ns is None:
        return start_s, start_s + duration_s
    start_ns, duration_ns = np.rint(start_s * 1e9), np.rint(duration_s * 1e9)
    stage = lane.stage
    first_ns = np.full(window.job.parallelism.pp_size, np.inf)
    np.minimum.at(first_ns, np.clip(stage, 0, first_ns.size - 1), start_ns)
    start_ns -= first_ns[np.clip(stage, 0, first_ns.size - 1)]
    return start_ns * 1e-9, (start_ns + duration_ns) * 1e-9


def _recorded_order(lane: Trace, job: Job) -> Ints:
    """Its rows by stage, start, seq_id and name of the type."""
    by_name = np.zeros(max(job.op_types.by_code) + 1, np.int64)
    for position, name in enumerate(sorted(job.op_types.codes)):
        by_name[job.op_types.codes[name]] = position
    return np.lexsort((by_name[lane.optype], lane.seq_id, lane.start_s, lane.stage))


def _table(template: Template) -> Any:
    """[stages, codes, seq ids], the template's operation, -1 where it has none."""
    # seq ids count from 0 without gaps, so there are never more of them than operations.
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
    if problem == STRAY:
        stray = trace.at("step", np.array([row]))[0]
        raise InvalidTrace(f"the trace has step {stray}, which is not among the window's steps")
    if problem == TWICE:
        raise InvalidTrace(f"{describe(trace, row, template)} is recorded more than once")
    if problem == NOT_FINITE:
        raise InvalidTrace(f"{describe(trace, row, template)} has a time that is no finite number")
    if problem == OTHER:
        position = "first step" if template.step_at == 0 else f"step at {template.step_at}"
        raise OtherStructure(
            f"{describe(trace, row, template)} has no counterpart in the {position} of dp rank "
            f"{template.dp_rank}"
        )
    op = int(np.argwhere(np.isnan(start_s))[0, 0])
    raise OtherStructure(
        f"{template.describe(op)} is missing in some step or replica: "
        "a step needs every operation of every worker"
    )


def describe(trace: Trace, row: int, template: Template) -> str:
    """One row in words, for messages."""
    trace, row = trace.select(slice(row, row + 1)), 0
    return (
        f"step {trace.step[row]}, dp rank {trace.dp_rank[row]}, stage {trace.stage[row]}: "
        f"{template.op_types.name(trace.optype[row])} {trace.seq_id[row]} (chunk {trace.mc[row]})"
    )


GOOD, STRAY, OTHER, TWICE, MISSING, NOT_FINITE = range(6)

# Lanes placed together: fills whole cache lines of the grid although rows come worker by worker.
_SIDE_BY_SIDE = 8


@dataclass(frozen=True, slots=True)
class Columns:
    """A trace's columns [rows] and the lookup tables for its rows.

    Shapes: `steps` [steps], `simulated` and `has_chunk` [codes], `table` [stages, codes, seq ids]
    the operation or -1, `mc_of_op` [ops].
    """

    trace: Trace
    steps: Ints
    simulated: NDArray[np.bool_]
    has_chunk: NDArray[np.bool_]
    table: NDArray[np.int32]
    mc_of_op: Ints


def rows_of(trace: Trace, simulated: NDArray[np.bool_], of_step: int, of_dp: int) -> Ints:
    """Numbers of the simulated rows of one replica's step."""
    if isinstance(trace, RunTrace):
        runs = trace.runs
        rows = runs.rows_of_runs(np.flatnonzero((runs.step == of_step) & (runs.dp_rank == of_dp)))
    else:
        rows = np.flatnonzero((trace.step == of_step) & (trace.dp_rank == of_dp))
    return np.asarray(rows[simulated[trace.at("optype", rows)]])


Filled = tuple[Floats, Floats, Ints]  # start_s, duration_s and rank of a grid


def place_rows(
    columns: Columns, start_s: Floats, duration_s: Floats, rank: Ints
) -> tuple[int, int]:
    """Fill the grid; returns (problem, row). The row has no meaning for `MISSING`.

    `start_s` has to be NaN before.
    """
    first, like, alike_to, lanes = _lanes(columns, rank.shape[0])
    op_of = np.full(first[alike_to.max() + 1], -1, np.int64)
    into = (start_s, duration_s, rank)
    placed = 0
    for since, until in _ranges(~like):
        problem, row, count = _place_row_by_row(columns, first[since], first[until], op_of, into)
        if problem != GOOD:
            return problem, row
        placed += count
    for model in np.unique(alike_to[like]).tolist():
        alike = np.flatnonzero(like & (alike_to == model))
        rows = np.arange(first[model], first[model + 1])
        row = _place_alike(columns.trace, first[alike], lanes[alike], rows, op_of[rows], into)
        if row >= 0:
            return NOT_FINITE, row
        placed += alike.size * int(np.count_nonzero(op_of[rows] >= 0))
    return (GOOD if placed == start_s.size else MISSING), 0


def _ranges(chosen: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """First and end of each stretch of chosen positions."""
    edges = np.flatnonzero(np.diff(chosen, prepend=False, append=False))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def _lanes(columns: Columns, num_dp: int) -> tuple[Ints, NDArray[np.bool_], Ints, Ints]:
    """Stretches of rows of one lane: first rows, then the number of rows; which of them have the
    operations of a stretch of the first lane, as the rest of their lane has; that stretch; lanes.
    """
    trace = columns.trace
    if isinstance(trace, RunTrace):
        step, dp_rank = trace.runs.step, trace.runs.dp_rank
        is_first = (np.diff(step, prepend=-1) != 0) | (np.diff(dp_rank, prepend=-1) != 0)
        first_run = np.append(np.flatnonzero(is_first), trace.runs.num_runs)
        first = trace.runs.first_row[first_run]
    else:
        first = _runs(trace.step, trace.dp_rank)
    rows = first[:-1]
    step, dp_rank = trace.at("step", rows), trace.at("dp_rank", rows).astype(np.int64)
    position = np.minimum(np.searchsorted(columns.steps, step), columns.steps.size - 1)
    lanes = dp_rank * columns.steps.size + position
    known = (dp_rank >= 0) & (dp_rank < num_dp) & (columns.steps[position] == step)
    # A lane may be recorded worker by worker: each stretch is compared with that of its stage.
    model, stage = np.flatnonzero(lanes == lanes[0]), trace.at("stage", rows)
    stages, of_stage = np.unique(stage[model], return_index=True)
    at = np.minimum(np.searchsorted(stages, stage), stages.size - 1)
    alike_to = model[of_stage[at]]
    of_lane_and_stage = lanes * stages.size + at
    _, inverse, counts = np.unique(of_lane_and_stage, return_inverse=True, return_counts=True)
    like = known & (stages[at] == stage) & (counts[inverse] == 1)
    # The first lane itself is placed row by row, which checks all that are like it.
    like[model] = False
    if isinstance(trace, RunTrace):
        _keep_alike_runs(first_run, trace.runs.stage, trace.runs.shape_at, like)
    else:
        in_parallel(
            trace.num_ops,
            rows.size,
            lambda low, high: _keep_alike(
                first, alike_to, trace.stage, trace.optype, trace.seq_id, trace.mc, like, low, high
            ),
        )
    return first, like & ~np.isin(lanes, lanes[~like]), alike_to, lanes


def _keep_alike_runs(
    first_run: Ints, stage: NDArray[np.int16], shape_at: Ints, like: NDArray[np.bool_]
) -> None:
    """Leave in `like` those lanes that have the same shapes on the same stages as the first."""
    num_runs = first_run[1]
    like &= np.diff(first_run) == num_runs
    at = first_run[:-1][like][:, None] + np.arange(num_runs)
    same = (stage[at] == stage[:num_runs]) & (shape_at[at] == shape_at[:num_runs])
    like[like] = same.all(axis=1)


def _place_alike(
    trace: Trace, rows: Ints, lanes: Ints, model: Ints, op_of: Ints, into: Filled
) -> int:
    """Place runs like the rows `model`; returns a row with times that are not finite, or -1."""
    start_s, duration_s, rank = into
    num_steps = start_s.shape[1] // rank.shape[0]
    stage = trace.at("stage", model)
    for p in range(rank.shape[1]):
        if (of_stage := np.flatnonzero((stage == p) & (op_of >= 0))).size:
            rank[lanes // num_steps, p] = trace.at("rank", rows + of_stage[-1])
    bad = in_parallel(
        trace.num_ops,
        rows.size,
        lambda low, high: _side_by_side(
            rows[low:high], lanes[low:high], op_of, trace.start_s, trace.duration_s,
            start_s, duration_s,
        ),
    )  # fmt: skip
    return int(max(bad))


def _place_row_by_row(
    columns: Columns, first: int, end: int, op_of: Ints, into: Filled
) -> tuple[int, int, int]:
    """Place rows one by one: (problem, row where it is, number of rows placed)."""
    trace = columns.trace.select(slice(int(first), int(end)))
    problem, row, placed = _one_by_one(
        trace.step, trace.dp_rank, trace.stage, trace.optype, trace.seq_id, trace.mc, trace.rank,
        trace.start_s, trace.duration_s, columns.steps, columns.simulated, columns.has_chunk,
        columns.table, columns.mc_of_op, *into, op_of, first,
    )  # fmt: skip
    return int(problem), int(row), int(placed)


def _runs(step: Ints, dp_rank: Ints) -> Ints:
    """First row of each run of rows of one lane, then the number of rows.

    With more runs than a quarter of the rows, all rows count as one run.
    """
    is_new = (step[1:] != step[:-1]) | (dp_rank[1:] != dp_rank[:-1])
    if np.count_nonzero(is_new) > step.size // 4:
        return np.array([0, step.size])
    return np.concatenate(([0], np.flatnonzero(is_new) + 1, [step.size]))


@kernel
def _keep_alike(  # type: ignore[no-untyped-def]
    first, alike_to, stage, optype, seq_id, mc, like, low, high
):
    """Leave in `like` those runs that record the same operations in the same order."""
    for run in range(low, high):
        since, model = first[run], first[alike_to[run]]
        num_rows = first[alike_to[run] + 1] - model
        if not like[run] or first[run + 1] - since != num_rows:
            like[run] = False
            continue
        rows, model_rows = slice(since, since + num_rows), slice(model, model + num_rows)
        differences = 0
        # Of slices, no row is before the first one: loops over those are several times as fast.
        stages, types, seq_ids, chunks = stage[rows], optype[rows], seq_id[rows], mc[rows]
        model_stages, model_types = stage[model_rows], optype[model_rows]
        model_seq_ids, model_chunks = seq_id[model_rows], mc[model_rows]
        for row in range(num_rows):
            differences |= stages[row] ^ model_stages[row] | types[row] ^ model_types[row]
            differences |= seq_ids[row] ^ model_seq_ids[row] | chunks[row] ^ model_chunks[row]
        like[run] = differences == 0


@kernel
def _one_by_one(  # type: ignore[no-untyped-def]
    step, dp_rank, stage, optype, seq_id, mc, rank_of_row, start_of_row_s, duration_of_row_s,
    steps, simulated, has_chunk, table, mc_of_op, start_s, duration_s, rank, op_of, before,
):  # fmt: skip
    # There are `before` rows before the first one of these columns.
    num_steps, num_dp = steps.size, rank.shape[0]
    num_stages, num_codes, num_seq_ids = table.shape
    placed, position, last_step = 0, 0, steps[0] - 1
    for row in range(step.size):
        d, code, seq, p = dp_rank[row], optype[row], seq_id[row], stage[row]
        if not simulated[code]:
            continue
        if d < 0 or d >= num_dp or p < 0 or p >= num_stages:
            return OTHER, before + row, 0
        if step[row] != last_step:
            last_step = step[row]
            position = np.searchsorted(steps, last_step)
            if position == num_steps or steps[position] != last_step:
                return STRAY, before + row, 0
        if code >= num_codes or seq < 0 or seq >= num_seq_ids:
            return OTHER, before + row, 0
        op = table[p, code, seq]
        if op < 0 or (has_chunk[code] and mc[row] != mc_of_op[op]):
            return OTHER, before + row, 0
        if not (np.isfinite(start_of_row_s[row]) and np.isfinite(duration_of_row_s[row])):
            return NOT_FINITE, before + row, 0
        lane = d * num_steps + position
        if not np.isnan(start_s[op, lane]):
            return TWICE, before + row, 0
        start_s[op, lane], duration_s[op, lane] = start_of_row_s[row], duration_of_row_s[row]
        rank[d, p] = rank_of_row[row]
        if before + row < op_of.size:
            op_of[before + row] = op
        placed += 1
    return GOOD, 0, placed


@kernel
def _side_by_side(  # type: ignore[no-untyped-def]
    rows, lanes, op_of, start_of_row_s, duration_of_row_s, start_s, duration_s
):
    for base in range(0, rows.size, _SIDE_BY_SIDE):
        top = min(base + _SIDE_BY_SIDE, rows.size)
        for offset in range(op_of.size):
            op = op_of[offset]
            if op < 0:
                continue
            for position in range(base, top):
                row = rows[position] + offset
                began_s, took_s = start_of_row_s[row], duration_of_row_s[row]
                if not (np.isfinite(began_s) and np.isfinite(took_s)):
                    return row
                start_s[op, lanes[position]] = began_s
                duration_s[op, lanes[position]] = took_s
    return -1
