"""When does each dp rank arrive at the gradients' all-reduce, and how long does that take?

By the simulated step, so that the delay is the one with all other changes to the job.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from app.engine.replays import WindowReplay
from app.engine.template import Template
from app.engine.what_if import RECORDED, Replayer, ends
from app.trace.ops import Axis, OpKind
from app.trace.window import Floats, Ints

# DDP reduces its buckets under this name as well: an all-reduce where nothing is gathered again.
_SCATTER, _GATHER = "grads-reduce-scatter", "params-all-gather"


class Key(NamedTuple):
    """Stage, op type's code and number of an operation: the same in all groups of steps."""

    stage: int
    code: int
    seq_id: int


def is_sharded(template: Template) -> bool:
    """Whether gradients are reduce-scattered, as with ZeRO and FSDP: parameters are gathered."""
    return _GATHER in template.type_names


def gradient_all_reduces(template: Template) -> Ints:
    """[rows], the operations that all-reduce gradients over the dp ranks of a stage."""
    names = {
        spec.name
        for spec in (template.op_types.by_code[code] for code in template.present)
        if spec.kind is OpKind.COLLECTIVE
        and spec.axis is Axis.DP
        and (spec.name.endswith("all-reduce") or spec.name == _SCATTER)
    }
    if is_sharded(template):
        names.discard(_SCATTER)
    flags = template.op_types.flags(lambda spec: spec.name in names)
    return np.flatnonzero(flags[template.optype])


def arrivals_s(group: Replayer, rows: Ints) -> Floats:
    """[rows, dp, steps], seconds in the simulated step: when each rank's last predecessor ends."""
    graph = group.graph
    recorded = np.full(graph.num_rows, RECORDED, np.int32)
    end_s = ends(graph, group.durations, recorded, group.peers)
    found = np.zeros((rows.size, end_s.shape[1]))
    for at, row in enumerate(rows.tolist()):
        before = graph.preds[graph.pred_ptr[row] : graph.pred_ptr[row + 1]]
        if before.size:
            found[at] = end_s[before].max(axis=0)
    return found.reshape(rows.size, group.dp_size, -1)


def delays_s(arrival_s: Floats, dp_rank: int) -> Floats:
    """[rows, steps], seconds that this rank comes after the last of the others; may be negative."""
    others_s = np.delete(arrival_s, dp_rank, axis=1).max(axis=1)
    return np.asarray(arrival_s[:, dp_rank] - others_s)


@dataclass(frozen=True, slots=True)
class LastRank:
    """The dp rank that most often comes last at a stage's all-reduces.

    `share` of the all-reduces in which it is last; `delay_s` is the median of how far it then is
    behind the others.
    """

    stage: int
    dp_rank: int
    share: float
    delay_s: float


def last_ranks(replay: WindowReplay) -> list[LastRank]:
    """One for each stage with gradient all-reduces, by stage."""
    sizes = replay.window.job.parallelism
    by_stage: dict[int, list[Floats]] = {}
    for group in replay.groups:
        rows = gradient_all_reduces(group.template)
        arrival_s = arrivals_s(group, rows)
        for stage in np.unique(group.template.stage[rows]).tolist():
            of_stage = arrival_s[group.template.stage[rows] == stage]
            moments_s = of_stage.transpose(0, 2, 1).reshape(-1, sizes.dp_size)
            by_stage.setdefault(stage, []).append(moments_s)
    return [_last_rank(stage, np.concatenate(by_stage[stage])) for stage in sorted(by_stage)]


def _last_rank(stage: int, moment_s: Floats) -> LastRank:
    """Of moments [all-reduces, dp]."""
    last = moment_s.argmax(axis=1)
    dp_rank = int(np.bincount(last, minlength=moment_s.shape[1]).argmax())
    is_last = last == dp_rank
    ranked_s = np.sort(moment_s[is_last], axis=1)
    delay_s = float(np.median(ranked_s[:, -1] - ranked_s[:, -2]))
    return LastRank(stage, dp_rank, float(is_last.mean()), delay_s)


def sizes_of(replay: WindowReplay) -> dict[Key, float]:
    """Median bytes of each gradient all-reduce whose bytes are recorded."""
    trace = replay.window.trace
    if trace.bytes is None:
        return {}
    keys = {
        key_of(group.template, row)
        for group in replay.groups
        for row in gradient_all_reduces(group.template).tolist()
    }
    chosen = np.isin(trace.optype, [key.code for key in keys]) & (trace.bytes > 0)
    num_bytes, place = trace.bytes[chosen], (trace.stage[chosen], trace.seq_id[chosen])
    code = trace.optype[chosen]
    found = {
        key: num_bytes[(place[0] == key.stage) & (code == key.code) & (place[1] == key.seq_id)]
        for key in sorted(keys)
    }
    return {key: float(np.median(each)) for key, each in found.items() if each.size}


def key_of(template: Template, row: int) -> Key:
    """The operation's key."""
    return Key(int(template.stage[row]), int(template.optype[row]), int(template.seq_id[row]))


def transfers_s(replay: WindowReplay) -> dict[Key, float]:
    """Median seconds of each gradient all-reduce from its last arrival."""
    found: dict[Key, list[Floats]] = {}
    for group in replay.groups:
        for row in gradient_all_reduces(group.template).tolist():
            own_s = group.durations.recorded_s[row]
            found.setdefault(key_of(group.template, row), []).append(own_s)
    return {key: _median(parts) for key, parts in found.items()}


def _median(parts: Sequence[Floats]) -> float:
    return float(np.median(np.concatenate(parts)))
