"""Gathers and reductions that overlap the computation (docs/replay.md, 3, 5 and 6).

The published rules put all of them before the first forward or after the last backward; DDP and
FSDP do not. `overlap_of` decides by the record of each stage. `Launches` determines when an
overlapped operation could begin and which computation needs it. A milestone is a moment inside an
operation that others wait for: DDP reduces a bucket while a backward runs.
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise

import numpy as np

from app.engine.grid import Grid
from app.engine.template import AT_ONCE_S, SAME_MOMENT_S, Edge, Template
from app.trace.ops import Axis


@dataclass(slots=True)
class Milestones:
    """Vertices that end when a share of an operation has run, and the lane that shows the share.

    They are numbered after the template's operations and have their operation's predecessors.
    """

    num_ops: int
    of_op: list[int] = field(default_factory=list)
    share: list[float] = field(default_factory=list)
    lane: list[int] = field(default_factory=list)

    def add(self, op: int, share: float, lane: int) -> int:
        """The vertex of this moment."""
        self.of_op.append(op)
        self.share.append(share)
        self.lane.append(lane)
        return self.num_ops + len(self.of_op) - 1


BACKWARDS = ("backward-compute", "backward-input-compute", "backward-weight-compute")
SCATTER, SEPARATE = GRADIENTS = ("grads-reduce-scatter", "separate-grads-all-reduce")
GATHER = "params-all-gather"


@dataclass(frozen=True, slots=True)
class Overlap:
    """Op types of a stage that overlap its computation, and whether they use two streams."""

    op_types: frozenset[str]
    two_streams: bool


def overlap_of(template: Template, stage: int) -> Overlap:
    """The overlap in the stage's first recorded step; empty without data parallelism."""
    if not template.parallelism.is_data_parallel:
        return Overlap(frozenset(), two_streams=False)
    types = {name for name in GRADIENTS if _gradients_overlap(template, stage, name)}
    if _gathers_overlap(template, stage):
        types.add(GATHER)
    return Overlap(frozenset(types), are_two_streams(template, stage))


def _gradients_overlap(template: Template, stage: int, name: str) -> bool:
    ops = template.of_stage[stage][name]
    backwards = template.ops(stage, *BACKWARDS) if ops else []
    if not backwards:
        return False
    by_end = sorted(backwards, key=template.listed.end_s.__getitem__)
    last_end_s = {template.listed.mc[op]: template.listed.end_s[op] for op in by_end}
    of_stage_s = max(last_end_s.values())
    # If all-reduces follow, scatters may overlap the backward of other chunks anyway.
    by_chunk = name == SCATTER and SEPARATE in template.type_names
    return any(
        template.listed.start_s[op]
        < (last_end_s.get(template.listed.mc[op], of_stage_s) if by_chunk else of_stage_s)
        - AT_ONCE_S
        for op in ops
    )


def _gathers_overlap(template: Template, stage: int) -> bool:
    forwards = reversed(template.of_stage[stage]["forward-compute"])
    first_start_s = {template.listed.mc[op]: template.listed.start_s[op] for op in forwards}
    never = float("inf")
    return any(
        template.listed.start_s[op] > first_start_s.get(template.listed.mc[op], never) + AT_ONCE_S
        for op in template.of_stage[stage][GATHER]
    )


def are_two_streams(template: Template, stage: int) -> bool:
    """Whether gathers and reductions of a stage run beside each other."""
    ops = template.ops(stage, GATHER, GRADIENTS[0])
    return any(
        template.listed.optype[before] != template.listed.optype[after]
        and template.listed.start_s[after] < template.listed.end_s[before] - AT_ONCE_S
        for before, after in pairwise(ops)
    )


@dataclass(frozen=True)
class ConsumerOps:
    """Some operations of a compute stream, in recorded order, so by start."""

    template: Template
    ops: list[int]

    def first(self, after: int, from_s: float) -> int | None:
        """The first operation after `after` that starts at `from_s` or later."""
        begun = bisect_left(self.ops, from_s, key=self.template.listed.start_s.__getitem__)
        # Operations of a worker are numbered in recorded order.
        position = max(begun, bisect_right(self.ops, after))
        return self.ops[position] if position < len(self.ops) else None


@dataclass(frozen=True, slots=True)
class Launch:
    """What launches an operation: a computation after a share of it, or its end.

    `position` in the compute stream, -1 for none; `share` is None for the end. `lane` shows it.
    """

    position: int
    share: float | None
    lane: int


@dataclass(frozen=True)
class Launches:
    """Launch and use of overlapped operations of one stage; adds to `edges`.

    `before` has the previous operation of each on its stream; the first ones have none. `grid` has
    the recorded times of all lanes.
    """

    template: Template
    grid: Grid
    stage: int
    milestones: Milestones
    edges: list[Edge]
    before: dict[int, int]

    def launch(self, op: int) -> int:
        """Let `op` wait for its launch.

        Returns the position in the compute stream of the launching operation, -1 if none.
        """
        launch = self._launch(op)
        if launch.position >= 0:
            before = self._computes[launch.position]
            if launch.share is not None:
                before = self.milestones.add(before, launch.share, launch.lane)
            self.edges.append((before, op))
        return launch.position

    def _launch(self, op: int) -> Launch:
        template, before = self.template, self.before.get(op)
        start_s = template.listed.start_s[op]
        if before is not None and start_s <= template.listed.end_s[before] + AT_ONCE_S:
            # It was queued: its start does not tell how far the computation had come.
            lane = _last_unqueued(self.grid, op, before)
            if lane is None:
                return Launch(self._last_ended_at(start_s), None, self._lane)
            launch = self._launch_in(lane, op)
            share, latest_s = 1.0 if launch.share is None else launch.share, start_s + SAME_MOMENT_S
            is_late = launch.position >= 0 and self._time_s(launch.position, share) > latest_s
            # The computation waited, or ranks differ: it was asked for by its start.
            return self._launch_at_start(start_s) if is_late else launch
        return self._launch_at_start(start_s)

    def _launch_at_start(self, start_s: float) -> Launch:
        """The launch of what is not queued at its start in the template's lane."""
        if (running := self._running_at(start_s)) < 0:
            return Launch(self._last_ended_at(start_s), None, self._lane)
        began_s, ended_s = self._time_s(running, 0.0), self._time_s(running, 1.0)
        return Launch(running, (start_s - began_s) / (ended_s - began_s), self._lane)

    def _launch_in(self, lane: int, op: int) -> Launch:
        """The launch of an operation in a lane in which it was not queued."""
        grid, computes = self.grid, self._computes
        began_s = grid.start_s[computes, lane] - grid.start_s[op, lane]
        if grid.origin_s is not None:
            # To the last bit the same, whatever the clock's offset.
            began_s = np.rint(began_s * 1e9) * 1e-9
        took_s = grid.duration_s[computes, lane]
        ends_s = began_s + took_s
        running = np.flatnonzero((began_s < 0) & (ends_s > SAME_MOMENT_S))
        alone = [at for at in running.tolist() if self._runs_alone(computes[at])]
        if alone:
            return Launch(alone[-1], float(-began_s[alone[-1]] / took_s[alone[-1]]), lane)
        ended = np.flatnonzero(ends_s <= SAME_MOMENT_S)
        return Launch(int(ended[-1]) if ended.size else -1, None, lane)

    def feed(self, op: int, launched: int, users: ConsumerOps) -> bool:
        """Let the first of `users` after the launch and the end of `op` wait for it, if any."""
        after = self._computes[launched] if launched >= 0 else -1
        user = users.first(after, self.template.listed.end_s[op] - SAME_MOMENT_S)
        if user is None:
            return False
        self.edges.append((op, user))
        return True

    def _running_at(self, time_s: float) -> int:
        """Position in the compute stream of the running operation, -1 if none.

        Of several, the last in recorded order without peers.
        """
        end_s, later_s = self.template.end_s, time_s + SAME_MOMENT_S
        position = self._num_begun_before(time_s) - 1
        while position >= 0 and self._ends_so_far_s[position] > later_s:
            op = self._computes[position]
            if end_s[op] > later_s and self._runs_alone(op):
                return position
            position -= 1
        return -1

    def _last_ended_at(self, time_s: float) -> int:
        """Position in the compute stream of the last ended operation, -1 if none."""
        end_s, computes = self.template.end_s, self._computes
        last = self._num_begun_before(time_s + SAME_MOMENT_S)
        while last < len(computes) and end_s[computes[last]] <= time_s + SAME_MOMENT_S:
            last += 1  # zero length, at this moment
        last -= 1
        while last >= 0 and end_s[computes[last]] > time_s + SAME_MOMENT_S:
            last -= 1
        return last

    def _num_begun_before(self, time_s: float) -> int:
        return bisect_left(self._computes, time_s, key=self.template.listed.start_s.__getitem__)

    @cached_property
    def _computes(self) -> list[int]:
        return self.template.computes[self.stage]

    @cached_property
    def _ends_so_far_s(self) -> list[float]:
        """Running maximum of the computations' ends."""
        return list(accumulate((self.template.listed.end_s[op] for op in self._computes), max))

    def _runs_alone(self, op: int) -> bool:
        return self.template.op_types.by_code[self.template.listed.optype[op]].axis is Axis.NONE

    @cached_property
    def _lane(self) -> int:
        """The lane that the template is read from."""
        return self.template.dp_rank * self.grid.num_steps + self.template.step_at

    def _time_s(self, position: int, share: float) -> float:
        """When a share of a computation had passed in the template's lane."""
        listed, op = self.template.listed, self._computes[position]
        return listed.start_s[op] + share * (listed.end_s[op] - listed.start_s[op])


def _last_unqueued(grid: Grid, op: int, before: int) -> int | None:
    """Of the lanes in which an operation did not wait for the one before, the last arrival's.

    Of the template's step if there is one, else of the first step that has one; None in neither.
    Members of a collective end together, so that the shortest arrived last.
    """
    num_steps = grid.num_steps
    lanes = np.arange(grid.start_s.shape[1])
    for among in (lanes[grid.template.step_at :: num_steps], lanes):
        ends_s = grid.start_s[before, among] + grid.duration_s[before, among]
        is_free = grid.start_s[op, among] > ends_s + AT_ONCE_S
        if grid.imputed is not None:
            is_free &= (grid.imputed[[op, before]][:, among] == 0).all(axis=0)
        if is_free.any():
            free = among[is_free]
            free = free[free % num_steps == (free % num_steps).min()]
            return int(free[grid.duration_s[op, free].argmin()])
    return None


def parameter_edges(launches: Launches, overlap: Overlap) -> list[Edge]:
    """Gathers come before their computations; overlapped ones also after their launch."""
    template, stage = launches.template, launches.stage
    if not template.parallelism.is_data_parallel:
        return []
    if GATHER not in overlap.op_types:
        return _last_before_first(template, stage)
    of_chunk = _users_by_chunk(template, stage)
    of_any_chunk = ConsumerOps(template, template.computes[stage])
    for op in template.of_stage[stage][GATHER]:
        launched = launches.launch(op)
        launches.feed(op, launched, of_chunk.get(template.listed.mc[op], of_any_chunk))
    return []


def _users_by_chunk(template: Template, stage: int) -> dict[int, ConsumerOps]:
    by_chunk: dict[int, list[int]] = {}
    for op in template.ops(stage, "forward-compute", "backward-compute", "backward-input-compute"):
        by_chunk.setdefault(template.listed.mc[op], []).append(op)
    return {chunk: ConsumerOps(template, ops) for chunk, ops in by_chunk.items()}


def _last_before_first(template: Template, stage: int) -> list[Edge]:
    """A chunk's last params-all-gather comes before its first forward-compute."""
    gathers = sorted(template.of_stage[stage][GATHER], key=template.listed.seq_id.__getitem__)
    last_gather = {template.listed.mc[op]: op for op in gathers}
    forwards = reversed(template.of_stage[stage]["forward-compute"])
    first_forward = {template.listed.mc[op]: op for op in forwards}
    return [
        (gather, first_forward[chunk])
        for chunk, gather in last_gather.items()
        if chunk in first_forward
    ]
