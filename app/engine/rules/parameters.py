"""Parameters are gathered before the chunk that uses them runs (docs/replay.md, 3 and 5)."""

from app.engine.rules import Edge
from app.engine.rules.beside import GATHER, Beside
from app.engine.rules.launch import Launches
from app.engine.template import Template


def parameter_edges(
    template: Template, stage: int, beside: Beside, launches: Launches, before: dict[int, int]
) -> list[Edge]:
    """Gathers come before what they are for; those beside the computation after their launch."""
    if not template.parallelism.is_data_parallel:
        return []
    if GATHER not in beside.types:
        return _last_before_first(template, stage)
    computes = template.ops(stage, "forward-compute", "backward-compute", "backward-input-compute")
    for op in template.ops(stage, GATHER):
        launched = launches.launch(op, before.get(op))
        of_chunk = [each for each in computes if template.mc[each] == template.mc[op]]
        launches.feed(op, launched, of_chunk or template.computes(stage))
    return []


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
