"""Searches the layers of each virtual stage with the simulator.

With few micro-batches the split with the smallest maximum is not the fastest. The search simulates
one replica at its mean durations, many splits side by side.
"""

from collections.abc import Sequence

import numpy as np

from app.advice.stages.stage_costs import StageCosts, virtual_stage
from app.engine.replays import WindowReplay
from app.engine.what_if import Durations, Peers, Replayer, step_times
from app.trace.window import Floats, Ints

Split = tuple[int, ...]

# Of more virtual stages, layers move only from the stages with most work to those with least.
MANY_STAGES, MOST_LOADED, LEAST_LOADED = 16, 3, 4


def best_split(replay: WindowReplay, costs: StageCosts) -> Split:
    """Layers of each virtual stage with the shortest simulated step, moving single layers."""
    search = _Search(max(replay.groups, key=lambda group: len(group.steps)), costs)
    starts = [tuple(costs.layers.tolist())]
    if costs.layers.sum() >= costs.layers.size:
        starts.append(equal_stages(costs, search.pp_size))
    found = [search.descend(start) for start in starts]
    return min(found, key=search.step_s)


def equal_stages(costs: StageCosts, pp_size: int) -> Split:
    """Layer counts whose longest stage is shortest: each layer to the stage that then is.

    Of a stage's chunks the one that then is shortest gets it. There are as many layers as virtual
    stages, at least.
    """
    counts = np.ones(costs.layers.size, np.int64)
    for _ in range(int(costs.layers.sum()) - counts.size):
        of_stage = chunk_s(costs, counts).reshape(-1, pp_size)
        stage = int(of_stage.sum(axis=0).argmin())
        counts[int(of_stage[:, stage].argmin()) * pp_size + stage] += 1
    return tuple(counts.tolist())


def chunk_s(costs: StageCosts, layers: Split | Ints) -> Floats:
    """[virtual stages], seconds of a micro-batch with these layers."""
    more = np.asarray(layers) - costs.layers
    return np.asarray(costs.stage_s.sum(axis=0) + more * costs.layer_s.sum())


class _Search:
    """Steepest descent over layer counts."""

    def __init__(self, group: Replayer, costs: StageCosts) -> None:
        self._group, self._costs = group, costs
        self.pp_size = group.pp_size
        self._mean_s = group.durations.recorded_s.mean(axis=1)
        template, graph = group.template, group.graph
        ops = np.concatenate([np.arange(template.num_ops), graph.milestone_of])
        self._stage = virtual_stage(template)[ops]
        number_of = {name: number for number, name in enumerate(costs.names)}
        of_op = np.array([number_of.get(template.name(op), -1) for op in range(template.num_ops)])
        self._pass = of_op[ops]
        self._known: dict[Split, float] = {}

    def step_s(self, layers: Split) -> float:
        """Seconds of a step with these layers."""
        self._simulate([layers])
        return self._known[layers]

    def _simulate(self, splits: Sequence[Split]) -> None:
        """Simulate the splits that are not known yet, each as a group of lanes."""
        new = [each for each in dict.fromkeys(splits) if each not in self._known]
        if not new:
            return
        factors = np.stack([self._costs.factors(each, self._costs.layer_s) for each in new])
        of_row = np.where(self._pass >= 0, factors[:, self._pass, self._stage], 1.0)
        durations = self._group.durations
        replaced = Durations(
            np.ascontiguousarray((self._mean_s * of_row).T), durations.ideal_s, durations.op_class
        )
        keep = np.ones((self._group.class_stage.size, 1), np.bool_)
        lanes = Peers(np.zeros(1, np.int64), len(new))
        times_s = step_times(self._group.graph, replaced, keep, lanes)
        self._known.update(zip(new, times_s.tolist(), strict=True))

    def descend(self, start: Split) -> Split:
        """The split from which no move of one layer is faster."""
        best = start
        while moves := self._moves(best):
            self._simulate(moves)
            moved = min(moves, key=self.step_s)
            if self.step_s(moved) >= self.step_s(best) * (1 - 1e-9):
                break
            best = moved
        return best

    def _moves(self, layers: Split) -> list[Split]:
        """Splits with one layer elsewhere; only the first and the last may be left without one."""
        sources, targets = self._ends_of_moves(layers)
        last = len(layers) - 1
        found = []
        for source in sources:
            if layers[source] <= (0 if source in (0, last) else 1):
                continue
            for target in targets:
                if source != target:
                    moved = list(layers)
                    moved[source] -= 1
                    moved[target] += 1
                    found.append(tuple(moved))
        return found

    def _ends_of_moves(self, layers: Split) -> tuple[list[int], list[int]]:
        every = list(range(len(layers)))
        if len(layers) <= MANY_STAGES:
            return every, every
        load_s = chunk_s(self._costs, layers).reshape(-1, self.pp_size).sum(axis=0)
        order = np.argsort(load_s).tolist()
        most, least = set(order[-MOST_LOADED:]), set(order[:LEAST_LOADED])
        return (
            [each for each in every if each % self.pp_size in most],
            [each for each in every if each % self.pp_size in least],
        )
