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
from app.engine.what_if import Replayer
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
        *(_by_worker(lanes_s, dp_size) for lanes_s in (late_s, waited_s)),
    )


def _by_worker(lanes_s: Floats, dp_size: int) -> Floats:
    """[dp, pp], the mean over steps of [pp, lanes]."""
    by_step = lanes_s.reshape(lanes_s.shape[0], dp_size, -1)
    return np.asarray(by_step.mean(axis=2).T)


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
class TypeTime:
    """Mean seconds per step and worker in operations of one type.

    Communication waits until the last arrival, then transfers; both are None for compute.
    """

    recorded_s: float
    transfer_s: float | None
    wait_s: float | None


@dataclass(frozen=True, slots=True)
class OpTimes:
    """Mean times over all steps.

    `forward_s` and `backward_s` [pp] are per micro-batch on the stage, over all its chunks; None if
    it has none. The keys of `by_type` are those of the op-type slowdowns.
    """

    forward_s: list[float | None]
    backward_s: list[float | None]
    by_type: dict[str, TypeTime]


@dataclass(frozen=True, slots=True)
class _Rows:
    """[ops] sums over all lanes of a group, seconds: own time, and recorded communication."""

    group: Replayer
    own_s: Floats
    recorded_s: Floats


def op_times(replay: WindowReplay) -> OpTimes:
    """Mean times of a window, from own durations and recorded communication."""
    sums = [_sums(group) for group in replay.groups]
    return OpTimes(
        _of_stages(replay, sums, Direction.FORWARD),
        _of_stages(replay, sums, Direction.BACKWARD),
        _of_types(replay, sums),
    )


def _sums(group: Replayer) -> _Rows:
    template, own_s = group.template, group.durations.recorded_s
    by_code = template.op_types.by_code
    talks = [code for code in template.present if by_code[code].kind is not OpKind.COMPUTE]
    talking = np.isin(template.optype, talks)
    return _Rows(
        group,
        _row_sums(own_s, np.arange(template.num_ops), template.num_ops),
        _row_sums(group.grid.duration_s, np.flatnonzero(talking), template.num_ops),
    )


def _row_sums(values: Floats, rows: Ints, num_ops: int) -> Floats:
    """[ops], sums of some rows over all lanes; 0 for the others."""
    found = np.zeros(num_ops)
    parts = in_parallel(
        rows.size * values.shape[1],
        rows.size,
        lambda first, end: row_sums(values, rows[first:end]),
    )
    found[rows] = np.concatenate(parts)
    return found


def _of_stages(replay: WindowReplay, sums: list[_Rows], direction: Direction) -> list[float | None]:
    """[pp], seconds a micro-batch."""
    pp_size = replay.window.job.parallelism.pp_size
    total_s, count = np.zeros(pp_size), np.zeros(pp_size)
    for rows in sums:
        template = rows.group.template
        ops = _computing(template, direction)
        stage = template.stage[ops]
        total_s += np.bincount(stage, rows.own_s[ops], pp_size)
        num_lanes = rows.group.grid.start_s.shape[1]
        count += _microbatches(template, ops, pp_size) * num_lanes
    return [float(t / n) if n else None for t, n in zip(total_s, count, strict=True)]


def _computing(template: Template, direction: Direction) -> Ints:
    by_code = template.op_types.by_code
    codes = [
        code
        for code in template.present
        if by_code[code].kind is OpKind.COMPUTE
        and (
            by_code[code].direction is direction
            or (direction is Direction.BACKWARD and by_code[code].name == BACKWARD_WEIGHT)
        )
    ]
    return np.flatnonzero(np.isin(template.optype, codes))


def _microbatches(template: Template, ops: Ints, pp_size: int) -> Floats:
    """[pp], micro-batches of a step: each is computed once in every chunk of the stage."""
    by_code = template.op_types.by_code
    second = [code for code in template.present if by_code[code].name == BACKWARD_WEIGHT]
    whole = ops[~np.isin(template.optype[ops], second)]
    stage = template.stage[whole]
    pairs = set(zip(stage.tolist(), template.mc[whole].tolist(), strict=True))
    num_of_stage = np.bincount(np.array([at for at, _ in pairs], np.int64), minlength=pp_size)
    num_chunks = np.maximum(num_of_stage, 1)
    return np.asarray(np.bincount(stage, minlength=pp_size) / num_chunks)


def _of_types(replay: WindowReplay, sums: list[_Rows]) -> dict[str, TypeTime]:
    sizes, by_code = replay.window.job.parallelism, replay.window.job.op_types.by_code
    num_worker_steps = sizes.dp_size * sizes.pp_size * len(replay.steps)
    own_s: dict[str, float] = {}
    recorded_s: dict[str, float] = {}
    talks: dict[str, bool] = {}
    by_group = [
        [np.bincount(rows.group.template.optype, times_s, NUM_CODES) for times_s in both]
        for rows, both in ((rows, (rows.own_s, rows.recorded_s)) for rows in sums)
    ]
    own_of, talked_of = np.sum(by_group, axis=0).tolist()
    for code in sorted({code for rows in sums for code in rows.group.template.present}):
        name = by_code[code].group
        talks[name] = by_code[code].kind is not OpKind.COMPUTE
        own_s[name] = own_s.get(name, 0.0) + own_of[code]
        recorded_s[name] = recorded_s.get(name, 0.0) + talked_of[code]
    return {
        name: _time(own_s[name], recorded_s[name] if talks[name] else None, num_worker_steps)
        for name in own_s
    }


def _time(own_s: float, recorded_s: float | None, num_worker_steps: int) -> TypeTime:
    own_s /= num_worker_steps
    if recorded_s is None:
        return TypeTime(own_s, None, None)
    recorded_s /= num_worker_steps
    return TypeTime(recorded_s, own_s, recorded_s - own_s)
