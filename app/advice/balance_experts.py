"""Fix: even out the experts over the expert-parallel ranks, with copies of the hot ones.

Each layer waits for the rank with the most tokens, so the experts' share of forward and backward
shrinks like that rank's load: by the imbalance (largest over mean) after, over that before. No
trace has the loads of experts, so they and their share of the computing time are asked for.
"""

import json

from app.advice.change import Change
from app.advice.fix import AdviceCase, Fix, Need, NotOffered, Paste, confidence_of, restart_needs
from app.advice.models.expert_placement import ExpertPlacement, balanced, in_order
from app.engine.questions.edits import Edit, Factor, Selection
from app.errors import InvalidRequest
from app.result import causes
from app.trace.ops import COMPUTE_STREAM, OpKind

NAME = "balance-experts"
CAUSES = (causes.EXPERT_IMBALANCE,)
# Memory of one more expert on each rank.
COPIES_PER_RANK = 1
# Below, batches differ by more from step to step.
MIN_IMBALANCE = 1.05


def balance_experts(case: AdviceCase) -> Fix | NotOffered:
    """Place the experts by their recorded loads, with at most one copy on each rank."""
    facts, ep_size = case.facts, case.replay.window.job.parallelism.ep_size
    if ep_size < 2:
        return NotOffered(NAME, "the job has no expert parallelism")
    if facts.expert_loads is None:
        return NotOffered(
            NAME,
            "how many tokens each expert takes is not known",
            (Need("the tokens of each expert of a layer", "expert_loads"),),
        )
    try:
        before = in_order(facts.expert_loads, ep_size)
    except InvalidRequest as error:
        return NotOffered(NAME, str(error))
    after = balanced(facts.expert_loads, ep_size, COPIES_PER_RANK)
    figures = f"the fullest rank has {before.imbalance:.2f} times the mean load"
    if before.imbalance < MIN_IMBALANCE:
        return NotOffered(NAME, f"the experts are balanced: {figures}")
    if facts.expert_share is None:
        return NotOffered(
            NAME,
            f"{figures}, {after.imbalance:.2f} with another placement; what that wins is not known",
            (Need("the experts' share of forward and backward, 0 to 1", "expert_share"),),
        )
    found = case.findings(*CAUSES)
    cause = found[0]["cause"] if found else None
    return _fix(case, (before, after), facts.expert_share, cause)


def _fix(
    case: AdviceCase,
    placements: tuple[ExpertPlacement, ExpertPlacement],
    share: float,
    cause: str | None,
) -> Fix | NotOffered:
    before, after = placements
    names = _passes(case)
    if not names:
        return NotOffered(NAME, "forward and backward computations are not recorded")
    factor = 1 - share * (1 - after.imbalance / before.imbalance)
    change = Change(edits=(Edit(Factor(factor), Selection(op_types=names)),))
    step_s = case.step_s_with(change)
    if step_s >= case.step_s:
        return NotOffered(NAME, "the experts' computations are not what the step waits for")
    num_copies = sum(after.copies) - len(after.copies)
    return Fix(
        name=NAME,
        title=(
            f"Move experts, with {num_copies} copies of hot ones: "
            f"imbalance {before.imbalance:.2f} to {after.imbalance:.2f}"
        ),
        before_s=case.step_s,
        step_s=step_s,
        # Loads differ from step to step: at worst nothing is won.
        step_range_s=(step_s, case.step_s),
        num_gpus=case.num_gpus,
        confidence=0.5 * confidence_of(case),
        risk=(
            f"Each rank needs memory for {COPIES_PER_RANK} more expert, and copies sum their "
            "gradients. Loads move during training: measure them again before each placement."
        ),
        stops_job=True,
        cause=cause,
        change=change,
        stop_minutes=case.facts.stop_minutes,
        paste=(Paste("Experts of each expert-parallel rank, as JSON", _as_json(after)),),
        needs=restart_needs(case),
    )


def _passes(case: AdviceCase) -> tuple[str, ...]:
    """Names of the op types that compute micro-batches."""
    found = {
        spec.name
        for group in case.replay.groups
        for spec in (group.template.op_types.by_code[code] for code in group.template.present)
        if spec.kind is OpKind.COMPUTE and spec.stream == COMPUTE_STREAM
    }
    return tuple(sorted(found))


def _as_json(placement: ExpertPlacement) -> str:
    ranks = {str(rank): list(experts) for rank, experts in enumerate(placement.ranks)}
    return json.dumps({"experts_of_ep_rank": ranks, "copies": list(placement.copies)})
