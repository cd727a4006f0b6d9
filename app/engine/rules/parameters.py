"""Parameters are gathered before the chunk that uses them runs (docs/replay.md, 3 and 5)."""

from app.engine.rules import Edge
from app.engine.rules.beside import GATHER, Beside
from app.engine.rules.launch import Launches, Users
from app.engine.template import Template


def parameter_edges(
    template: Template, stage: int, beside: Beside, launches: Launches, before: dict[int, int]
) -> list[Edge]:
    """Gathers come before what they are for; those beside the computation after their launch."""
    if not template.parallelism.is_data_parallel:
        return []
    if GATHER not in beside.types:
        return _last_before_first(template, stage)
    of_chunk = _users_by_chunk(template, stage)
    anybody = Users(template, template.computes(stage))
    for op in template.ops(stage, GATHER):
        launched = launches.launch(op, before.get(op))
        launches.feed(op, launched, of_chunk.get(int(template.mc[op]), anybody))
    return []


def _users_by_chunk(template: Template, stage: int) -> dict[int, Users]:
    found: dict[int, list[int]] = {}
    for op in template.ops(stage, "forward-compute", "backward-compute", "backward-input-compute"):
        found.setdefault(int(template.mc[op]), []).append(op)
    return {chunk: Users(template, ops) for chunk, ops in found.items()}


def _last_before_first(template: Template, stage: int) -> list[Edge]:
    """A chunk's last params-all-gather comes before its first forward-compute."""
    last_gather = {
        int(template.mc[op]): op for op in template.by_seq_id(template.ops(stage, GATHER))
    }
    first_forward: dict[int, int] = {}
    for op in template.ops(stage, "forward-compute"):
        first_forward.setdefault(int(template.mc[op]), op)
    return [
        (gather, first_forward[chunk])
        for chunk, gather in last_gather.items()
        if chunk in first_forward
    ]
