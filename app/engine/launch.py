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
    earliest_s, _ = step_spans(grid)
    block = np.arange(dp_size) // template.parallelism.ep_size
    parts = in_parallel(
        grid.start_s.size,
        graph.meets.size,
        lambda first, end: _delays(
            graph.unit_ptr, graph.unit_ops, graph.meets, graph.pred_ptr, graph.preds,
            graph.milestone_of, graph.milestone_share, template.stage, grid.start_s,
            grid.duration_s, earliest_s, block, pp_size, first, end,
        ),
    )  # fmt: skip
    by_op, by_worker, others_waited = (
        sum(part) / grid.num_steps for part in zip(*parts, strict=True)
    )
    by_code = np.bincount(template.optype, weights=by_op) / (dp_size * pp_size)
    by_optype = {template.op_types.name(code): float(by_code[code]) for code in template.present}
    return LaunchDelay(by_optype, by_worker, others_waited)


def step_spans(grid: Grid) -> tuple[Floats, Floats]:
    """Earliest start and latest end of every step over all workers, [steps] seconds."""
    parts = in_parallel(
        grid.start_s.size,
        grid.template.num_ops,
        lambda first, end: _spans(grid.start_s, grid.duration_s, grid.num_steps, first, end),
    )
    earliest_s, latest_s = (np.stack(part) for part in zip(*parts, strict=True))
    return earliest_s.min(axis=0), latest_s.max(axis=0)


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


@kernel
def _delays(  # type: ignore[no-untyped-def]
    unit_ptr, unit_ops, meets, pred_ptr, preds, milestone_of, milestone_share, stage,
    start_s, duration_s, earliest_s, block, num_stages, first, end,
):  # fmt: skip
    num_ops, num_lanes = start_s.shape
    num_steps, num_dp = earliest_s.size, block.size
    by_op = np.zeros(num_ops)
    by_worker, others_waited = np.zeros((num_dp, num_stages)), np.zeros((num_dp, num_stages))
    largest = 1
    for unit in range(first, end):
        largest = max(largest, unit_ptr[unit + 1] - unit_ptr[unit])
    delay_s = np.empty((largest, num_lanes))
    since_start_s = np.empty(num_lanes)
    for lane in range(num_lanes):
        since_start_s[lane] = earliest_s[lane % num_steps]
    for unit in range(first, end):
        low, high = unit_ptr[unit], unit_ptr[unit + 1]
        if unit_ops[low] >= num_ops:
            continue
        for member in range(low, high):
            op = unit_ops[member]
            late_s, began_s = delay_s[member - low], start_s[op]
            late_s[:] = since_start_s
            for edge in range(pred_ptr[op], pred_ptr[op + 1]):
                before, share = preds[edge], 1.0
                if before >= num_ops:
                    share = milestone_share[before - num_ops]
                    before = milestone_of[before - num_ops]
                from_s, took_s = start_s[before], duration_s[before]
                for lane in range(num_lanes):
                    late_s[lane] = max(late_s[lane], from_s[lane] + share * took_s[lane])
            total_s = 0.0
            for lane in range(num_lanes):
                late_s[lane] = max(0.0, began_s[lane] - late_s[lane])
                total_s += late_s[lane]
            by_op[op] += total_s
            for peer in range(num_dp):
                mine_s = 0.0
                for lane in range(peer * num_steps, (peer + 1) * num_steps):
                    mine_s += late_s[lane]
                by_worker[peer, stage[op]] += mine_s
        if high - low == 1 and meets[unit] == 0:
            continue
        since = 0
        for peer in range(1, num_dp + 1):
            if peer < num_dp and (
                meets[unit] == 1 or (meets[unit] == 2 and block[peer] == block[since])
            ):
                continue
            for step in range(num_steps):
                last_op, last_lane, last_member = unit_ops[low], since * num_steps + step, low
                for member in range(low, high):
                    op = unit_ops[member]
                    for lane in range(since * num_steps + step, peer * num_steps, num_steps):
                        if start_s[op, lane] > start_s[last_op, last_lane]:
                            last_op, last_lane, last_member = op, lane, member
                cause_s = delay_s[last_member - low, last_lane]
                if cause_s <= 0.0:
                    continue
                waited_s = 0.0
                for member in range(low, high):
                    op = unit_ops[member]
                    for lane in range(since * num_steps + step, peer * num_steps, num_steps):
                        waited_s += min(cause_s, start_s[last_op, last_lane] - start_s[op, lane])
                others_waited[last_lane // num_steps, stage[last_op]] += waited_s
            since = peer
    return by_op, by_worker, others_waited
