"""Fix: another number of transformer layers for each pipeline stage, or for each of its chunks.

A stage with n' instead of n layers computes (n' - n) layer costs longer (`stage_costs.py`); what
else it computes stays. `split_search.py` searches the counts with the simulator; the prediction
replays every step of every replica.
"""

from collections.abc import Sequence

import numpy as np

from app.advice.change import Change, ChangedDurations
from app.advice.fix import AdviceCase, Fix, Need, NotOffered, confidence_of, restart_needs
from app.advice.stages.split_search import best_split
from app.advice.stages.stage_costs import NoCosts, StageCosts, stage_costs, virtual_stage
from app.advice.stages.stage_layout import pastes, split_in_words
from app.engine.questions.edits import Edit, Factor, Selection
from app.result import causes
from app.trace.window import Floats

NAME = "resplit-stages"
CAUSES = (causes.STAGE_IMBALANCE,)
# A smaller gain is within the noise of a prediction, and not worth a restart.
MIN_SPEED_UP = 1.01
# Of more stages or chunks, the title names no numbers: the layout has them.
MAX_NAMED_PARTS = 16


def resplit_stages(case: AdviceCase) -> Fix | NotOffered:
    """Move layers away from the stages that take longest."""
    found = case.findings(*CAUSES)
    if not found:
        return NotOffered(NAME, "no stage was found to take longer than the others")
    before = current_layers(case)
    if isinstance(before, NotOffered):
        return before
    costs = stage_costs(case.replay, before)
    if isinstance(costs, NoCosts):
        return NotOffered(NAME, costs.reason)
    pp_size = case.replay.window.job.parallelism.pp_size
    after = best_split(case.replay, costs)
    changes = [
        split_change(costs, after, layer_s, pp_size)
        for layer_s in (costs.layer_s, costs.least_layer_s, costs.most_layer_s)
    ]
    step_s, least_s, most_s = (case.step_s_with(each) for each in changes)
    if case.step_s / step_s < MIN_SPEED_UP:
        return NotOffered(
            NAME, f"no split is faster by 1 %: {split_in_words(before, pp_size)} layers are best"
        )
    return Fix(
        name=NAME,
        title=_title(before, after, pp_size),
        before_s=case.step_s,
        step_s=step_s,
        step_range_s=(min(step_s, least_s, most_s), max(step_s, least_s, most_s)),
        num_gpus=case.num_gpus,
        confidence=confidence_of(case, found[0]),
        risk="Stages with more layers need more memory; checkpoints are loaded in another layout. "
        + costs.in_words(),
        stops_job=True,
        change=changes[0],
        cause=found[0]["cause"],
        stop_minutes=case.facts.stop_minutes,
        elapsed=case.since_onset(found[0]),
        paste=pastes(after, pp_size),
        needs=restart_needs(case),
    )


def _title(before: Sequence[int], after: Sequence[int], pp_size: int) -> str:
    parts = "stages" if len(after) == pp_size else "stages' chunks"
    if len(after) > MAX_NAMED_PARTS:
        moved = sum(max(0, was - now) for was, now in zip(before, after, strict=True))
        return f"Move {moved} layer{'s' * (moved > 1)} between the {parts}"
    now, was = (split_in_words(each, pp_size) for each in (after, before))
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
        return NotOffered(
            NAME,
            f"{facts.layers} layers are not the same number on each of {places}",
            (Need("the layers of each stage, chunk by chunk in model order", "layout"),)
            if sizes.vpp_size > 1
            else (Need("the layers of each stage", "layout"),),
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
