"""What each stage of one replica does in a run, as bars: computing, moving data, waiting."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from app.engine.run import Run
from app.trace.ops import Direction, Kind, OpSpec
from app.trace.window import Floats, Ints

Activity = Literal["forward", "backward", "optimizer", "other", "transfer", "waiting"]
NO_OP = -1

# Pixels below which transfers and waits, and computations, are joined: finer ones first. With the
# last of them every lane is one bar.
_COARSER = ((1, 1), (4, 1), (16, 1), (64, 1), *((64 * 2**by, 2**by) for by in range(1, 20)))


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars of one activity on one stage, by their starts.

    Shapes: all [bars]; seconds since the step began. `op` is the first operation of a bar in the
    template, `NO_OP` where nothing runs, and `num_ops` how many the bar stands for.
    """

    stage: int
    activity: Activity
    start_s: Floats
    end_s: Floats
    op: Ints
    num_ops: Ints

    def chosen(self, keep: Ints) -> "Bars":
        """Only the bars at these positions."""
        return replace(
            self,
            start_s=self.start_s[keep],
            end_s=self.end_s[keep],
            op=self.op[keep],
            num_ops=self.num_ops[keep],
        )


def length_s(run: Run) -> float:
    """From the step's beginning to its end: of a replayed run, that of its last optimizer."""
    if run.kind == "recorded":
        return float(run.end_s.max())
    return float(run.end_s[run.graph.is_last[: run.graph.num_ops]].max())


def lanes(run: Run, dp_rank: int) -> list[Bars]:
    """All bars of one dp rank, stage by stage; waiting is where none of the others is.

    A transfer's bar is where data moves: from when the last of those that meet had arrived. What
    has no length, or ended before it began as hosts' clocks disagree, has no bar.
    """
    found = []
    for stage in range(run.template.parallelism.pp_size):
        busy = _busy(run, dp_rank, stage)
        found += [_waiting(stage, busy, length_s(run)), *busy]
    return found


def waiting_share(run: Run, dp_rank: int) -> list[float]:
    """By stage, the share of the step in which the worker neither computes nor moves data."""
    waits = (bars for bars in lanes(run, dp_rank) if bars.activity == "waiting")
    whole_s = length_s(run)
    return [
        float((bars.end_s - bars.start_s).sum()) / whole_s if whole_s else 0.0 for bars in waits
    ]


def activity_of(spec: OpSpec) -> Activity:
    """What an operation type does, in a reader's words."""
    if spec.kind is not Kind.COMPUTE:
        return "transfer"
    if spec.direction is Direction.FORWARD:
        return "forward"
    if spec.direction is Direction.BACKWARD or spec.name.startswith("backward"):
        return "backward"
    return "optimizer" if spec.name == "optimizer" else "other"


def fitted(
    found: list[Bars], from_s: float, to_s: float, width_px: int, most: int
) -> tuple[list[Bars], float]:
    """At most so many bars between two moments, and how many seconds a pixel has.

    Neighbours that are both narrower than a pixel become one; waits that narrow are left out.
    Where there are still too many, the same is done with more pixels: first with transfers and
    waits, and with computations only when that is not enough.
    """
    px_s = (to_s - from_s) / width_px
    inside = [_between(bars, from_s, to_s) for bars in found]
    for aside, compute in _COARSER:
        drawn = [
            _merged(bars, px_s * (aside if bars.activity in ("transfer", "waiting") else compute))
            for bars in inside
        ]
        if sum(bars.op.size for bars in drawn) <= most:
            break
    return drawn, px_s


def _busy(run: Run, dp_rank: int, stage: int) -> list[Bars]:
    ops = np.flatnonzero(run.template.stage == stage)
    by_code = run.template.op_types.by_code
    activity = np.array([activity_of(by_code[code]) for code in run.template.optype[ops].tolist()])
    begins_s = np.where(activity == "transfer", run.met_s[ops, dp_rank], run.start_s[ops, dp_rank])
    ends_s = run.end_s[ops, dp_rank]
    kinds: tuple[Activity, ...] = ("forward", "backward", "optimizer", "other", "transfer")
    found = []
    for kind in kinds:
        mine = np.flatnonzero((activity == kind) & (ends_s > begins_s))
        mine = mine[np.argsort(begins_s[mine], kind="stable")]
        ones = np.ones(mine.size, np.int64)
        found.append(Bars(stage, kind, begins_s[mine], ends_s[mine], ops[mine], ones))
    return found


def _waiting(stage: int, busy: list[Bars], whole_s: float) -> Bars:
    begins_s = np.concatenate([bars.start_s for bars in busy] + [[whole_s]])
    ends_s = np.concatenate([bars.end_s for bars in busy] + [[whole_s]])
    order = np.argsort(begins_s, kind="stable")
    until_s = np.clip(begins_s[order], 0.0, whole_s)
    since_s = np.concatenate([[0.0], np.maximum.accumulate(ends_s[order])[:-1]])
    gaps = np.flatnonzero(until_s > since_s)
    nothing = np.full(gaps.size, NO_OP)
    return Bars(stage, "waiting", since_s[gaps], until_s[gaps], nothing, nothing + 1)


def _between(bars: Bars, from_s: float, to_s: float) -> Bars:
    return bars.chosen(np.flatnonzero((bars.end_s > from_s) & (bars.start_s < to_s)))


def _merged(bars: Bars, px_s: float) -> Bars:
    is_narrow = bars.end_s - bars.start_s < px_s
    if bars.activity == "waiting":
        return bars.chosen(np.flatnonzero(~is_narrow))
    joins = is_narrow[1:] & is_narrow[:-1] & (bars.start_s[1:] - bars.end_s[:-1] < px_s)
    first = np.flatnonzero(np.concatenate([[True], ~joins])) if bars.op.size else bars.op
    if first.size == bars.op.size:
        return bars
    return Bars(
        bars.stage,
        bars.activity,
        bars.start_s[first],
        np.maximum.reduceat(bars.end_s, first),
        bars.op[first],
        np.add.reduceat(bars.num_ops, first),
    )
