"""A what-if is a mask: which operations keep their recorded durations; all others are ideal."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from app.engine.graph import EP_BLOCK, StepGraph, build
from app.engine.grid import Grid
from app.engine.ideal import ideal_durations
from app.engine.simulate import Durations, Keep, Peers, step_times
from app.engine.template import Template
from app.engine.transfer import own_durations
from app.trace.ops import NUM_CODES
from app.trace.window import Floats, Ints

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

    @property
    def template(self) -> Template:
        """The operations of one replica's step."""
        return self.grid.template

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps, ascending."""
        return self.grid.steps

    @property
    def dp_size(self) -> int:
        """Number of replicas."""
        return self.template.parallelism.dp_size

    @property
    def pp_size(self) -> int:
        """Number of pipeline stages."""
        return self.template.parallelism.pp_size

    @cached_property
    def peers(self) -> Peers:
        """Every dp rank, with the steps beside each other."""
        blocks = np.arange(self.dp_size) // self.template.parallelism.ep_size
        return Peers(blocks, self.grid.num_steps)

    @cached_property
    def simulated_s(self) -> Floats:
        """[steps], seconds, every operation at its recorded duration."""
        return self.step_times(self.keep())

    @cached_property
    def ideal_s(self) -> float:
        """Seconds; every step has the same ideal."""
        nothing = np.zeros((self.class_stage.size, 1), np.bool_)
        alone = Peers(np.zeros(1, np.int64), 1)
        return float(step_times(self.graph, self.durations, nothing, alone)[0])

    def keep(
        self,
        *,
        optypes: Mask | None = None,
        stages: Mask | None = None,
        dp_ranks: Mask | None = None,
    ) -> Keep:
        """[classes, dp]: operations of the chosen types, stages and dp ranks; None is all.

        Shapes: `optypes` [codes], `stages` [pp], `dp_ranks` [dp].
        """
        of_class = np.ones(self.class_stage.size, np.bool_)
        if stages is not None:
            of_class &= stages[self.class_stage]
        if optypes is not None:
            of_class &= optypes[self.class_code]
        ranks = np.ones(self.dp_size, np.bool_) if dp_ranks is None else dp_ranks
        return of_class[:, None] & ranks

    def keep_workers(self, workers: Mask) -> Keep:
        """[classes, dp]: all operations of the workers chosen in a [dp, pp] mask."""
        return np.ascontiguousarray(workers.T[self.class_stage])

    def step_times(self, keep: Keep) -> Floats:
        """[steps], seconds, with only the operations in `keep` at their recorded durations."""
        return step_times(self.graph, self.durations, keep, self.peers)

    def one_replica_kept(self, stages: Mask | None = None) -> Floats:
        """[dp, steps], seconds: only that replica's operations (on some stages) are recorded.

        All other replicas are ideal, so equal to each other: one lane stands for all of them, and
        one pass gives the exact figure for every dp rank (what-if model, section 5). Where
        expert-parallel blocks meet, one more lane stands for the others of the replica's block,
        which wait for it more often.
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
    graph = graph or build(template)
    if own_s is None:
        own_s = own_durations(grid, graph)
    ideal_s = ideal_durations(template, own_s[: template.num_ops])
    rows = np.concatenate([np.arange(template.num_ops), graph.milestone_of])
    share = np.concatenate([np.ones(template.num_ops), graph.milestone_share])
    of_op = template.stage * NUM_CODES + template.optype
    classes, op_class = np.unique(of_op, return_inverse=True)
    durations = Durations(own_s, ideal_s[rows] * share, op_class[rows].astype(np.int64))
    return Replayer(grid, graph, durations, classes // NUM_CODES, classes % NUM_CODES)
