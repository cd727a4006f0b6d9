"""What clients themselves say of interruptions: gc-pause and data-wait annotations."""

import numpy as np

from app.diagnosis.case import Case
from app.diagnosis.events import Events, joined, none
from app.diagnosis.features import Features
from app.trace.ops import COMPUTE_STREAM, NUM_CODES, OP_CODES, Direction
from app.trace.window import Floats, Integers, Ints, Trace

# In place of nothing, where a ratio needs something to be measured by.
LEAST_S = 1e-9


def noted(case: Case, name: str) -> Trace | None:
    """The annotations of one type, of replayed steps; None where there are none."""
    trace = case.replay.window.trace
    rows = np.flatnonzero(trace.optype == OP_CODES[name])
    return trace.select(rows) if rows.size else None


def noted_s(case: Case, name: str) -> Floats:
    """[steps, dp, pp], seconds of one type of annotation."""
    found = noted(case, name)
    sizes = (case.steps.size, case.parallelism.dp_size, case.parallelism.pp_size)
    total_s = np.zeros(sizes)
    if found is None:
        return total_s
    at = np.searchsorted(case.steps, found.step)
    known = (at < case.steps.size) & (case.steps[np.minimum(at, case.steps.size - 1)] == found.step)
    place = (at[known], found.dp_rank[known], found.stage[known])
    np.add.at(total_s, place, found.duration_s[known])
    return total_s


def noted_pauses(case: Case) -> Events:
    """Computations with a gc-pause inside, each once; the pauses are what each took too long."""
    pauses = noted(case, "gc-pause")
    if pauses is None:
        return none()
    inside = _computation_around(case, pauses)
    known = inside >= 0
    computations = case.replay.window.trace.select(inside[known])
    return joined(
        [
            _paused(case, number, group, computations, pauses.duration_s[known])
            for number, group in enumerate(case.groups)
        ]
    )


def _computation_around(case: Case, pauses: Trace) -> Ints:
    """[pauses], the trace's row of the computation that each began in, -1 if in none.

    Looked for in the trace, not among the replayed operations: there all go by the same clock.
    """
    trace, types = case.replay.window.trace, case.replay.window.job.op_types
    is_computation = types.flags(lambda spec: spec.stream == COMPUTE_STREAM)
    paused = np.zeros((case.parallelism.dp_size, case.parallelism.pp_size), np.bool_)
    paused[pauses.dp_rank, pauses.stage] = True
    rows = np.flatnonzero(is_computation[trace.optype] & paused[trace.dp_rank, trace.stage])
    both = [
        np.concatenate([column[rows], of_pauses])
        for column, of_pauses in (
            (trace.step, pauses.step),
            (trace.dp_rank, pauses.dp_rank),
            (trace.stage, pauses.stage),
            (trace.start_s, pauses.start_s),
        )
    ]
    is_pause = np.arange(both[0].size) >= rows.size
    # The last computation of the worker's step that began no later than the pause.
    order = np.lexsort((is_pause, both[3], both[2], both[1], both[0]))
    before = np.where(is_pause[order], -1, np.arange(order.size))
    last = np.empty(order.size, np.int64)
    last[order] = order[np.maximum(np.maximum.accumulate(before), 0)]
    at = last[rows.size :]
    found = np.where(at < rows.size, rows[np.minimum(at, rows.size - 1)], -1)
    same = [
        column[found] == of_pauses
        for column, of_pauses in (
            (trace.step, pauses.step),
            (trace.dp_rank, pauses.dp_rank),
            (trace.stage, pauses.stage),
        )
    ]
    inside = (trace.start_s[found] <= pauses.start_s) & (
        pauses.start_s < trace.start_s[found] + trace.duration_s[found]
    )
    return np.where((found >= 0) & np.logical_and.reduce(same) & inside, found, -1)


def _paused(
    case: Case, number: int, group: Features, computations: Trace, pause_s: Floats
) -> Events:
    steps, template = np.asarray(group.steps), group.replayer.template
    mine = np.isin(computations.step, steps)
    computations, pause_s = computations.select(mine), pause_s[mine]
    num_lanes = group.replayer.dp_size * steps.size
    lane = computations.dp_rank * steps.size + np.searchsorted(steps, computations.step)
    keys, at = np.unique(_rows(group, computations) * num_lanes + lane, return_inverse=True)
    row, lane = np.divmod(keys, num_lanes)
    dp_rank, step = np.divmod(lane, steps.size)
    took_s = group.replayer.durations.recorded_s[row, lane]
    excess_s = np.minimum(np.bincount(at, pause_s, keys.size), took_s)
    forward = template.op_types.flags(lambda spec: spec.direction is Direction.FORWARD)
    return Events(
        group=np.full(row.size, number),
        row=row,
        lane=lane,
        item=np.full(row.size, -1),
        step=case.at(group)[step],
        dp_rank=dp_rank,
        stage=template.stage[row],
        is_backward=~forward[template.optype[row]],
        ratio=took_s / np.maximum(took_s - excess_s, LEAST_S),
        excess_s=excess_s,
        least_s=took_s - excess_s,
    )


def _rows(group: Features, computations: Trace) -> Ints:
    """The template's row of each operation of the trace."""
    template = group.replayer.template
    num_ids = int(template.seq_id.max()) + 1

    def key(stage: Integers, optype: Integers, seq_id: Integers) -> Ints:
        return (stage.astype(np.int64) * NUM_CODES + optype) * num_ids + seq_id

    keys = key(template.stage, template.optype, template.seq_id)
    order = np.argsort(keys)
    wanted = key(computations.stage, computations.optype, computations.seq_id)
    return order[np.searchsorted(keys[order], wanted)]
