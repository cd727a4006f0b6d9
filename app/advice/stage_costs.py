"""Costs of transformer layers, the embedding and the loss, fitted from the stages' computations.

The cost of a layer comes from the ordinary virtual stages, between the first one (embedding) and
the last one (loss). What those two compute beyond their layers is the embedding's and the loss's.
Virtual stages are in model order: chunk 0 of every stage, then chunk 1 of every stage, and so on.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from app.engine.replays import WindowReplay
from app.engine.template import Template
from app.trace.window import Floats, Ints

PASSES = (
    "forward-compute",
    "backward-compute",
    "backward-input-compute",
    "backward-weight-compute",
)


_NO_LAYERS = 0.05  # shown as 0.0
# What an embedding is assumed to cost at most where only two stages are there to tell.
_MAX_EMBEDDING_LAYERS = 2


@dataclass(frozen=True, slots=True)
class NoCosts:
    """Why the cost of a layer is not known."""

    reason: str


@dataclass(frozen=True)
class StageCosts:
    """Cost of each pass on each virtual stage, and of one layer.

    Shapes: `stage_s` [passes, virtual stages], `layer_s` [passes], seconds per micro-batch; the
    least and most are those of the ordinary stages. `names` are the passes' op types, `layers`
    [virtual stages].
    """

    names: tuple[str, ...]
    layers: Ints
    stage_s: Floats
    layer_s: Floats
    least_layer_s: Floats
    most_layer_s: Floats

    @property
    def embedding_layers(self) -> float | None:
        """Layers that cost as much as the embedding; None if it cannot be told from layers."""
        return self._beyond_layers(0) if self.layers.size > 2 else None

    @property
    def loss_layers(self) -> float:
        """Layers that cost as much as the loss."""
        return self._beyond_layers(-1)

    def _beyond_layers(self, end: int) -> float:
        in_layers = float(self.stage_s[:, end].sum() / self.layer_s.sum())
        return max(0.0, in_layers - int(self.layers[end]))

    def factors(self, layers: Sequence[int], layer_s: Floats) -> Floats:
        """[passes, virtual stages], times as long as before that a pass takes with these layers."""
        more = np.asarray(layers) - self.layers
        before_s = np.where(self.stage_s > 0, self.stage_s, 1.0)
        return np.maximum(0.0, 1 + more * layer_s[:, None] / before_s)

    def in_words(self) -> str:
        """The fitted costs, in layers."""
        loss = f"the loss costs as much as {self.loss_layers:.1f} layers"
        if self.embedding_layers is None:
            return (
                f"Fitted: {loss}; the embedding counts as part of the first stage's layers, and "
                f"the range allows for one that costs {_MAX_EMBEDDING_LAYERS} layers."
            )
        if self.embedding_layers < _NO_LAYERS:
            return f"Fitted: {loss}, the embedding less than 0.05."
        return f"Fitted: {loss}, the embedding as {self.embedding_layers:.1f}."


def stage_costs(replay: WindowReplay, layers: Sequence[int]) -> StageCosts | NoCosts:
    """Fit of the costs: medians over dp ranks, so that one slow worker makes no slow stage."""
    ordinary = list(range(1, len(layers) - 1)) or [0]
    names, stage_s = [], []
    for name in PASSES:
        of_stage = _pass_s(replay, name)
        if of_stage is not None:
            names.append(name)
            stage_s.append(of_stage)
    if not names:
        return NoCosts("the stages' forward and backward computations are not recorded")
    if not all(layers[stage] for stage in ordinary):
        return NoCosts("an ordinary stage has no layers, so the cost of one is not known")
    every_s = np.array(stage_s)
    by_stage = every_s[:, ordinary] / np.asarray(layers)[ordinary]
    least_s = by_stage.min(axis=1)
    if len(layers) == 2:  # the embedding may be part of what the first stage computes
        least_s = least_s * layers[0] / (layers[0] + _MAX_EMBEDDING_LAYERS)
    return StageCosts(
        tuple(names),
        np.asarray(layers, np.int64),
        every_s,
        by_stage.mean(axis=1),
        least_s,
        by_stage.max(axis=1),
    )


def virtual_stage(template: Template) -> Ints:
    """[ops], the virtual stage of each operation, in model order."""
    sizes = template.parallelism
    chunk = np.clip(template.mc, 0, sizes.vpp_size - 1)
    return np.asarray(chunk * sizes.pp_size + template.stage)


def _pass_s(replay: WindowReplay, name: str) -> Floats | None:
    """[virtual stages], seconds of a pass per micro-batch, median over dp ranks; None if a stage
    has none."""
    sizes = replay.window.job.parallelism
    stages = sizes.pp_size * sizes.vpp_size
    total_s, number = np.zeros((sizes.dp_size, stages)), np.zeros(stages)
    for group in replay.groups:
        template = group.template
        of_op = virtual_stage(template)
        is_pass = template.optype == template.op_types.codes[name]
        for stage in range(stages):
            rows = np.flatnonzero(is_pass & (of_op == stage))
            by_lane = group.durations.recorded_s[rows].sum(axis=0)
            total_s[:, stage] += by_lane.reshape(sizes.dp_size, -1).sum(axis=1)
            number[stage] += len(rows) * len(group.steps)
    return np.median(total_s / number, axis=0) if number.all() else None
