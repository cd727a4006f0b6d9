"""Parameters are gathered before the chunk that uses them runs (rule 7)."""

from app.engine.rules import Edge
from app.engine.template import Template


def parameter_edges(template: Template, stage: int) -> list[Edge]:
    """A chunk's last params-all-gather comes before its first forward-compute."""
    if not template.parallelism.is_data_parallel:
        return []
    last_gather = {
        int(template.mc[op]): op
        for op in template.by_seq_id(template.ops(stage, "params-all-gather"))
    }
    first_forward: dict[int, int] = {}
    for op in template.ops(stage, "forward-compute"):
        first_forward.setdefault(int(template.mc[op]), op)
    return [
        (gather, first_forward[chunk])
        for chunk, gather in last_gather.items()
        if chunk in first_forward
    ]
