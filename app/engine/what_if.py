"""A what-if is a mask: which operations keep their recorded durations; all others are ideal."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.engine.graph import StepGraph, build
from app.engine.grid import Grid
from app.engine.ideal import ideal_durations
from app.engine.simulate import Durations, Keep, step_times
from app.engine.transfer import own_durations
from app.trace.ops import OP_SPECS
from app.trace.window import Floats

Mask = NDArray[np.bool_]
_NUM_TYPES = len(OP_SPECS)


@dataclass(frozen=True, slots=True)
class Replayer:
    """One window, ready to be replayed under any what-if.

    A class of operations is one op type on one stage.
    """

    grid: Grid
    graph: StepGraph
    durations: Durations

    @property
    def dp_size(self) -> int:
        """Number of replicas."""
        return self.grid.template.parallelism.dp_size

    @property
    def pp_size(self) -> int:
        """Number of pipeline stages."""
        return self.grid.template.parallelism.pp_size

    def keep(
        self,
        *,
        optypes: Mask | None = None,
        stages: Mask | None = None,
        dp_ranks: Mask | None = None,
    ) -> Keep:
        """[classes, dp]: operations of the chosen types, stages and dp ranks; None is all."""
        shape = (self.pp_size, _NUM_TYPES, self.dp_size)
        chosen = np.ones(shape, np.bool_)
        if stages is not None:
            chosen &= stages[:, None, None]
        if optypes is not None:
            chosen &= optypes[None, :, None]
        if dp_ranks is not None:
            chosen &= dp_ranks[None, None, :]
        return chosen.reshape(-1, self.dp_size)

    def keep_workers(self, workers: Mask) -> Keep:
        """[classes, dp]: all operations of the workers chosen in a [dp, pp] mask."""
        chosen = np.repeat(workers.T[:, None, :], _NUM_TYPES, axis=1)
        return chosen.reshape(-1, self.dp_size)

    def step_times(self, keep: Keep) -> Floats:
        """[steps], seconds, with only the operations in `keep` at their recorded durations."""
        return step_times(self.graph, self.durations, keep, self.grid.num_steps)

    def ideal_step_time(self) -> float:
        """Seconds; every step has the same ideal."""
        nothing = np.zeros((self.pp_size * _NUM_TYPES, 1), np.bool_)
        return float(step_times(self.graph, self.durations, nothing, 1)[0])

    def one_replica_kept(self, stages: Mask | None = None) -> Floats:
        """[dp, steps], seconds: only that replica's operations (on some stages) are recorded.

        All other replicas are ideal, so equal: one lane stands for all of them, and one pass
        gives the exact figure for every dp rank (what-if model, section 5).
        """
        peers = min(self.dp_size, 2)
        chosen = np.ones(self.pp_size, np.bool_) if stages is None else stages
        keep = np.zeros((self.pp_size * _NUM_TYPES, peers), np.bool_)
        keep[:, 0] = np.repeat(chosen, _NUM_TYPES)
        num_groups = self.dp_size * self.grid.num_steps
        times_s = step_times(self.graph, self.durations, keep, num_groups)
        return times_s.reshape(self.dp_size, self.grid.num_steps)


def replayer(grid: Grid) -> Replayer:
    """The window's graph, transfer durations and ideals.

    Raises:
        InvalidTrace: the operations cannot be replayed.
    """
    template = grid.template
    graph = build(template)
    own_s = own_durations(grid, graph)
    op_class = template.stage * _NUM_TYPES + template.optype
    return Replayer(grid, graph, Durations(own_s, ideal_durations(template, own_s), op_class))
