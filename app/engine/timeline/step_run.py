"""One step of a run: when each operation began, met its peers and ended.

`stage_bars` turns it into bars: computation, transfer and waiting of each stage of one replica.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from app.engine.graph import ALL_DP_RANKS, EP_BLOCK, StepGraph
from app.engine.template import Template
from app.engine.what_if import IDEAL, RECORDED, Durations, Peers, Replayer, ends
from app.trace.ops import Axis, Direction, OpKind, OpSpec
from app.trace.window import Floats, Ints

RunKind = Literal["recorded", "simulated", "ideal"]
RUN_KINDS: tuple[RunKind, ...] = ("recorded", "simulated", "ideal")


@dataclass(frozen=True, slots=True)
class StepRun:
    """One step as it was recorded, as replayed with recorded durations, or with ideal ones.

    Shapes: all [ops, dp], seconds since the step began. `start_s` is the operation's start or, in
    a replay, the last end among its predecessors; `met_s` is the latest start among its peers
    (its own without peers). The transfer runs from `met_s` to `end_s`. `moment_s` [milestones, dp]
    is when the graph's milestones passed, of a resumption in a recorded run -inf.
    """

    step: int
    kind: RunKind
    template: Template
    graph: StepGraph
    start_s: Floats
    met_s: Floats
    end_s: Floats
    moment_s: Floats


def play_step(replay: Replayer, step: int, kind: RunKind) -> StepRun:
    """One of the replayer's steps."""
    times_s = _recorded(replay, step) if kind == "recorded" else _played(replay, step, kind)
    start_s, end_s, moment_s = times_s
    met_s = _met_s(replay.graph, replay.peers.block, start_s)
    return StepRun(step, kind, replay.template, replay.graph, start_s, met_s, end_s, moment_s)


def _lanes(replay: Replayer, step: int) -> slice:
    return slice(replay.steps.index(step), None, len(replay.steps))


def _recorded(replay: Replayer, step: int) -> tuple[Floats, Floats, Floats]:
    lanes = _lanes(replay, step)
    start_s = replay.grid.start_s[:, lanes] - replay.grid.start_s[:, lanes].min()
    took_s, graph = replay.grid.duration_s[:, lanes], replay.graph
    share = graph.milestone_share[:, None]
    moment_s = start_s[graph.milestone_of] + share * took_s[graph.milestone_of]
    return start_s, start_s + took_s, np.where(share > 0, moment_s, -np.inf)


def _played(replay: Replayer, step: int, kind: RunKind) -> tuple[Floats, Floats, Floats]:
    of_step = np.ascontiguousarray(replay.durations.recorded_s[:, _lanes(replay, step)])
    durations = Durations(of_step, replay.durations.ideal_s, replay.durations.op_class)
    source = np.full(replay.graph.num_rows, RECORDED if kind == "simulated" else IDEAL, np.int32)
    end_s = ends(replay.graph, durations, source, Peers(replay.peers.block, 1))
    num_ops, pred_ptr = replay.template.num_ops, replay.graph.pred_ptr
    start_s = np.zeros((num_ops, replay.dp_size))
    waits = np.flatnonzero(np.diff(pred_ptr[: num_ops + 1]))
    if waits.size:
        before_s = end_s[replay.graph.preds[: pred_ptr[num_ops]]]
        start_s[waits] = np.maximum.reduceat(before_s, pred_ptr[waits], axis=0)
    return start_s, end_s[:num_ops], end_s[num_ops:]


def _met_s(graph: StepGraph, block: Ints, start_s: Floats) -> Floats:
    """[ops, dp], latest of the starts [ops, dp] among an operation and its peers."""
    met_s = start_s.copy()
    is_op = graph.unit_ops < graph.num_ops  # a unit has operations only, or is one milestone
    units = np.flatnonzero(is_op[graph.unit_ptr[:-1]])
    ops, sizes = graph.unit_ops[is_op], np.diff(graph.unit_ptr)[units]
    latest_s = np.maximum.reduceat(start_s[ops], np.cumsum(sizes) - sizes, axis=0)
    meets = graph.meets[units]
    everywhere, in_block = meets == ALL_DP_RANKS, meets == EP_BLOCK
    latest_s[everywhere] = latest_s[everywhere].max(axis=1, keepdims=True)
    for number in np.unique(block):
        cells = np.ix_(in_block, block == number)
        latest_s[cells] = latest_s[cells].max(axis=1, keepdims=True)
    met_s[ops] = np.repeat(latest_s, sizes, axis=0)
    return met_s


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
        columns = ("start_s", "end_s", "op", "num_ops")
        return replace(self, **{name: getattr(self, name)[keep] for name in columns})


def length_s(run: StepRun) -> float:
    """From the step's beginning to its end: of a replayed run, that of its last optimizer."""
    if run.kind == "recorded":
        return float(run.end_s.max())
    return float(run.end_s[run.graph.is_last[: run.graph.num_ops]].max())


def stage_bars(run: StepRun, dp_rank: int) -> list[Bars]:
    """All bars of one dp rank, stage by stage; waiting is where none of the others is.

    A transfer's bar begins at the last arrival. Operations without a positive length have no bar.
    """
    bars = []
    for stage in range(run.template.parallelism.pp_size):
        busy = _busy(run, dp_rank, stage)
        bars += [_waiting(stage, busy, length_s(run)), *busy]
    return bars


def waiting_share(run: StepRun, dp_rank: int) -> list[float]:
    """By stage, the share of the step in which the worker neither computes nor moves data."""
    waits = (bars for bars in stage_bars(run, dp_rank) if bars.activity == "waiting")
    step_s = length_s(run)
    return [float((bars.end_s - bars.start_s).sum()) / step_s if step_s else 0.0 for bars in waits]


def activity_of(spec: OpSpec) -> Activity:
    """The kind of work of an operation type."""
    if spec.kind is not OpKind.COMPUTE:
        return "transfer"
    if spec.direction is Direction.FORWARD:
        return "forward"
    if spec.direction is Direction.BACKWARD or spec.name.startswith("backward"):
        return "backward"
    return "optimizer" if spec.name == "optimizer" else "other"


def bars_within(
    bars: list[Bars], from_s: float, to_s: float, width_px: int, most: int
) -> tuple[list[Bars], float]:
    """At most `most` bars between two moments, and the seconds per pixel.

    Neighbours narrower than a pixel are joined; such waits are left out. If there are still too
    many, wider limits follow, first for transfers and waits, then for computations.
    """
    px_s = (to_s - from_s) / width_px
    inside = [
        part.chosen(np.flatnonzero((part.end_s > from_s) & (part.start_s < to_s))) for part in bars
    ]
    for aside, compute in _COARSER:
        drawn = [
            _merged(part, px_s * (aside if part.activity in ("transfer", "waiting") else compute))
            for part in inside
        ]
        if sum(part.op.size for part in drawn) <= most:
            break
    return drawn, px_s


def _busy(run: StepRun, dp_rank: int, stage: int) -> list[Bars]:
    ops = np.flatnonzero(run.template.stage == stage)
    by_code = run.template.op_types.by_code
    activity = np.array([activity_of(by_code[code]) for code in run.template.optype[ops].tolist()])
    begins_s = np.where(activity == "transfer", run.met_s[ops, dp_rank], run.start_s[ops, dp_rank])
    ends_s = run.end_s[ops, dp_rank]
    kinds: tuple[Activity, ...] = ("forward", "backward", "optimizer", "other", "transfer")
    bars = []
    for kind in kinds:
        at = np.flatnonzero((activity == kind) & (ends_s > begins_s))
        at = at[np.argsort(begins_s[at], kind="stable")]
        ones = np.ones(at.size, np.int64)
        bars.append(Bars(stage, kind, begins_s[at], ends_s[at], ops[at], ones))
    return bars


def _waiting(stage: int, busy: list[Bars], step_s: float) -> Bars:
    begins_s = np.concatenate([bars.start_s for bars in busy] + [[step_s]])
    ends_s = np.concatenate([bars.end_s for bars in busy] + [[step_s]])
    order = np.argsort(begins_s, kind="stable")
    until_s = np.clip(begins_s[order], 0.0, step_s)
    since_s = np.concatenate([[0.0], np.maximum.accumulate(ends_s[order])[:-1]])
    gaps = np.flatnonzero(until_s > since_s)
    nothing = np.full(gaps.size, NO_OP)
    return Bars(stage, "waiting", since_s[gaps], until_s[gaps], nothing, nothing + 1)


def _merged(bars: Bars, px_s: float) -> Bars:
    is_narrow = bars.end_s - bars.start_s < px_s
    if bars.activity == "waiting":
        return bars.chosen(np.flatnonzero(~is_narrow))
    joins = is_narrow[1:] & is_narrow[:-1] & (bars.start_s[1:] - bars.end_s[:-1] < px_s)
    first = np.flatnonzero(np.concatenate([[True], ~joins])) if bars.op.size else bars.op
    if first.size == bars.op.size:
        return bars
    return replace(
        bars.chosen(first),
        end_s=np.maximum.reduceat(bars.end_s, first),
        num_ops=np.add.reduceat(bars.num_ops, first),
    )


STEP_END = "step end"


def track_name(spec: OpSpec) -> str:
    """The stream of an op type; what meets all dp ranks outside of one has a track of its own."""
    if spec.stream:
        return spec.stream
    return spec.name if spec.axis is Axis.DP else STEP_END


def op_labels(template: Template, op: int) -> dict[str, int]:
    """Numbers that identify an operation; micro-batch and chunk only if it has them."""
    spec = template.op_types.by_code[int(template.optype[op])]
    labels = {"seq_id": int(template.seq_id[op])}
    if track_name(spec) == STEP_END:  # belongs to no micro-batch, even if the record names one
        return labels
    named = {"microbatch": int(template.mb_id[op]), "chunk": int(template.mc[op])}
    return labels | {name: number for name, number in named.items() if number >= 0}
