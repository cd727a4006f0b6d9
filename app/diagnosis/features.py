"""Computations of a group of steps by worker, micro-batch and step; signals of every worker.

An item is one micro-batch in one model chunk. A detector asks the case for what it needs; a figure
is computed once, when it is first asked for:

    case.forward.mean_s, .least_s          [steps, dp, pp], a worker's computations in a step
    case.signals["compute_s"]              [steps, dp, pp], see below
    for group in case.groups:              steps of equal structure (app.engine.replays)
        group.forward.duration_s           [dp, pp, items, steps], all computations
        group.forward.rows                 [pp, items, parts], the template's rows behind them
        group.positions                    positions of the group's steps in `case.steps`

Signals are stored as the job's history, so that later windows show a change:

| name | seconds, [steps, dp, pp] |
| --- | --- |
| compute_s | a forward and a backward computation, mean of both; a single pause does not count |
| once_s | computations outside micro-batches, as the optimizer's, summed; without `gc` |
| transfer_s | a transfer to or from another stage, mean over those whose other end is recorded |
| collective_s | all transfers among dp ranks that the worker takes part in, summed |
| launch_s | launch delays of all computations, summed |

A signal that a job does not have, as transfers without a pipeline, is left out. `work_signals` has
the work of each worker, where the client sends it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from app.engine.kernels import in_parallel, kernel
from app.engine.medians import medians_of_known
from app.engine.replays import WindowReplay
from app.engine.template import Template
from app.engine.what_if import Replayer
from app.trace.ops import BACKWARD_WEIGHT, NUM_CODES, OP_CODES, Axis, Direction, OpKind, OpSpec
from app.trace.window import Floats, Ints, Trace

# Lanes by which the parts of a forward or backward are compared, and the share of the typical one
# below which a part shows nothing of a worker's pace.
_MAX_SAMPLED_LANES = 16
_MIN_MAIN_SHARE = 0.25


@dataclass(frozen=True)
class Computations:
    """Forward or backward computations of a group of steps; halves of split ones are added up.

    Shapes: `rows` [pp, items, parts] of the template, -1 where a stage has none; `chunk` and
    `microbatch` [items].
    """

    replayer: Replayer
    rows: Ints
    chunk: Ints
    microbatch: Ints

    @property
    def items(self) -> Ints:
        """[items], one number an item, ascending with chunk and micro-batch."""
        return (self.chunk << 32) + self.microbatch

    @cached_property
    def shared(self) -> Ints:
        """[shared items], the items that every stage has."""
        return np.flatnonzero((self.rows[:, :, 0] >= 0).all(axis=0))

    @cached_property
    def duration_s(self) -> Floats:
        """[dp, pp, shared items, steps], seconds."""
        own_s, rows = self.replayer.durations.recorded_s, self.rows[:, self.shared]
        total_s = own_s[rows[:, :, 0]]
        for part in range(1, rows.shape[2]):
            row = rows[:, :, part]
            total_s += np.where((row >= 0)[..., None], own_s[row], 0.0)
        sizes = (*rows.shape[:2], self.replayer.dp_size, len(self.replayer.steps))
        return total_s.reshape(sizes).transpose(2, 0, 1, 3)

    def over_usual(self, usual: Callable[[Floats], Floats]) -> Floats:
        """[dp, pp, shared items, steps], durations over the usual ones of their model chunk.

        `usual` has these of a chunk's durations [dp, pp, items, steps]; where they are 0, the
        result is the duration.
        """
        chunk, relative = self.chunk[self.shared], np.ones(self.duration_s.shape)
        for number in np.unique(chunk):
            of_chunk = self.duration_s[:, :, chunk == number]
            usual_s = usual(of_chunk)
            relative[:, :, chunk == number] = of_chunk / np.where(usual_s > 0, usual_s, 1.0)
        return relative

    @cached_property
    def pace(self) -> "Pace":
        """Mean and shortest time of every worker's computations in a step."""
        own_s = self.replayer.durations.recorded_s
        mean_s, least_s = np.empty((2, len(self.rows), own_s.shape[1]))

        def fill(first: int, end: int) -> None:
            for stage in range(first, end):
                self._fill_pace(stage, mean_s[stage], least_s[stage])

        in_parallel(self.rows.size * own_s.shape[1], len(self.rows), fill)
        return Pace(_by_step(self.replayer, mean_s), _by_step(self.replayer, least_s))

    def _fill_pace(self, stage: int, mean_s: Floats, least_s: Floats) -> None:
        """Fills in both figures [lanes] of a stage."""
        own_s, rows = self.replayer.durations.recorded_s, self.rows[stage]
        longest_s, least_main_s = np.full_like(mean_s, -np.inf), np.full_like(mean_s, np.inf)
        mean_s[:], least_s[:] = 0.0, np.inf
        items = np.flatnonzero(rows[:, 0] >= 0)
        for item in items:
            took_s = own_s[rows[item][rows[item] >= 0]].sum(axis=0)
            mean_s += took_s
            np.maximum(longest_s, took_s, out=longest_s)
            np.minimum(least_s, took_s, out=least_s)
            if self.is_main[stage, item]:
                np.minimum(least_main_s, took_s, out=least_main_s)
        if items.size >= 3:
            mean_s -= longest_s
            mean_s -= least_s
        mean_s /= items.size - 2 if items.size >= 3 else items.size
        # Of computations without any time none is main.
        np.maximum(least_s, np.minimum(least_main_s, longest_s), out=least_s)

    @cached_property
    def is_main(self) -> NDArray[np.bool_]:
        """[pp, items], items that are not always far shorter than the stage's typical one.

        FSDP2 records the parts of a forward between two collectives, and some of them hold no
        layer: such a part is as short on a slow worker. The typical item is the median by time.
        """
        own_s = self.replayer.durations.recorded_s
        num_lanes = own_s.shape[1]
        lanes = np.unique(np.linspace(0, num_lanes - 1, _MAX_SAMPLED_LANES).astype(np.int64))
        first = self.rows[:, :, 0]
        took_s = np.where(first[..., None] >= 0, own_s[first[..., None], lanes], 0.0)
        usual_s = np.sort(medians_of_known(took_s), axis=1)
        total_s = np.cumsum(usual_s, axis=1)
        middle = (total_s < total_s[:, -1:] / 2).sum(axis=1)
        typical_s = usual_s[np.arange(usual_s.shape[0]), np.minimum(middle, usual_s.shape[1] - 1)]
        return np.asarray(took_s.max(axis=2) >= _MIN_MAIN_SHARE * typical_s[:, None])


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds of a worker's computations in one direction, [steps, dp, pp].

    `mean_s` leaves out the longest and the shortest of three and more, so a single pause does not
    count; `least_s` is the shortest main one (`Computations.is_main`).
    """

    mean_s: Floats
    least_s: Floats


@dataclass(frozen=True)
class Features:
    """One group of steps of equal structure; `positions` [steps] are those in the case's steps."""

    replayer: Replayer
    positions: Ints = field(default_factory=lambda: np.empty(0, np.int64))

    @cached_property
    def forward(self) -> Computations | None:
        """Forward computations; None where some stage has none."""
        return _computations(self.replayer, Direction.FORWARD)

    @cached_property
    def backward(self) -> Computations | None:
        """Backward computations; None where some stage has none."""
        return _computations(self.replayer, Direction.BACKWARD)

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """The steps, ascending."""
        return self.replayer.steps

    @cached_property
    def item_rows(self) -> Ints:
        """[2, pp, items], the template's forward and backward of an item, -1 where it has none.

        Of split backwards the first halves.
        """
        rows = np.full((2, self.replayer.pp_size, self._items.size), -1, np.int64)
        for of_direction, side in zip(rows, (self.forward, self.backward), strict=True):
            if side is not None:
                of_direction[:, np.searchsorted(self._items, side.items)] = side.rows[:, :, 0]
        return rows

    @cached_property
    def item_chunk(self) -> Ints:
        """[items], the position of an item's model chunk among those of the stage."""
        chunks: Ints = np.unique(self._items >> 32, return_inverse=True)[1]
        return chunks

    @cached_property
    def _items(self) -> Ints:
        """[items] of both directions, as `Computations.items` numbers them, ascending."""
        sides = [side.items for side in (self.forward, self.backward) if side is not None]
        return np.unique(np.concatenate([np.empty(0, np.int64), *sides]))

    @cached_property
    def compute_rows(self) -> Ints:
        """[computing ops], rows of the template."""
        return ops_where(self.replayer.template, lambda spec: spec.kind is OpKind.COMPUTE)


def ops_where(template: Template, holds: Callable[[OpSpec], bool]) -> Ints:
    """[ops], the template's operations of types for which a claim holds."""
    return np.flatnonzero(template.op_types.flags(holds)[template.optype])


def ops_of(template: Template, codes: list[int]) -> Ints:
    """[ops], the template's operations of these types."""
    is_one = np.zeros(NUM_CODES, np.bool_)
    is_one[codes] = True
    return np.flatnonzero(is_one[template.optype])


def _computations(replayer: Replayer, direction: Direction) -> Computations | None:
    template, is_backward = replayer.template, direction is Direction.BACKWARD
    ops = ops_where(
        template,
        lambda spec: (
            (spec.kind is OpKind.COMPUTE and spec.direction is direction)
            or (is_backward and spec.name == BACKWARD_WEIGHT)
        ),
    )
    stage, chunk, microbatch = template.stage[ops], template.mc[ops], template.mb_id[ops]
    if not np.bincount(stage, minlength=replayer.pp_size).all():
        return None
    if microbatch.min() < 0:
        microbatch = template.seq_id[ops]
    width = int(microbatch.max()) + 1
    keys, item = np.unique(chunk * width + microbatch, return_inverse=True)
    place = stage * keys.size + item
    order = np.argsort(place, kind="stable")
    place = place[order]
    part = np.arange(place.size) - np.searchsorted(place, place)
    rows = np.full((replayer.pp_size * keys.size, int(part.max()) + 1), -1, np.int64)
    rows[place, part] = ops[order]
    shape = (replayer.pp_size, keys.size, rows.shape[1])
    return Computations(replayer, rows.reshape(shape), keys // width, keys % width)


_GC = OP_CODES["gc"]


def group_signals(group: Features) -> dict[str, Floats]:
    """The signals of a group's steps that the job has."""
    signals = {name: compute(group) for name, compute in _SIGNALS.items()}
    return {name: values for name, values in signals.items() if values is not None}


def _compute_s(group: Features) -> Floats | None:
    directions = [side for side in (group.forward, group.backward) if side is not None]
    return np.mean([side.pace.mean_s for side in directions], axis=0) if directions else None


def once_codes(template: Template) -> list[int]:
    """Types of computations outside micro-batches, as the optimizer, without `gc`."""
    by_code = template.op_types.by_code
    return [
        code
        for code in template.present
        if by_code[code].kind is OpKind.COMPUTE
        and by_code[code].direction is Direction.NONE
        and code != _GC
    ]


def type_s(group: Features, code: int) -> Floats:
    """[steps, dp, pp], seconds of all of a worker's operations of one type."""
    return _summed(group.replayer, ops_of(group.replayer.template, [code]))


def _once_s(group: Features) -> Floats | None:
    rows = ops_of(group.replayer.template, once_codes(group.replayer.template))
    return _summed(group.replayer, rows) if rows.size else None


def _transfer_s(group: Features) -> Floats | None:
    rows = _paired_transfers(group.replayer)
    stage = group.replayer.template.stage[rows]
    counts = np.bincount(stage, minlength=group.replayer.pp_size)
    return _summed(group.replayer, rows) / np.maximum(counts, 1) if rows.size else None


def _collective_s(group: Features) -> Floats | None:
    rows = ops_where(
        group.replayer.template,
        lambda spec: spec.kind is OpKind.COLLECTIVE and spec.axis in (Axis.DP, Axis.EP),
    )
    return _summed(group.replayer, rows) if rows.size else None


def _paired_transfers(replayer: Replayer) -> Ints:
    """Transfers between stages whose other end is recorded; unpaired ones include waits."""
    graph, sizes = replayer.graph, np.diff(replayer.graph.unit_ptr)
    row_size = np.empty(graph.num_rows, np.int64)
    row_size[graph.unit_ops] = np.repeat(sizes, sizes)
    rows = ops_where(replayer.template, lambda spec: spec.kind is OpKind.P2P)
    return np.asarray(rows[row_size[rows] > 1])


def _summed(replayer: Replayer, rows: Ints) -> Floats:
    """[steps, dp, pp], own durations of these rows, summed."""
    own_s = replayer.durations.recorded_s
    rows, bounds = _sorted_by_stage(replayer, rows)
    total_s = np.zeros((replayer.pp_size, own_s.shape[1]))

    def add(first: int, end: int) -> None:
        for stage in range(first, end):
            for row in rows[bounds[stage] : bounds[stage + 1]].tolist():
                total_s[stage] += own_s[row]

    in_parallel(rows.size * own_s.shape[1], replayer.pp_size, add)
    return _by_step(replayer, total_s)


def _launch_s(group: Features) -> Floats | None:
    replayer, grid, graph = group.replayer, group.replayer.grid, group.replayer.graph
    rows, bounds = _sorted_by_stage(replayer, group.compute_rows)
    late_s = np.zeros((replayer.pp_size, grid.start_s.shape[1]))
    stage = replayer.template.stage[rows]
    in_parallel(
        rows.size * grid.start_s.shape[1] * 2,
        replayer.pp_size,
        lambda first, end: add_delays(
            rows[bounds[first] : bounds[end]], stage[bounds[first] : bounds[end]],
            graph.pred_ptr, graph.preds, graph.milestone_of, graph.milestone_share,
            grid.start_s, grid.duration_s, grid.began_s, late_s,
        ),
    )  # fmt: skip
    return _by_step(replayer, late_s) if rows.size else None


def work_s(group: Features) -> Floats:
    """[steps, dp, pp], seconds that a worker computed, without waits and `gc`."""
    rows = group.compute_rows
    return _summed(group.replayer, rows[group.replayer.template.optype[rows] != _GC])


def busy_s(group: Features) -> Floats:
    """[steps, dp, pp], seconds of all of a worker's operations, and its launch delays."""
    template = group.replayer.template
    total_s, late_s = _summed(group.replayer, np.arange(template.num_ops)), _launch_s(group)
    return total_s if late_s is None else total_s + late_s


def _sorted_by_stage(replayer: Replayer, rows: Ints) -> tuple[Ints, Ints]:
    """Rows sorted by stage, and the bounds of the stages."""
    stage = replayer.template.stage[rows]
    order = np.argsort(stage, kind="stable")
    return rows[order], np.searchsorted(stage[order], np.arange(replayer.pp_size + 1))


def _by_step(replayer: Replayer, of_lanes: Floats) -> Floats:
    sizes = (replayer.pp_size, replayer.dp_size, len(replayer.steps))
    return of_lanes.reshape(sizes).transpose(2, 1, 0)


_SIGNALS: dict[str, Callable[[Features], Floats | None]] = {
    "compute_s": _compute_s,
    "once_s": _once_s,
    "transfer_s": _transfer_s,
    "collective_s": _collective_s,
    "launch_s": _launch_s,
}
SIGNAL_NAMES = tuple(_SIGNALS)


@kernel
def add_delays(  # type: ignore[no-untyped-def]
    rows, into, pred_ptr, preds, milestone_of, milestone_share, start_s, duration_s, earliest_s,
    delay_s,
):  # fmt: skip
    """Adds to row `into[i]` of `delay_s` how long operation `rows[i]` begins after it could.

    That is since the last end among its predecessors, at least since its step began.
    """
    num_ops, num_lanes = start_s.shape
    ready_s = np.empty(num_lanes)
    for i in range(rows.size):
        op = rows[i]
        for lane in range(num_lanes):
            ready_s[lane] = earliest_s[lane % earliest_s.size]
        for edge in range(pred_ptr[op], pred_ptr[op + 1]):
            before, share = preds[edge], 1.0
            if before >= num_ops:
                share = milestone_share[before - num_ops]
                if share <= 0.0:  # no moment of an operation, but one that it waits for
                    continue
                before = milestone_of[before - num_ops]
            for lane in range(num_lanes):
                ended_s = start_s[before, lane] + share * duration_s[before, lane]
                ready_s[lane] = max(ready_s[lane], ended_s)
        for lane in range(num_lanes):
            delay_s[into[i], lane] += max(0.0, start_s[op, lane] - ready_s[lane])


WORK_NAMES = ("tokens", "seq_len_sq")


def work_signals(replay: WindowReplay) -> dict[str, Floats]:
    """{name: [steps, dp, pp]}, means over a worker's forward computations; NaN where unknown.

    Columns that no client sends are left out.
    """
    trace = replay.window.trace
    sent = {name: getattr(trace, name) for name in WORK_NAMES}
    if all(column is None for column in sent.values()):
        return {}
    is_forward = replay.window.job.op_types.flags(
        lambda spec: spec.kind is OpKind.COMPUTE and spec.direction is Direction.FORWARD
    )
    computes = is_forward[trace.optype] & np.isin(trace.step, replay.steps)
    signals = {
        name: _means(replay, trace, column, computes & (column >= 0))
        for name, column in sent.items()
        if column is not None
    }
    return {name: means for name, means in signals.items() if np.isfinite(means).any()}


def _means(replay: WindowReplay, trace: Trace, column: Ints, rows: NDArray[np.bool_]) -> Floats:
    sizes = replay.window.job.parallelism
    shape = (len(replay.steps), sizes.dp_size, sizes.pp_size)
    step = np.searchsorted(np.asarray(replay.steps, np.int64), trace.step[rows])
    cell = np.ravel_multi_index((step, trace.dp_rank[rows], trace.stage[rows]), shape)
    size = int(np.prod(shape))
    count = np.bincount(cell, minlength=size)
    total = np.bincount(cell, weights=column[rows], minlength=size)
    means: Floats = np.divide(total, count, out=np.full(size, np.nan), where=count > 0)
    return means.reshape(shape)
