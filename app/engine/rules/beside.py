"""What is gathered and reduced while the stage computes (docs/replay.md, section 5).

The published rules put all of it before the first forward or after the last backward; DDP and
FSDP do not. The record of each stage says which it is.
"""

from dataclasses import dataclass
from itertools import pairwise

from app.engine.rules import AT_ONCE_S
from app.engine.template import Template

BACKWARDS = ("backward-compute", "backward-input-compute", "backward-weight-compute")
SCATTER, SEPARATE = GRADIENTS = ("grads-reduce-scatter", "separate-grads-all-reduce")
GATHER = "params-all-gather"


@dataclass(frozen=True, slots=True)
class Beside:
    """Which op types of a stage run beside its computation, and whether on two streams."""

    types: frozenset[str]
    two_streams: bool


def beside(template: Template, stage: int) -> Beside:
    """As the stage recorded its first step; nothing without data parallelism."""
    if not template.parallelism.is_data_parallel:
        return Beside(frozenset(), two_streams=False)
    found = {name for name in GRADIENTS if _gradients_are(template, stage, name)}
    if _gathers_are(template, stage):
        found.add(GATHER)
    return Beside(frozenset(found), _are_two_streams(template, stage))


def _gradients_are(template: Template, stage: int, name: str) -> bool:
    ops = template.ops(stage, name)
    backwards = template.ops(stage, *BACKWARDS) if ops else []
    if not backwards:
        return False
    last_end_s = {int(template.mc[op]): float(template.end_s[op]) for op in backwards}
    for op in backwards:
        chunk = int(template.mc[op])
        last_end_s[chunk] = max(last_end_s[chunk], float(template.end_s[op]))
    of_stage_s = max(last_end_s.values())
    # Where all-reduces follow, scatters may run beside the backward of other chunks anyway.
    by_chunk = name == SCATTER and template.has(SEPARATE)
    return any(
        template.start_s[op]
        < (last_end_s.get(int(template.mc[op]), of_stage_s) if by_chunk else of_stage_s) - AT_ONCE_S
        for op in ops
    )


def _gathers_are(template: Template, stage: int) -> bool:
    first_start_s: dict[int, float] = {}
    for op in template.ops(stage, "forward-compute"):
        first_start_s.setdefault(int(template.mc[op]), float(template.start_s[op]))
    never = float("inf")
    return any(
        template.start_s[op] > first_start_s.get(int(template.mc[op]), never) + AT_ONCE_S
        for op in template.ops(stage, GATHER)
    )


def _are_two_streams(template: Template, stage: int) -> bool:
    both = template.ops(stage, GATHER, GRADIENTS[0])
    return any(
        template.optype[before] != template.optype[after]
        and template.start_s[after] < template.end_s[before] - AT_ONCE_S
        for before, after in pairwise(both)
    )
