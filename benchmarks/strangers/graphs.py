"""The graph of a job's step, by how it exchanges gradients."""

from benchmarks.strangers.data_parallel import build_ddp, build_fsdp
from benchmarks.strangers.graph import StepGraph, build_graph
from benchmarks.strangers.shape import Shape


def graph_of(shape: Shape, *, posts_late: bool = False) -> StepGraph:
    """As `build_graph`, for any job."""
    if shape.gradients == "ddp":
        return build_ddp(shape)
    if shape.gradients == "fsdp":
        return build_fsdp(shape)
    return build_graph(shape, posts_late=posts_late)
