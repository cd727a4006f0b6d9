"""One step played through: when each operation began, met its peers and ended."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from app.engine.compiled import kernel
from app.engine.graph import StepGraph
from app.engine.simulate import IDEAL, RECORDED, Durations, Peers, ends
from app.engine.template import Template
from app.engine.what_if import Replayer
from app.trace.window import Floats

RunKind = Literal["recorded", "simulated", "ideal"]
RUN_KINDS: tuple[RunKind, ...] = ("recorded", "simulated", "ideal")


@dataclass(frozen=True, slots=True)
class Run:
    """One step as it was recorded, as replayed with recorded durations, or with ideal ones.

    Shapes: all [ops, dp], seconds since the step began. `start_s` is when the operation began or,
    replayed, when all that it waits for had ended; `met_s` the latest start of those that it
    meets, its own where it meets nobody: from then to `end_s` its transfer ran.
    """

    step: int
    kind: RunKind
    template: Template
    graph: StepGraph
    start_s: Floats
    met_s: Floats
    end_s: Floats


def play(replay: Replayer, step: int, kind: RunKind) -> Run:
    """One of the replayer's steps."""
    start_s, end_s = _recorded(replay, step) if kind == "recorded" else _played(replay, step, kind)
    met_s = start_s.copy()
    graph = replay.graph
    _meet(graph.unit_ptr, graph.unit_ops, graph.meets, replay.peers.block, met_s)
    return Run(step, kind, replay.template, graph, start_s, met_s, end_s)


def _lanes(replay: Replayer, step: int) -> slice:
    return slice(replay.steps.index(step), None, len(replay.steps))


def _recorded(replay: Replayer, step: int) -> tuple[Floats, Floats]:
    lanes = _lanes(replay, step)
    start_s = replay.grid.start_s[:, lanes] - replay.grid.start_s[:, lanes].min()
    return start_s, start_s + replay.grid.duration_s[:, lanes]


def _played(replay: Replayer, step: int, kind: RunKind) -> tuple[Floats, Floats]:
    of_step = np.ascontiguousarray(replay.durations.recorded_s[:, _lanes(replay, step)])
    durations = Durations(of_step, replay.durations.ideal_s, replay.durations.op_class)
    source = np.full(replay.graph.num_rows, RECORDED if kind == "simulated" else IDEAL, np.int32)
    end_s = ends(replay.graph, durations, source, Peers(replay.peers.block, 1))
    start_s = np.zeros((replay.template.num_ops, replay.dp_size))
    _ready(replay.graph.pred_ptr, replay.graph.preds, end_s, start_s)
    return start_s, end_s[: replay.template.num_ops]


@kernel
def _ready(pred_ptr, preds, end_s, start_s):  # type: ignore[no-untyped-def]
    for op in range(start_s.shape[0]):
        for edge in range(pred_ptr[op], pred_ptr[op + 1]):
            is_first = edge == pred_ptr[op]
            for lane in range(start_s.shape[1]):
                before_s = end_s[preds[edge], lane]
                # Where a transfer is a little below 0, what it ends may be so, too.
                start_s[op, lane] = before_s if is_first else max(start_s[op, lane], before_s)


@kernel
def _meet(unit_ptr, unit_ops, meets, block, met_s):  # type: ignore[no-untyped-def]
    num_ops, num_dp = met_s.shape
    for unit in range(meets.size):
        if unit_ops[unit_ptr[unit]] >= num_ops:
            continue
        since = 0
        for peer in range(1, num_dp + 1):
            if peer < num_dp and (
                meets[unit] == 1 or (meets[unit] == 2 and block[peer] == block[since])
            ):
                continue
            latest_s = -np.inf
            for member in range(unit_ptr[unit], unit_ptr[unit + 1]):
                for lane in range(since, peer):
                    latest_s = max(latest_s, met_s[unit_ops[member], lane])
            for member in range(unit_ptr[unit], unit_ptr[unit + 1]):
                met_s[unit_ops[member], since:peer] = latest_s
            since = peer
