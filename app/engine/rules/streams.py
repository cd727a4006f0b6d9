"""Operations that run one after the other on a worker (rules 1 to 3)."""

from app.engine.rules import Edge, chain
from app.engine.template import Template

P2P_TYPES = ("forward-send", "forward-recv", "backward-send", "backward-recv")


def stream_edges(template: Template, stage: int) -> list[Edge]:
    """Order on the compute stream, on each p2p stream, and on the data-parallel stream."""
    edges = chain(template.ops(stage, "forward-compute", "backward-compute"))
    for name in P2P_TYPES:
        edges += chain(template.ops(stage, name))
    if template.parallelism.is_data_parallel:
        edges += chain(template.ops(stage, "params-all-gather", "grads-reduce-scatter"))
    return edges
