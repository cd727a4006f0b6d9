"""Replay of steps with any durations: when would each step have ended?

Read `Replayer` first; `ReplayGroups` has all steps of a window. A what-if is a mask of operations
that keep their recorded durations; all others are ideal.

`step_times` and `ends` replay all lanes at once. Lanes are [peers, groups], groups contiguous: the
peers of a group meet where dp ranks synchronise, those of one block where expert-parallel ranks
do. In an ordinary simulation dp ranks are peers and steps are groups. For the exact worker slowdown
the peers are the worker's replica and ideal replicas that stand for all others, and the groups are
(dp rank, step).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from app.engine.clocks.measure import Clocks
from app.engine.durations import ideal_durations, own_durations
from app.engine.graph import EP_BLOCK, StepGraph, build_graph
from app.engine.grid import Grid
from app.engine.kernels import all_of, kernel
from app.engine.steady_state import between_s
from app.engine.template import Template
from app.errors import InvalidRequest
from app.trace.ops import NUM_CODES
from app.trace.window import Floats, Ints, SkippedStep, Window, step_ranges
from app.work_budget import checkpoint

Keep = NDArray[np.bool_]
Sources = NDArray[np.int32]

# Where a row's durations come from; 0 and above are rows of `edited_s`.
RECORDED, IDEAL, _MIXED = -1, -2, -3

# Live ends should stay in the cache. Best of 256 KiB to 4 MiB: smaller tiles read the recorded rows
# in short pieces.
_TILE_BYTES = 1 << 21

# Rows after the ends: the start of a unit, zeros, and the latest end so far.
_SCRATCH_ROWS = 3


@dataclass(frozen=True, slots=True)
class Durations:
    """Recorded and ideal duration of each row of the graph.

    Shapes: `recorded_s` [rows, lanes], `ideal_s` [rows], `op_class` [rows]. Rows of one class
    are always kept or idealised together.
    """

    recorded_s: Floats
    ideal_s: Floats
    op_class: Ints


@dataclass(frozen=True, slots=True)
class Peers:
    """Layout of the lanes: `block` [peers] is the expert-parallel block of each peer."""

    block: Ints
    num_groups: int

    @property
    def num_peers(self) -> int:
        """Number of replicas with lanes of their own."""
        return int(self.block.size)


_NO_EDITS = np.empty((1, 1))


def step_times(graph: StepGraph, durations: Durations, keep: Keep, peers: Peers) -> Floats:
    """Step time of every group when only some operations keep their recorded durations.

        start(op) = max(end(pred)), end(op) = max(start over its unit and peers) + duration(op)

    Args:
        graph: dependencies of one replica's step.
        durations: recorded and ideal durations.
        keep: [classes, peers], whether that peer's operations of the class keep their recorded
            duration. A peer that keeps any must have recorded lanes: recorded lane =
            peer * num_groups + group.
        peers: layout of the lanes.

    Returns:
        [groups], seconds from the step's start to the end of its last optimizer.
    """
    kept_by = keep.sum(axis=1)
    of_class = np.where(kept_by == peers.num_peers, RECORDED, np.where(kept_by, _MIXED, IDEAL))
    source = of_class[durations.op_class].astype(np.int32)
    return _step_times(graph, durations, source, _NO_EDITS, keep, peers)


def ends(graph: StepGraph, durations: Durations, source: Sources, peers: Peers) -> Floats:
    """[rows, lanes], seconds: when every operation ends, from recorded and ideal durations."""
    end_s = np.empty((graph.num_rows + _SCRATCH_ROWS, peers.num_peers * peers.num_groups))
    every_row = np.arange(graph.num_rows)
    keep = np.zeros((1, peers.num_peers), np.bool_)
    last_s = np.empty(peers.num_groups)
    _replay(
        graph.unit_ptr, graph.unit_ops, graph.meets, graph.pred_ptr, graph.preds, graph.is_last,
        every_row, durations.recorded_s, durations.ideal_s, durations.op_class, source,
        _NO_EDITS, keep, peers.block, peers.num_groups, 0, peers.num_groups, end_s, last_s,
    )  # fmt: skip
    return end_s[: graph.num_rows]


def _step_times(
    graph: StepGraph,
    durations: Durations,
    source: Sources,
    edited_s: Floats,
    keep: Keep,
    peers: Peers,
) -> Floats:
    slots, num_groups = graph.slots, peers.num_groups
    of_one_group = 8 * slots.num_slots * peers.num_peers
    tile = min(num_groups, max(64, _TILE_BYTES // of_one_group // 8 * 8))
    end_s = np.empty((slots.num_slots + _SCRATCH_ROWS, peers.num_peers * tile))
    last_s = np.empty(num_groups)
    for first in range(0, num_groups, tile):
        checkpoint()
        _replay(
            graph.unit_ptr, graph.unit_ops, graph.meets, graph.pred_ptr, graph.preds,
            graph.is_last, slots.of_row, durations.recorded_s, durations.ideal_s,
            durations.op_class, source, edited_s, keep, peers.block, num_groups,
            first, min(first + tile, num_groups), end_s, last_s,
        )  # fmt: skip
    return last_s


@kernel
def _replay(  # type: ignore[no-untyped-def]
    unit_ptr, unit_ops, meets, pred_ptr, preds, is_last, slot, recorded_s, ideal_s, op_class,
    source, edited_s, keep, block, num_groups, first_group, end_group, end_s, last_s,
):  # fmt: skip
    # Rows are addressed by number: views would cost reference counting.
    num_peers, width = block.size, end_group - first_group
    num_lanes = num_peers * width
    waiting, zero, step = end_s.shape[0] - 3, end_s.shape[0] - 2, end_s.shape[0] - 1
    end_s[zero, :num_lanes] = 0.0
    end_s[step, :num_lanes] = -np.inf
    is_whole = width == num_groups
    for unit in range(meets.size):
        # It starts with the later of two rows, which is written together with its own.
        start, other, num_waits = zero, zero, 0
        for member in range(unit_ptr[unit], unit_ptr[unit + 1]):
            row = unit_ops[member]
            for edge in range(pred_ptr[row], pred_ptr[row + 1]):
                before = slot[preds[edge]]
                num_waits += 1
                if num_waits == 1:
                    start = before
                elif num_waits > 2:
                    for lane in range(num_lanes):
                        end_s[waiting, lane] = max(end_s[start, lane], end_s[other, lane])
                    start = waiting
                other = before
        if meets[unit] != 0 and num_peers > 1:
            since = 0
            for peer in range(1, num_peers + 1):
                if peer < num_peers and (meets[unit] == 1 or block[peer] == block[since]):
                    continue
                for group in range(width):
                    latest_s = -np.inf
                    for lane in range(since * width + group, peer * width, width):
                        latest_s = max(latest_s, max(end_s[start, lane], end_s[other, lane]))
                    for lane in range(since * width + group, peer * width, width):
                        end_s[waiting, lane] = latest_s
                since = peer
            start, other = waiting, waiting
        for member in range(unit_ptr[unit], unit_ptr[unit + 1]):
            row = unit_ops[member]
            own, origin = slot[row], source[row]
            if origin == -2:
                ideal = ideal_s[row]
                for lane in range(num_lanes):
                    end_s[own, lane] = max(end_s[start, lane], end_s[other, lane]) + ideal
            elif origin == -1 and is_whole:
                for lane in range(num_lanes):
                    start_s = max(end_s[start, lane], end_s[other, lane])
                    end_s[own, lane] = start_s + recorded_s[row, lane]
            elif origin >= 0 and is_whole:
                for lane in range(num_lanes):
                    start_s = max(end_s[start, lane], end_s[other, lane])
                    end_s[own, lane] = start_s + edited_s[origin, lane]
            else:
                ideal = ideal_s[row]
                for peer in range(num_peers):
                    base, at = peer * width, peer * num_groups + first_group
                    if origin == -1 or (origin == -3 and keep[op_class[row], peer]):
                        for lane in range(base, base + width):
                            start_s = max(end_s[start, lane], end_s[other, lane])
                            end_s[own, lane] = start_s + recorded_s[row, at + lane - base]
                    elif origin == -3:
                        for lane in range(base, base + width):
                            end_s[own, lane] = max(end_s[start, lane], end_s[other, lane]) + ideal
                    else:
                        for lane in range(base, base + width):
                            start_s = max(end_s[start, lane], end_s[other, lane])
                            end_s[own, lane] = start_s + edited_s[origin, at + lane - base]
            if is_last[row]:
                for lane in range(num_lanes):
                    end_s[step, lane] = max(end_s[step, lane], end_s[own, lane])
    for group in range(width):
        latest_s = end_s[step, group]
        for peer in range(1, num_peers):
            latest_s = max(latest_s, end_s[step, peer * width + group])
        last_s[first_group + group] = latest_s


Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Replayer:
    """Steps of equal structure, ready to be replayed under any what-if.

    A class of operations is one op type on one stage; `class_stage` and `class_code` [classes].
    """

    grid: Grid
    graph: StepGraph
    durations: Durations
    class_stage: Ints
    class_code: Ints

    @cached_property
    def template(self) -> Template:
        """The operations of one replica's step."""
        return self.grid.template

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """The steps, ascending."""
        return self.grid.steps

    @cached_property
    def dp_size(self) -> int:
        """Number of replicas."""
        return self.template.parallelism.dp_size

    @cached_property
    def pp_size(self) -> int:
        """Number of pipeline stages."""
        return self.template.parallelism.pp_size

    @cached_property
    def peers(self) -> Peers:
        """Every dp rank as a peer, every step as a group."""
        blocks = np.arange(self.dp_size) // self.template.parallelism.ep_size
        return Peers(blocks, self.grid.num_steps)

    @cached_property
    def simulated_s(self) -> Floats:
        """[steps], seconds, every operation at its recorded duration."""
        return self.step_times(self.keep())

    @cached_property
    def ideal_s(self) -> float:
        """Seconds; every step has the same ideal."""
        keep = np.zeros((self.class_stage.size, 1), np.bool_)
        one_lane = Peers(np.zeros(1, np.int64), 1)
        return float(step_times(self.graph, self.durations, keep, one_lane)[0])

    def keep(
        self,
        *,
        optypes: Mask | None = None,
        stages: Mask | None = None,
        dp_ranks: Mask | None = None,
        workers: Mask | None = None,
    ) -> Keep:
        """[classes, dp]: operations of the chosen types, stages, dp ranks, workers; None is all.

        Shapes: `optypes` [codes], `stages` [pp], `dp_ranks` [dp], `workers` [dp, pp].
        """
        of_class = np.ones(self.class_stage.size, np.bool_)
        if stages is not None:
            of_class &= stages[self.class_stage]
        if optypes is not None:
            of_class &= optypes[self.class_code]
        ranks = np.ones(self.dp_size, np.bool_) if dp_ranks is None else dp_ranks
        keep = of_class[:, None] & ranks
        return keep if workers is None else keep & np.ascontiguousarray(workers.T[self.class_stage])

    def step_times(self, keep: Keep) -> Floats:
        """[steps], seconds, with only the operations in `keep` at their recorded durations."""
        return step_times(self.graph, self.durations, keep, self.peers)

    def kept_s(self, **masks: Mask) -> Floats:
        """[steps], seconds, with only these operations (`keep`) at their recorded durations."""
        return self.step_times(self.keep(**masks))

    def fixed_s(self, **masks: Mask) -> Floats:
        """[steps], seconds, with only these operations (`keep`) ideal."""
        return self.step_times(~self.keep(**masks))

    def edited_s(self, source: Sources, times_s: Floats) -> Floats:
        """[steps], seconds, with durations from anywhere.

        `source` [rows] is the row of `times_s` [edited rows, lanes] to take, or `RECORDED`, or
        `IDEAL`.
        """
        keep = np.zeros((1, self.peers.num_peers), np.bool_)
        source = source.astype(np.int32)
        return _step_times(self.graph, self.durations, source, times_s, keep, self.peers)

    def one_replica_kept(self, stages: Mask | None = None) -> Floats:
        """[dp, steps], seconds: only that replica's operations (on some stages) are recorded.

        All other replicas are ideal, so equal to each other: one lane stands for all of them, and
        one pass gives the exact figure for every dp rank. Where expert-parallel blocks
        meet, one more lane stands for the others of the replica's block, which wait for it more
        often.
        """
        stand_ins = self._stand_ins
        keep = np.zeros((self.class_stage.size, stand_ins.size), np.bool_)
        keep[:, 0] = True if stages is None else stages[self.class_stage]
        lanes = Peers(stand_ins, self.dp_size * self.grid.num_steps)
        times_s = step_times(self.graph, self.durations, keep, lanes)
        return times_s.reshape(self.dp_size, self.grid.num_steps)

    @cached_property
    def _stand_ins(self) -> Ints:
        """Expert-parallel block of the replica itself and of each kind of ideal replica."""
        block_size = self.template.parallelism.ep_size
        if not (self.graph.meets == EP_BLOCK).any():
            return np.arange(min(self.dp_size, 2))
        kinds = [0] + [0] * (block_size > 1) + [1] * (self.dp_size > block_size)
        return np.asarray(kinds, np.int64)


def replayer(grid: Grid, graph: StepGraph | None = None, own_s: Floats | None = None) -> Replayer:
    """The steps' graph, own durations [rows, lanes] and ideals, the first two unless known.

    Raises:
        InvalidTrace: the operations cannot be replayed.
    """
    template = grid.template
    graph = graph or build_graph(grid)
    if own_s is None:
        own_s = own_durations(grid, graph)
    ideal_s = ideal_durations(template, own_s[: template.num_ops])
    rows = np.concatenate([np.arange(template.num_ops), graph.milestone_of])
    share = np.concatenate([np.ones(template.num_ops), graph.milestone_share])
    of_op = template.stage * NUM_CODES + template.optype
    classes, op_class = np.unique(of_op, return_inverse=True)
    durations = Durations(own_s, ideal_s[rows] * share, op_class[rows].astype(np.int64))
    return Replayer(grid, graph, durations, classes // NUM_CODES, classes % NUM_CODES)


StepTimeQuestion = Callable[[Replayer], Floats]


@dataclass(frozen=True)
class ReplayGroups:
    """A window's steps in groups of equal structure, each with its own graph and ideals.

    `skipped` are the window's own skipped steps and those that cannot be replayed, ascending.
    All groups use one clock as far as `clocks` are measured.
    """

    window: Window
    groups: tuple[Replayer, ...]
    skipped: tuple[SkippedStep, ...]
    clocks: Clocks = field(default_factory=Clocks)

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """All replayed steps, ascending."""
        return tuple(sorted(step for group in self.groups for step in group.steps))

    @property
    def size(self) -> int:
        """Number of recorded operations."""
        return sum(group.grid.start_s.size for group in self.groups)

    @cached_property
    def recorded_s(self) -> Floats:
        """[steps], seconds from each step's begin (steady_state.py) to its latest end."""
        return self.joined(lambda group: group.grid.spans_s[1] - group.grid.began_s)

    @cached_property
    def between_s(self) -> Floats:
        """[steps], idle seconds before the first operation; part of `recorded_s`, in no replay."""
        return self.joined(lambda group: between_s(group.grid))

    @cached_property
    def simulated_s(self) -> Floats:
        """[steps], seconds, every operation at its recorded duration: T."""
        return self.joined(lambda group: group.simulated_s)

    @cached_property
    def ideal_s(self) -> Floats:
        """[steps], seconds, every operation ideal: T_ideal of each step's structure."""
        return self.joined(lambda group: np.full(len(group.steps), group.ideal_s))

    def of_step(self, step: int) -> Replayer:
        """The group that a step belongs to; raises InvalidRequest if it is not replayed."""
        for group in self.groups:
            if step in group.steps:
                return group
        reasons = {skip.step: f": {skip.reason}" for skip in self.skipped}
        raise InvalidRequest(
            f"step {step} of window {self.window.id} is not replayed"
            + reasons.get(step, f": choose from {step_ranges(self.steps)}")
        )

    def joined(self, ask: StepTimeQuestion) -> Floats:
        """Answers of all groups joined, [..., steps], in the order of `steps`."""
        answers = [ask(group) for group in self.groups]
        if len(answers) == 1:
            return answers[0]
        order = np.argsort([step for group in self.groups for step in group.steps])
        return np.concatenate(answers, axis=-1)[..., order]

    def answers(self, questions: list[StepTimeQuestion]) -> list[Floats]:
        """Answers to independent questions, in parallel for large windows."""
        return all_of(self.size, [partial(self.joined, question) for question in questions])
