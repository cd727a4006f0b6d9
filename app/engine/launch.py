"""Launch delay: how long an operation that could have started did not."""

from dataclasses import dataclass

import numpy as np

from app.engine.compiled import kernel
from app.engine.graph import StepGraph
from app.engine.grid import Grid
from app.trace.ops import OP_NAMES
from app.trace.window import Floats


@dataclass(frozen=True, slots=True)
class LaunchDelay:
    """Mean seconds a step: by op type for an average worker, and in all for each worker.

    The sum over op types equals the mean over workers. `by_worker` is [dp, pp].
    """

    by_optype: dict[str, float]
    by_worker: Floats


def launch_delay(grid: Grid, graph: StepGraph) -> LaunchDelay:
    """The gap from the end of what an operation waits for to its recorded start.

    The first operations of a step are measured from the step's earliest start.
    """
    template = grid.template
    delay_s = np.empty_like(grid.start_s)
    _gaps(graph.pred_ptr, graph.preds, grid.start_s, grid.duration_s, grid.num_steps, delay_s)
    dp_size, pp_size = template.parallelism.dp_size, template.parallelism.pp_size
    per_op = delay_s.reshape(template.num_ops, dp_size, grid.num_steps).mean(axis=2)
    by_worker = np.zeros((dp_size, pp_size))
    np.add.at(by_worker.T, template.stage, per_op)
    per_op_s = per_op.sum(axis=1) / (dp_size * pp_size)
    by_optype = np.bincount(template.optype, weights=per_op_s, minlength=len(OP_NAMES))
    present = np.unique(template.optype)
    return LaunchDelay({OP_NAMES[code]: float(by_optype[code]) for code in present}, by_worker)


@kernel
def _gaps(pred_ptr, preds, start_s, duration_s, num_steps, delay_s):  # type: ignore[no-untyped-def]
    num_ops, num_lanes = start_s.shape
    earliest_s = np.full(num_steps, np.inf)
    for op in range(num_ops):
        for lane in range(num_lanes):
            step = lane % num_steps
            earliest_s[step] = min(earliest_s[step], start_s[op, lane])
    for op in range(num_ops):
        for lane in range(num_lanes):
            ready_s = earliest_s[lane % num_steps]
            for edge in range(pred_ptr[op], pred_ptr[op + 1]):
                ready_s = max(ready_s, start_s[preds[edge], lane] + duration_s[preds[edge], lane])
            delay_s[op, lane] = max(0.0, start_s[op, lane] - ready_s)
