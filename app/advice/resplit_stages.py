"""Fix: other numbers of transformer layers on the pipeline stages, or on their chunks.

A stage with n' instead of n layers computes (n' - n) layer costs longer; what else it computes
stays. `best_split` tries the counts in the simulator; the prediction replays every step of every
replica.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from app.advice.change import Change, ChangedDurations
from app.advice.fix import MIN_SPEED_UP, AdviceCase, Fix, Need, NotOffered, Paste
from app.engine.questions.edits import Edit, Factor, Selection
from app.engine.replays import WindowReplay
from app.engine.template import Template
from app.engine.what_if import Durations, Peers, Replayer, step_times
from app.result import causes
from app.synth.schedules import ComputeKind
from app.trace.window import Floats, Ints

PASSES = tuple(kind.value for kind in ComputeKind)
_NO_LAYERS = 0.05  # shown as 0.0
# Largest assumed cost of an embedding where only two stages are there to show it.
_MAX_EMBEDDING_LAYERS = 2


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
        """Layers that cost as much as the embedding; None where the record does not show them."""
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


def stage_costs(replay: WindowReplay, layers: Sequence[int]) -> StageCosts | NotOffered:
    """Fit of the costs: medians over dp ranks, so that one slow worker makes no slow stage."""
    ordinary = list(range(1, len(layers) - 1)) or [0]
    pass_s = {name: _pass_s(replay, name) for name in PASSES}
    known_s = {name: stage_s for name, stage_s in pass_s.items() if stage_s is not None}
    if not known_s:
        return NotOffered(NAME, "the stages' forward and backward computations are not recorded")
    if not all(layers[stage] for stage in ordinary):
        reason = "an ordinary stage has no layers, so the cost of one is not known"
        return NotOffered(NAME, reason)
    counts, every_s = np.asarray(layers, np.int64), np.array(list(known_s.values()))
    layer_s = every_s[:, ordinary] / counts[ordinary]
    least_s, mean_s, most_s = layer_s.min(axis=1), layer_s.mean(axis=1), layer_s.max(axis=1)
    if len(layers) == 2:  # the embedding may be part of what the first stage computes
        least_s = least_s * layers[0] / (layers[0] + _MAX_EMBEDDING_LAYERS)
    return StageCosts(tuple(known_s), counts, every_s, mean_s, least_s, most_s)


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


Split = tuple[int, ...]

# Of more virtual stages, layers move only from the stages with most work to those with least.
MANY_STAGES, MOST_LOADED, LEAST_LOADED = 16, 3, 4


def best_split(replay: WindowReplay, costs: StageCosts) -> Split:
    """Layers of each virtual stage with the shortest simulated step, moving single layers."""
    search = _Search(max(replay.groups, key=lambda group: len(group.steps)), costs)
    starts = [tuple(costs.layers.tolist())]
    if costs.layers.sum() >= costs.layers.size:
        starts.append(equal_stages(costs, search.pp_size))
    return min((search.descend(start) for start in starts), key=search.step_s)


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
        new = [split for split in dict.fromkeys(splits) if split not in self._known]
        if not new:
            return
        factors = np.stack([self._costs.factors(split, self._costs.layer_s) for split in new])
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
        moves = []
        for source in sources:
            if layers[source] <= (0 if source in (0, last) else 1):
                continue
            for target in targets:
                if source != target:
                    moved = list(layers)
                    moved[source] -= 1
                    moved[target] += 1
                    moves.append(tuple(moved))
        return moves

    def _ends_of_moves(self, layers: Split) -> tuple[list[int], list[int]]:
        every = list(range(len(layers)))
        if len(layers) <= MANY_STAGES:
            return every, every
        load_s = chunk_s(self._costs, layers).reshape(-1, self.pp_size).sum(axis=0)
        order = np.argsort(load_s).tolist()
        most, least = set(order[-MOST_LOADED:]), set(order[:LEAST_LOADED])
        return (
            [chunk for chunk in every if chunk % self.pp_size in most],
            [chunk for chunk in every if chunk % self.pp_size in least],
        )


def megatron_layout(layers: Sequence[int]) -> str:
    """Megatron-LM's layout string, such as `Et*10|t*10|t*10|t*6L`."""
    stages = ["" if not number else "t" if number == 1 else f"t*{number}" for number in layers]
    stages[0] = f"E{stages[0]}"
    stages[-1] = f"{stages[-1]}L"
    return "|".join(stages)


def split_in_words(layers: Sequence[int], pp_size: int) -> str:
    """`10/10/10/6`; chunks apart: `3/2 | 2/1` are two chunks on two stages."""
    chunks = [layers[first : first + pp_size] for first in range(0, len(layers), pp_size)]
    return " | ".join("/".join(map(str, chunk)) for chunk in chunks)


def pastes(layers: Sequence[int], pp_size: int) -> tuple[Paste, ...]:
    """The layout for Megatron-LM and torchtitan."""
    texts = [
        Paste(
            "Megatron-LM (instead of all other options on layers of stages)",
            f'--pipeline-model-parallel-layout "{megatron_layout(layers)}"',
        ),
    ]
    has_flags = len(layers) == pp_size > 2 and len({*layers[1:-1]}) == 1
    if has_flags and layers[0] and layers[-1]:
        texts.append(
            Paste(
                "Megatron-LM, without a layout (and without --account-for-... options)",
                f"--decoder-first-pipeline-num-layers {layers[0]} "
                f"--decoder-last-pipeline-num-layers {layers[-1]}",
            )
        )
    texts.append(
        Paste(
            "torchtitan (modules of its Llama; other models have other names)",
            f"--parallelism.module_fqns_per_model_part {_torchtitan_modules(layers)}",
        )
    )
    return tuple(texts)


def _torchtitan_modules(layers: Sequence[int]) -> str:
    """Spaces between stages, commas between the modules of one: how its parser reads lists."""
    stages = [
        [f"layers.{layer}" for layer in range(end - number, end)]
        for end, number in zip(accumulate(layers), layers, strict=True)
    ]
    stages[0].insert(0, "tok_embeddings")
    stages[-1] += ["norm", "output"]
    return " ".join(",".join(stage) for stage in stages)


NAME = "resplit-stages"
CAUSES = (causes.STAGE_IMBALANCE,)
# Of more stages or chunks, the title names no numbers: the layout has them.
MAX_NAMED_PARTS = 16


def resplit_stages(case: AdviceCase) -> Fix | NotOffered:
    """Move layers away from the stages that take longest."""
    findings = case.findings(*CAUSES)
    if not findings:
        return NotOffered(NAME, "no stage was found to take longer than the others")
    if not any(finding.is_of_microbatches for finding in findings):
        return NotOffered(NAME, "the stage takes longer in the optimizer, not in its layers")
    before = current_layers(case)
    if isinstance(before, NotOffered):
        return before
    costs = stage_costs(case.replay, before)
    if isinstance(costs, NotOffered):
        return costs
    pp_size = case.replay.window.job.parallelism.pp_size
    after = best_split(case.replay, costs)
    changes = [
        split_change(costs, after, layer_s, pp_size)
        for layer_s in (costs.layer_s, costs.least_layer_s, costs.most_layer_s)
    ]
    step_s, least_s, most_s = (case.step_s_with(change) for change in changes)
    if case.step_s / step_s < MIN_SPEED_UP:
        return NotOffered(
            NAME, f"no split is faster by 1 %: {split_in_words(before, pp_size)} layers are best"
        )
    return case.fix(
        NAME,
        _title(before, after, pp_size),
        step_s=step_s,
        step_range_s=(min(step_s, least_s, most_s), max(step_s, least_s, most_s)),
        risk="Stages with more layers need more memory; checkpoints are loaded in another layout. "
        + costs.in_words(),
        change=changes[0],
        finding=findings[0],
        paste=pastes(after, pp_size),
        needs=case.restart_needs(),
    )


def _title(before: Sequence[int], after: Sequence[int], pp_size: int) -> str:
    parts = "stages" if len(after) == pp_size else "stages' chunks"
    if len(after) > MAX_NAMED_PARTS:
        moved = sum(max(0, was - now) for was, now in zip(before, after, strict=True))
        return f"Move {moved} layer{'s' * (moved > 1)} between the {parts}"
    now, was = (split_in_words(layers, pp_size) for layers in (after, before))
    return f"Give the {parts} {now} layers, not {was}"


def current_layers(case: AdviceCase) -> tuple[int, ...] | NotOffered:
    """Layers of each virtual stage in model order, from the owner's facts."""
    sizes, facts = case.replay.window.job.parallelism, case.facts
    if sizes.pp_size < 2:
        return NotOffered(NAME, "the job has one stage")
    number = sizes.pp_size * sizes.vpp_size
    places = f"{sizes.pp_size} stages"
    if sizes.vpp_size > 1:
        places = f"{number} chunks ({sizes.vpp_size} on each of {places})"
    if facts.layers_by_stage is not None:
        if len(facts.layers_by_stage) != number:
            return NotOffered(NAME, f"{len(facts.layers_by_stage)} numbers of layers for {places}")
        return facts.layers_by_stage
    if facts.layers is None:
        return NotOffered(
            NAME,
            "a stage takes longer, but the number of layers is not known",
            (Need("the model's layers", "layers"),),
        )
    if facts.layers % number:
        order = ", chunk by chunk in model order" if sizes.vpp_size > 1 else ""
        return NotOffered(
            NAME,
            f"{facts.layers} layers are not the same number on each of {places}",
            (Need(f"the layers of each stage{order}", "layout"),),
        )
    return (facts.layers // number,) * number


def split_change(costs: StageCosts, layers: Sequence[int], layer_s: Floats, pp_size: int) -> Change:
    """Durations of these layers: what-if edits, or chunk by chunk where stages have several."""
    factors = costs.factors(layers, layer_s)
    if len(layers) == pp_size:
        return Change(edits=edits_of(costs, factors))

    def reassign(durations: ChangedDurations) -> None:
        template = durations.group.template
        stage_of = virtual_stage(template)
        for name, of_stage in zip(costs.names, factors, strict=True):
            rows = np.flatnonzero(template.optype == template.op_types.codes[name])
            by_row = of_stage[stage_of[rows]]
            changed = rows[by_row != 1.0]
            durations.set(changed, durations.of(changed) * by_row[by_row != 1.0][:, None])

    return Change(reassign=reassign)


def edits_of(costs: StageCosts, factors: Floats) -> tuple[Edit, ...]:
    """Edits that scale each stage's passes, by `factors` [passes, pp]."""
    return tuple(
        Edit(Factor(float(factor)), Selection(op_types=(name,), stages=(stage,)))
        for name, of_stage in zip(costs.names, factors, strict=True)
        for stage, factor in enumerate(of_stage)
        if factor != 1.0
    )
