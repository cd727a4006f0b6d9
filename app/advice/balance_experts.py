"""Fix: even out the experts over the expert-parallel ranks, with copies of the hot ones.

Each layer waits for the rank with the most tokens, so the experts' share of forward and backward
shrinks like that rank's load: by the imbalance (largest over mean) after, over that before. No
trace has the loads of experts, so they and their share of the computing time are asked for.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heapreplace
from math import isfinite

from app.advice.change import Change
from app.advice.fix import AdviceCase, Fix, Need, NotOffered, Paste
from app.engine.questions.edits import Edit, Factor, Selection
from app.errors import InvalidRequest
from app.result.causes import EXPERT_IMBALANCE
from app.trace.ops import COMPUTE_STREAM, OpKind

# Numbers of copies that are tried, evenly apart.
_MAX_TRIED = 9


@dataclass(frozen=True, slots=True)
class ExpertPlacement:
    """Experts of each rank, and each rank's load; an expert with k copies has 1 / k in each.

    `ranks` [ranks][slots] are expert numbers, `load` [ranks] tokens, `copies` [experts].
    """

    ranks: tuple[tuple[int, ...], ...]
    load: tuple[float, ...]
    copies: tuple[int, ...]

    @property
    def imbalance(self) -> float:
        """Largest load over the mean load; 1 is even."""
        mean = sum(self.load) / len(self.load)
        return max(self.load) / mean if mean > 0 else 1.0


def in_order(loads: Sequence[float], num_ranks: int) -> ExpertPlacement:
    """The usual placement: the same number of successive experts on every rank, no copies.

    Raises:
        InvalidRequest: the experts cannot be split evenly, or a load is negative.
    """
    if num_ranks < 1 or not loads:
        raise InvalidRequest(f"{len(loads)} experts over {num_ranks} ranks: give at least 1 each")
    if any(not (isfinite(load) and load >= 0) for load in loads):
        raise InvalidRequest("an expert's load is negative or no number: give tokens, 0 or more")
    if len(loads) % num_ranks:
        raise InvalidRequest(
            f"{len(loads)} experts over {num_ranks} expert-parallel ranks: not the same number each"
        )
    size = len(loads) // num_ranks
    ranks = tuple(tuple(range(at, at + size)) for at in range(0, len(loads), size))
    return _placement(ranks, loads, (1,) * len(loads))


def balanced(loads: Sequence[float], num_ranks: int, extra_per_rank: int = 0) -> ExpertPlacement:
    """The most even placement of LPT, with at most `extra_per_rank` copies on each rank.

    Raises:
        InvalidRequest: the experts cannot be split evenly, or a load is negative.
    """
    usual = in_order(loads, num_ranks)
    if extra_per_rank < 0:
        raise InvalidRequest(f"{extra_per_rank} slots for copies: give 0 or more")
    num_slots, best = len(usual.ranks[0]) + extra_per_rank, usual
    # More copies are not always better: the smaller parts of the last one may fit nowhere.
    most = num_ranks * extra_per_rank
    num_tried = min(most, _MAX_TRIED - 1)
    for num_extra in sorted({round(at * most / max(1, num_tried)) for at in range(num_tried + 1)}):
        copies = _copies(loads, num_extra, num_ranks)
        ranks = _longest_first(loads, copies, num_ranks, num_slots)
        best = min(best, _placement(ranks, loads, copies), key=lambda tried: tried.imbalance)
    return best


def _copies(loads: Sequence[float], num_extra: int, num_ranks: int) -> tuple[int, ...]:
    """[experts], copies of each, no more than one a rank; one by one to the largest per copy."""
    copies = [1] * len(loads)
    order = [(-load, expert) for expert, load in enumerate(loads)]
    heapify(order)
    for _ in range(num_extra):
        while order and copies[order[0][1]] >= num_ranks:
            heappop(order)
        if not order:
            break
        expert = order[0][1]
        copies[expert] += 1
        heapreplace(order, (-loads[expert] / copies[expert], expert))
    return tuple(copies)


def _longest_first(
    loads: Sequence[float], copies: Sequence[int], num_ranks: int, num_slots: int
) -> tuple[tuple[int, ...], ...]:
    """Each copy to the rank of least load with a free slot and, where possible, no copy yet."""
    placed: list[list[int]] = [[] for _ in range(num_ranks)]
    total = [0.0] * num_ranks
    per_copy = [load / number for load, number in zip(loads, copies, strict=True)]
    for expert in sorted(range(len(loads)), key=lambda expert: -per_copy[expert]):
        for _ in range(copies[expert]):
            free = [rank for rank in range(num_ranks) if len(placed[rank]) < num_slots]
            best = min((expert in placed[rank], total[rank], rank) for rank in free)[2]
            placed[best].append(expert)
            total[best] += per_copy[expert]
    return tuple(tuple(sorted(experts)) for experts in placed)


def _placement(
    ranks: tuple[tuple[int, ...], ...], loads: Sequence[float], copies: tuple[int, ...]
) -> ExpertPlacement:
    load = tuple(sum(loads[expert] / copies[expert] for expert in experts) for experts in ranks)
    return ExpertPlacement(ranks, load, copies)


NAME = "balance-experts"
CAUSES = (EXPERT_IMBALANCE,)
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
    names = _passes(case)
    if not names:
        return NotOffered(NAME, "forward and backward computations are not recorded")
    factor = 1 - facts.expert_share * (1 - after.imbalance / before.imbalance)
    change = Change(edits=(Edit(Factor(factor), Selection(op_types=names)),))
    step_s = case.step_s_with(change)
    if step_s >= case.step_s:
        return NotOffered(NAME, "the experts' computations are not what the step waits for")
    num_copies = sum(after.copies) - len(after.copies)
    ranks = {str(rank): list(experts) for rank, experts in enumerate(after.ranks)}
    document = json.dumps({"experts_of_ep_rank": ranks, "copies": list(after.copies)})
    fix = case.fix(
        NAME,
        f"Move experts, with {num_copies} copies of hot ones: "
        f"imbalance {before.imbalance:.2f} to {after.imbalance:.2f}",
        step_s=step_s,
        # Loads differ from step to step: at worst nothing is won.
        step_range_s=(step_s, case.step_s),
        certainty=0.5,
        risk=(
            f"Each rank needs memory for {COPIES_PER_RANK} more expert, and copies sum their "
            "gradients. Loads move during training: measure them again before each placement."
        ),
        change=change,
        paste=(Paste("Experts of each expert-parallel rank, as JSON", document),),
        needs=case.restart_needs(),
    )
    # The loads are given, and no finding's: neither confidence nor onset are its.
    return replace(fix, cause=EXPERT_IMBALANCE if case.findings(EXPERT_IMBALANCE) else None)


def _passes(case: AdviceCase) -> tuple[str, ...]:
    """Names of the op types that compute micro-batches."""
    names = {
        spec.name
        for group in case.replay.groups
        for spec in (group.template.op_types.by_code[code] for code in group.template.present)
        if spec.kind is OpKind.COMPUTE and spec.stream == COMPUTE_STREAM
    }
    return tuple(sorted(names))
