"""Fix: another number of transformer layers for each pipeline stage.

The cost of a layer comes from the ordinary stages, between the first (embedding) and the last
(loss). A stage with n' instead of n layers computes (n' - n) layer costs longer; what else it
computes stays. Layer counts are searched with the simulator, since with few micro-batches the split
with the smallest maximum is not the fastest; the search replays one replica at its mean durations,
the prediction every step of every replica.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from app.advice.change import Change
from app.advice.fix import AdviceCase, Fix, NotOffered, Paste, confidence_of, restart_needs
from app.engine.questions.edits import Edit, Factor, Selection
from app.engine.what_if import Durations, Peers, Replayer, step_times
from app.trace.window import Floats, Ints

NAME = "resplit-stages"
CAUSES = ("stage-imbalance",)
# A smaller gain is within the noise of a prediction, and not worth a restart.
MIN_SPEED_UP = 1.01
PASSES = (
    "forward-compute",
    "backward-compute",
    "backward-input-compute",
    "backward-weight-compute",
)


def resplit_stages(case: AdviceCase) -> Fix | NotOffered:
    """Move layers away from the stages that take longest."""
    found = case.findings(*CAUSES)
    if not found:
        return NotOffered(NAME, "no stage was found to take longer than the others")
    before = current_layers(case)
    if isinstance(before, NotOffered):
        return before
    costs = stage_costs(case, before)
    if isinstance(costs, NotOffered):
        return costs
    after = best_split(case, costs)
    changes = [
        Change(edits=edits_of(costs, after, layer_s))
        for layer_s in (costs.layer_s, costs.least_layer_s, costs.most_layer_s)
    ]
    step_s, least_s, most_s = (case.step_s_with(each) for each in changes)
    if case.step_s / step_s < MIN_SPEED_UP:
        return NotOffered(NAME, f"no split is faster by 1 %: {_split(before)} layers are best")
    return Fix(
        name=NAME,
        title=f"Give the stages {_split(after)} layers, not {_split(before)}",
        before_s=case.step_s,
        step_s=step_s,
        step_range_s=(min(step_s, least_s, most_s), max(step_s, least_s, most_s)),
        num_gpus=case.num_gpus,
        confidence=confidence_of(case, found[0]),
        risk="Stages with more layers need more memory; checkpoints are loaded in another layout.",
        stops_job=True,
        change=changes[0],
        cause=found[0]["cause"],
        stop_minutes=case.facts.stop_minutes,
        lost_minutes=case.lost_minutes(found[0]),
        paste=pastes(after),
        needs=restart_needs(case),
    )


def current_layers(case: AdviceCase) -> tuple[int, ...] | NotOffered:
    """Layers of each stage, from the owner's facts."""
    sizes, facts = case.replay.window.job.parallelism, case.facts
    if sizes.vpp_size > 1:
        return NotOffered(NAME, "stages are interleaved, and no split of those is predicted")
    if sizes.pp_size < 2:
        return NotOffered(NAME, "the job has one stage")
    if facts.layers_by_stage is not None:
        if len(facts.layers_by_stage) != sizes.pp_size:
            return NotOffered(
                NAME, f"{len(facts.layers_by_stage)} numbers of layers for {sizes.pp_size} stages"
            )
        return facts.layers_by_stage
    if facts.layers is None:
        return NotOffered(
            NAME,
            "a stage takes longer, but the number of layers is not known",
            ("the model's layers (--layers, or --layout where stages have different numbers)",),
        )
    if facts.layers % sizes.pp_size:
        return NotOffered(
            NAME,
            f"{facts.layers} layers are not the same number on each of {sizes.pp_size} stages",
            ("the layers of each stage (--layout)",),
        )
    return (facts.layers // sizes.pp_size,) * sizes.pp_size


@dataclass(frozen=True)
class StageCosts:
    """Cost of each pass on each stage, and of one layer.

    Shapes: `stage_s` [passes, pp], `layer_s` [passes], seconds per micro-batch; the least and most
    are those of the ordinary stages. `names` are the passes' op types, `layers` [pp].
    """

    names: tuple[str, ...]
    layers: Ints
    stage_s: Floats
    layer_s: Floats
    least_layer_s: Floats
    most_layer_s: Floats

    def factors(self, layers: Sequence[int], layer_s: Floats) -> Floats:
        """[passes, pp], how many times as long a pass takes with these layers on the stages."""
        more = np.asarray(layers) - self.layers
        return np.maximum(0.0, 1 + more * layer_s[:, None] / self.stage_s)


def stage_costs(case: AdviceCase, layers: Sequence[int]) -> StageCosts | NotOffered:
    """Fit of the costs: medians over dp ranks, so that one slow worker makes no slow stage."""
    pp_size = len(layers)
    ordinary = list(range(1, pp_size - 1)) or [0]
    names, stage_s = [], []
    for name in PASSES:
        of_stage = _pass_s(case, name, pp_size)
        if of_stage is not None:
            names.append(name)
            stage_s.append(of_stage)
    if not names:
        return NotOffered(NAME, "the stages' forward and backward computations are not recorded")
    if not all(layers[stage] for stage in ordinary):
        return NotOffered(NAME, "an ordinary stage has no layers, so the cost of one is not known")
    every_s = np.array(stage_s)
    by_stage = every_s[:, ordinary] / np.asarray(layers)[ordinary]
    return StageCosts(
        tuple(names),
        np.asarray(layers, np.int64),
        every_s,
        by_stage.mean(axis=1),
        by_stage.min(axis=1),
        by_stage.max(axis=1),
    )


def _pass_s(case: AdviceCase, name: str, pp_size: int) -> Floats | None:
    """[pp], seconds of a pass per micro-batch, median over dp ranks; None if a stage has none."""
    dp_size = case.replay.window.job.parallelism.dp_size
    total_s, number = np.zeros((dp_size, pp_size)), np.zeros(pp_size)
    for group in case.replay.groups:
        for stage, of_type in enumerate(group.template.of_stage):
            rows = of_type[name]
            by_lane = group.durations.recorded_s[rows].sum(axis=0)
            total_s[:, stage] += by_lane.reshape(dp_size, -1).sum(axis=1)
            number[stage] += len(rows) * len(group.steps)
    return np.median(total_s / number, axis=0) if number.all() else None


def edits_of(costs: StageCosts, layers: Sequence[int], layer_s: Floats) -> tuple[Edit, ...]:
    """Edits that give each stage's passes the durations of these layers."""
    return tuple(
        Edit(Factor(float(factor)), Selection(op_types=(name,), stages=(stage,)))
        for name, of_stage in zip(costs.names, costs.factors(layers, layer_s), strict=True)
        for stage, factor in enumerate(of_stage)
        if factor != 1.0
    )


def best_split(case: AdviceCase, costs: StageCosts) -> tuple[int, ...]:
    """Layers of each stage with the shortest simulated step, found by moving single layers."""
    search = _Search(max(case.replay.groups, key=lambda group: len(group.steps)), costs)
    found = (search.descend(each) for each in (costs.layers, search.most_equal()))
    return min(found, key=search.step_s)


class _Search:
    """Steepest descent over layer counts, by the step of one replica at its mean durations."""

    def __init__(self, group: Replayer, costs: StageCosts) -> None:
        self._group, self._costs = group, costs
        self._mean_s = group.durations.recorded_s.mean(axis=1)
        template, graph = group.template, group.graph
        ops = np.concatenate([np.arange(template.num_ops), graph.milestone_of])
        self._stage = template.stage[ops]
        number_of = {name: number for number, name in enumerate(costs.names)}
        of_op = np.array([number_of.get(template.name(op), -1) for op in range(template.num_ops)])
        self._pass = of_op[ops]
        self._known: dict[tuple[int, ...], float] = {}

    def step_s(self, layers: tuple[int, ...]) -> float:
        """Seconds of a step with these layers."""
        if layers not in self._known:
            factors = self._costs.factors(layers, self._costs.layer_s)
            by_row = np.where(self._pass >= 0, factors[self._pass, self._stage], 1.0)
            durations = self._group.durations
            replaced = Durations(
                (self._mean_s * by_row)[:, None], durations.ideal_s, durations.op_class
            )
            keep = np.ones((self._group.class_stage.size, 1), np.bool_)
            alone = Peers(np.zeros(1, np.int64), 1)
            self._known[layers] = float(step_times(self._group.graph, replaced, keep, alone)[0])
        return self._known[layers]

    def descend(self, start: Ints) -> tuple[int, ...]:
        """The split from which no move of one layer is faster."""
        best = tuple(int(each) for each in start)
        while True:
            moved = min(self._moves(best), key=self.step_s, default=best)
            if self.step_s(moved) >= self.step_s(best) * (1 - 1e-9):
                return best
            best = moved

    def most_equal(self) -> Ints:
        """Layer counts whose largest stage is shortest: each layer to the stage that then is."""
        fixed_s = (self._costs.stage_s - self._costs.layers * self._costs.layer_s[:, None]).sum(0)
        layer_s = float(self._costs.layer_s.sum())
        counts = np.ones(self._costs.layers.size, np.int64)
        for _ in range(int(self._costs.layers.sum()) - counts.size):
            counts[np.argmin(fixed_s + (counts + 1) * layer_s)] += 1
        return counts

    @staticmethod
    def _moves(layers: tuple[int, ...]) -> list[tuple[int, ...]]:
        found = []
        for source in range(len(layers)):
            for target in range(len(layers)):
                if source != target and layers[source] > 1:
                    moved = list(layers)
                    moved[source] -= 1
                    moved[target] += 1
                    found.append(tuple(moved))
        return found


def megatron_layout(layers: Sequence[int]) -> str:
    """Megatron-LM's layout string, such as `Et*10|t*10|t*10|t*6L`."""
    stages = ["" if not number else "t" if number == 1 else f"t*{number}" for number in layers]
    stages[0] = f"E{stages[0]}"
    stages[-1] = f"{stages[-1]}L"
    return "|".join(stages)


def pastes(layers: Sequence[int]) -> tuple[Paste, ...]:
    """The layout for Megatron-LM and torchtitan."""
    found = [
        Paste("Megatron-LM", f'--pipeline-model-parallel-layout "{megatron_layout(layers)}"'),
    ]
    if len(layers) > 2 and len({*layers[1:-1]}) == 1:
        found.append(
            Paste(
                "Megatron-LM, without a layout",
                f"--decoder-first-pipeline-num-layers {layers[0]} "
                f"--decoder-last-pipeline-num-layers {layers[-1]}",
            )
        )
    found.append(
        Paste(
            "torchtitan (names of its Llama)",
            f"--parallelism.module_fqns_per_model_part '{json.dumps(_module_names(layers))}'",
        )
    )
    return tuple(found)


def _module_names(layers: Sequence[int]) -> list[list[str]]:
    ends = np.cumsum(layers).tolist()
    found = [
        [f"layers.{layer}" for layer in range(end - number, end)]
        for end, number in zip(ends, layers, strict=True)
    ]
    found[0].insert(0, "tok_embeddings")
    found[-1] += ["norm", "output"]
    return found


def _split(layers: Sequence[int]) -> str:
    return "/".join(str(each) for each in layers)
