"""Durations and launch delays of operations.

Mean times by type and stage (`op_times`), and launch delays by type and worker with the waits that
they caused (`launch_delay`).
"""

from dataclasses import dataclass

import numpy as np

from app.engine.durations import row_sums
from app.engine.graph import StepGraph
from app.engine.grid import Grid
from app.engine.kernels import in_parallel, kernel
from app.engine.replays import WindowReplay
from app.engine.template import Template
from app.result.window_result import OptypeTime, StageCompute
from app.trace.ops import BACKWARD_WEIGHT, NUM_CODES, Direction, OpKind
from app.trace.window import Floats, Ints


@dataclass(frozen=True, slots=True)
class LaunchDelay:
    """Mean seconds per step: by op type for an average worker, and the total of each worker.

    The sum over op types equals the mean over workers. `others_waited` is the wait of peers caused
    by this worker's late launches. Shapes: `by_worker` and `others_waited` [dp, pp].
    """

    by_optype: dict[str, float]
    by_worker: Floats
    others_waited: Floats


def launch_delay(grid: Grid, graph: StepGraph) -> LaunchDelay:
    """The gap from the last end among an operation's predecessors to its recorded start.

    The first operations of a step are measured from the step's earliest start.
    """
    template = grid.template
    dp_size, pp_size = template.parallelism.dp_size, template.parallelism.pp_size
    earliest_s = grid.began_s
    block = np.arange(dp_size) // template.parallelism.ep_size
    stage = np.concatenate([template.stage, template.stage[graph.milestone_of]])
    parts = in_parallel(
        grid.start_s.size,
        graph.meets.size,
        lambda first, end: _delays(
            graph.unit_ptr, graph.unit_ops, graph.meets, graph.pred_ptr, graph.preds,
            graph.milestone_of, graph.milestone_share, stage, grid.start_s,
            grid.duration_s, earliest_s, block, pp_size, first, end,
        ),
    )  # fmt: skip
    # Seconds by operation over all lanes; launch delay and caused waits by stage and lane.
    by_op, late_s, waited_s = (np.sum(part, axis=0) for part in zip(*parts, strict=True))
    by_code = np.bincount(template.optype, weights=by_op) / (dp_size * pp_size * grid.num_steps)
    return LaunchDelay(
        {template.op_types.name(code): float(by_code[code]) for code in template.present},
        *(times_s.reshape(pp_size, dp_size, -1).mean(axis=2).T for times_s in (late_s, waited_s)),
    )


@kernel
def _delays(  # type: ignore[no-untyped-def]
    unit_ptr, unit_ops, meets, pred_ptr, preds, milestone_of, milestone_share, stage,
    start_s, duration_s, earliest_s, block, num_stages, first, end,
):  # fmt: skip
    num_ops, num_lanes = start_s.shape
    num_steps, num_dp = earliest_s.size, block.size
    by_op = np.zeros(num_ops)
    by_stage_s, waited_s = np.zeros((num_stages, num_lanes)), np.zeros((num_stages, num_lanes))
    largest = 1
    for unit in range(first, end):
        largest = max(largest, unit_ptr[unit + 1] - unit_ptr[unit])
    delay_s, began_s = np.empty((largest, num_lanes)), np.empty(num_lanes)
    for lane in range(num_lanes):
        began_s[lane] = earliest_s[lane % num_steps]
    for unit in range(first, end):
        low, high = unit_ptr[unit], unit_ptr[unit + 1]
        if unit_ops[low] >= num_ops:
            continue
        for member in range(low, high):
            op, late = unit_ops[member], member - low
            for lane in range(num_lanes):
                delay_s[late, lane] = began_s[lane]
            for edge in range(pred_ptr[op], pred_ptr[op + 1]):
                before, share = preds[edge], 1.0
                if before >= num_ops:
                    share = milestone_share[before - num_ops]
                    if share <= 0.0:  # no moment of an operation, but one that it waits for
                        continue
                    before = milestone_of[before - num_ops]
                for lane in range(num_lanes):
                    ready_s = start_s[before, lane] + share * duration_s[before, lane]
                    delay_s[late, lane] = max(delay_s[late, lane], ready_s)
            total_s = 0.0
            for lane in range(num_lanes):
                late_s = max(0.0, start_s[op, lane] - delay_s[late, lane])
                delay_s[late, lane] = late_s
                by_stage_s[stage[op], lane] += late_s
                total_s += late_s
            by_op[op] += total_s
        if meets[unit] != 0:
            since = 0
            for peer in range(1, num_dp + 1):
                if peer < num_dp and (meets[unit] == 1 or block[peer] == block[since]):
                    continue
                for step in range(num_steps):
                    _blame(
                        unit_ops, low, high, start_s, delay_s, stage,
                        since * num_steps + step, peer * num_steps, num_steps, waited_s,
                    )  # fmt: skip
                since = peer
        elif high - low == 2:
            one, two = unit_ops[low], unit_ops[low + 1]
            for lane in range(num_lanes):
                later_s = start_s[one, lane] - start_s[two, lane]
                waited_s[stage[one], lane] += max(0.0, min(later_s, delay_s[0, lane]))
                waited_s[stage[two], lane] += max(0.0, min(-later_s, delay_s[1, lane]))
        elif high - low > 2:
            for lane in range(num_lanes):
                _blame(
                    unit_ops, low, high, start_s, delay_s, stage, lane, lane + 1, 1, waited_s
                )  # fmt: skip
    return by_op, by_stage_s, waited_s


@kernel
def _blame(  # type: ignore[no-untyped-def]
    unit_ops, low, high, start_s, delay_s, stage, first, end, stride, waited_s
):
    """Add to the last arrival the wait of all others that its launch delay caused."""
    last, last_lane, second_s, others = low, first, -np.inf, -1
    for member in range(low, high):
        for lane in range(first, end, stride):
            others += 1
            came_s = start_s[unit_ops[member], lane]
            if came_s > start_s[unit_ops[last], last_lane]:
                second_s = max(second_s, start_s[unit_ops[last], last_lane])
                last, last_lane = member, lane
            elif member != last or lane != last_lane:
                second_s = max(second_s, came_s)
    alone_s = start_s[unit_ops[last], last_lane] - second_s
    if others > 0:
        waited_s[stage[unit_ops[last]], last_lane] += others * min(
            delay_s[last - low, last_lane], alone_s
        )


@dataclass(frozen=True, slots=True)
class OpTimes:
    """Mean times over all steps: of a micro-batch, over all chunks of a stage, and by type.

    The keys of `by_type` are those of the op-type slowdowns. Communication waits until the last
    arrival, then transfers; both are None for compute.
    """

    stages: StageCompute
    by_type: dict[str, OptypeTime]


def op_times(replay: WindowReplay) -> OpTimes:
    """Mean times of a window, from own durations and recorded communication."""
    pp_size = replay.window.job.parallelism.pp_size
    # Seconds and micro-batches by stage, then own seconds and recorded ones by code.
    of_stages = {way: np.zeros((2, pp_size)) for way in (Direction.FORWARD, Direction.BACKWARD)}
    by_code_s = np.zeros((2, NUM_CODES))
    for group in replay.groups:
        template = group.template
        communicates = template.op_types.flags(lambda spec: spec.kind is not OpKind.COMPUTE)
        rows = np.flatnonzero(communicates[template.optype])
        every_row = np.arange(template.num_ops)
        own_s = _row_sums(group.durations.recorded_s, every_row, template.num_ops)
        recorded_s = _row_sums(group.grid.duration_s, rows, template.num_ops)
        for total_s, times_s in zip(by_code_s, (own_s, recorded_s), strict=True):
            total_s += np.bincount(template.optype, times_s, NUM_CODES)
        for direction, (seconds, count) in of_stages.items():
            ops = _computing(template, direction)
            seconds += np.bincount(template.stage[ops], own_s[ops], pp_size)
            count += _microbatches(template, ops, pp_size) * group.grid.start_s.shape[1]
    forward, backward = (
        tuple(float(seconds / count) if count else None for seconds, count in totals.T)
        for totals in of_stages.values()
    )
    return OpTimes(StageCompute(forward=forward, backward=backward), _of_types(replay, by_code_s))


def _row_sums(values: Floats, rows: Ints, num_ops: int) -> Floats:
    """[ops], sums of some rows over all lanes; 0 for the others."""
    sums = np.zeros(num_ops)
    parts = in_parallel(
        rows.size * values.shape[1],
        rows.size,
        lambda first, end: row_sums(values, rows[first:end]),
    )
    sums[rows] = np.concatenate(parts)
    return sums


def _computing(template: Template, direction: Direction) -> Ints:
    names = {BACKWARD_WEIGHT} if direction is Direction.BACKWARD else set()
    flags = template.op_types.flags(
        lambda spec: (
            spec.kind is OpKind.COMPUTE and (spec.direction is direction or spec.name in names)
        )
    )
    return np.flatnonzero(flags[template.optype])


def _microbatches(template: Template, ops: Ints, pp_size: int) -> Floats:
    """[pp], micro-batches of a step: each is computed once in every chunk of the stage."""
    is_second_half = template.op_types.flags(lambda spec: spec.name == BACKWARD_WEIGHT)
    passes = ops[~is_second_half[template.optype[ops]]]
    stage = template.stage[passes]
    of_chunks = np.unique(np.stack([stage, template.mc[passes]]), axis=1)[0]
    num_chunks = np.maximum(np.bincount(of_chunks, minlength=pp_size), 1)
    return np.asarray(np.bincount(stage, minlength=pp_size) / num_chunks)


def _of_types(replay: WindowReplay, by_code_s: Floats) -> dict[str, OptypeTime]:
    """Mean times by type of own and recorded seconds [2, codes]."""
    sizes, by_code = replay.window.job.parallelism, replay.window.job.op_types.by_code
    num_worker_steps = sizes.dp_size * sizes.pp_size * len(replay.steps)
    totals_s: dict[str, Floats] = {}
    communicates: dict[str, bool] = {}
    for code in sorted({code for group in replay.groups for code in group.template.present}):
        name = by_code[code].group
        communicates[name] = by_code[code].kind is not OpKind.COMPUTE
        totals_s[name] = totals_s.get(name, np.zeros(2)) + by_code_s[:, code]
    return {
        name: _time(*(total_s / num_worker_steps).tolist(), communicates=communicates[name])
        for name, total_s in totals_s.items()
    }


def _time(own_s: float, recorded_s: float, *, communicates: bool) -> OptypeTime:
    if not communicates:
        return OptypeTime(recorded=own_s, transfer=None, wait=None)
    return OptypeTime(recorded=recorded_s, transfer=own_s, wait=recorded_s - own_s)
