"""Launch delay: how long an operation that could have started did not, and who waited for it."""

from dataclasses import dataclass

import numpy as np

from app.engine.compiled import kernel
from app.engine.graph import StepGraph
from app.engine.grid import Grid
from app.engine.parallel import in_parallel
from app.trace.window import Floats


@dataclass(frozen=True, slots=True)
class LaunchDelay:
    """Mean seconds a step: by op type for an average worker, and in all for each worker.

    The sum over op types equals the mean over workers. `others_waited` is what other workers
    waited, where operations meet, because this one's was launched late. Shapes: `by_worker` and
    `others_waited` [dp, pp].
    """

    by_optype: dict[str, float]
    by_worker: Floats
    others_waited: Floats


def launch_delay(grid: Grid, graph: StepGraph) -> LaunchDelay:
    """The gap from the end of what an operation waits for to its recorded start.

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
    # Seconds of every operation in all lanes; of every stage and lane, late and waited for.
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
    """Add to the last to arrive what all others waited only because it was launched late."""
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
