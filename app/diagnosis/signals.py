"""Five figures of every worker in every step: enough to see later that something changed.

| name | meaning, [steps, dp, pp] seconds |
| --- | --- |
| compute_s | a forward and a backward computation, mean of both, without a lone pause |
| once_s | computations of no micro-batch, as the optimizer's, summed; not what `gc` takes |
| transfer_s | a transfer to or from another stage, mean over those that meet a peer |
| collective_s | all transfers among dp ranks that the worker takes part in, summed |
| launch_s | launch delays of whatever computes, summed |

A figure that a job does not have, as transfers without a pipeline, is left out.
"""

from collections.abc import Callable

import numpy as np

from app.diagnosis.features import Computations, Features, ops_of
from app.engine.compiled import kernel
from app.engine.parallel import in_parallel
from app.engine.what_if import Replayer
from app.trace.ops import OP_CODES, Axis, Direction, Kind
from app.trace.window import Floats, Ints

NAMES = ("compute_s", "once_s", "transfer_s", "collective_s", "launch_s")

# Garbage is collected now and then, and that has a cause of its own.
_GC = OP_CODES["gc"]


def signals(group: Features) -> dict[str, Floats]:
    """The signals of a group's steps, those that it has."""
    found = {name: _OF[name](group) for name in NAMES}
    return {name: values for name, values in found.items() if values is not None}


def _compute_s(group: Features) -> Floats | None:
    paces = [each.pace.mean_s for each in _present(group)]
    return np.mean(paces, axis=0) if paces else None


def _present(group: Features) -> list[Computations]:
    return [each for each in (group.forward, group.backward) if each is not None]


def _once_s(group: Features) -> Floats | None:
    template = group.replayer.template
    by_code = template.op_types.by_code
    codes = [
        code
        for code in template.present
        if by_code[code].kind is Kind.COMPUTE
        and by_code[code].direction is Direction.NONE
        and code != _GC
    ]
    rows = ops_of(template, codes)
    return _summed(group.replayer, rows) if rows.size else None


def _transfer_s(group: Features) -> Floats | None:
    rows = _that_meet(group.replayer)
    stage = group.replayer.template.stage[rows]
    counts = np.bincount(stage, minlength=group.replayer.pp_size)
    if not rows.size:
        return None
    return _summed(group.replayer, rows) / np.maximum(counts, 1)


def _collective_s(group: Features) -> Floats | None:
    template = group.replayer.template
    by_code = template.op_types.by_code
    codes = [
        code
        for code in template.present
        if by_code[code].kind is Kind.COLLECTIVE and by_code[code].axis in (Axis.DP, Axis.EP)
    ]
    rows = ops_of(template, codes)
    return _summed(group.replayer, rows) if rows.size else None


def _that_meet(replayer: Replayer) -> Ints:
    """Transfers between stages that are one of a pair; the others' durations have waits in them."""
    template, graph = replayer.template, replayer.graph
    sizes = np.diff(graph.unit_ptr)
    row_size = np.empty(graph.num_rows, np.int64)
    row_size[graph.unit_ops] = np.repeat(sizes, sizes)
    codes = [code for code in template.present if template.op_types.by_code[code].kind is Kind.P2P]
    rows = ops_of(template, codes)
    return np.asarray(rows[row_size[rows] > 1])


def _summed(replayer: Replayer, rows: Ints) -> Floats:
    """[steps, dp, pp], own durations of some rows."""
    own_s = replayer.durations.recorded_s
    rows, bounds = _of_stages(replayer, rows)
    total_s = np.zeros((replayer.pp_size, own_s.shape[1]))
    in_parallel(
        rows.size * own_s.shape[1],
        replayer.pp_size,
        lambda first, end: _sum(own_s, rows, bounds, first, end, total_s),
    )
    return _by_step(replayer, total_s)


def _launch_s(group: Features) -> Floats | None:
    replayer, grid, graph = group.replayer, group.replayer.grid, group.replayer.graph
    rows, bounds = _of_stages(replayer, group.that_compute)
    late_s = np.zeros((replayer.pp_size, grid.start_s.shape[1]))
    earliest_s = grid.began_s
    in_parallel(
        rows.size * grid.start_s.shape[1] * 2,
        replayer.pp_size,
        lambda first, end: _late(
            rows, bounds, graph.pred_ptr, graph.preds, graph.milestone_of, graph.milestone_share,
            grid.start_s, grid.duration_s, earliest_s, first, end, late_s,
        ),
    )  # fmt: skip
    return _by_step(replayer, late_s) if rows.size else None


def work_s(group: Features) -> Floats:
    """[steps, dp, pp], seconds: all that a worker computed, without waiting and `gc`."""
    rows = group.that_compute
    return _summed(group.replayer, rows[group.replayer.template.optype[rows] != _GC])


def _of_stages(replayer: Replayer, rows: Ints) -> tuple[Ints, Ints]:
    """The rows stage by stage, and where each stage's begin and end."""
    stage = replayer.template.stage[rows]
    order = np.argsort(stage, kind="stable")
    return rows[order], np.searchsorted(stage[order], np.arange(replayer.pp_size + 1))


def _by_step(replayer: Replayer, of_lanes: Floats) -> Floats:
    sizes = (replayer.pp_size, replayer.dp_size, len(replayer.steps))
    return of_lanes.reshape(sizes).transpose(2, 1, 0)


_OF: dict[str, Callable[[Features], Floats | None]] = {
    "compute_s": _compute_s,
    "once_s": _once_s,
    "transfer_s": _transfer_s,
    "collective_s": _collective_s,
    "launch_s": _launch_s,
}


@kernel
def _sum(own_s, rows, bounds, first, end, total_s):  # type: ignore[no-untyped-def]
    for stage in range(first, end):
        for at in range(bounds[stage], bounds[stage + 1]):
            for lane in range(own_s.shape[1]):
                total_s[stage, lane] += own_s[rows[at], lane]


@kernel
def _late(  # type: ignore[no-untyped-def]
    rows, bounds, pred_ptr, preds, milestone_of, milestone_share, start_s, duration_s, earliest_s,
    first, end, late_s,
):  # fmt: skip
    num_ops, num_lanes = start_s.shape
    began_s, ready_s = np.empty(num_lanes), np.empty(num_lanes)
    for lane in range(num_lanes):
        began_s[lane] = earliest_s[lane % earliest_s.size]
    for stage in range(first, end):
        for at in range(bounds[stage], bounds[stage + 1]):
            op = rows[at]
            ready_s[:] = began_s
            for edge in range(pred_ptr[op], pred_ptr[op + 1]):
                before, share = preds[edge], 1.0
                if before >= num_ops:
                    share = milestone_share[before - num_ops]
                    before = milestone_of[before - num_ops]
                for lane in range(num_lanes):
                    ended_s = start_s[before, lane] + share * duration_s[before, lane]
                    ready_s[lane] = max(ready_s[lane], ended_s)
            for lane in range(num_lanes):
                late_s[stage, lane] += max(0.0, start_s[op, lane] - ready_s[lane])
