"""Operations that run one after the other on a worker (docs/replay.md, section 1)."""

from app.engine.rules import Edge, chain
from app.engine.rules.beside import GATHER, GRADIENTS, Beside
from app.engine.template import Template

DP_STREAM = "dp-comm"


def in_streams(template: Template, stage: int, beside: Beside) -> list[list[int]]:
    """Operations of each stream of a stage, in recorded order."""
    found = []
    for name in template.streams(stage):
        ops = template.stream(stage, name)
        if name == DP_STREAM and not template.parallelism.is_data_parallel:
            # Nobody to talk to: what is recorded of it neither waits nor is waited for.
            ops = [op for op in ops if template.name(op) not in (GATHER, GRADIENTS[0])]
        if name == DP_STREAM and beside.two_streams:
            scatters = [op for op in ops if template.name(op) == GRADIENTS[0]]
            found += [scatters, [op for op in ops if template.name(op) != GRADIENTS[0]]]
        elif name:
            found.append(ops)
    if GRADIENTS[1] in beside.types:
        found.append(template.ops(stage, GRADIENTS[1]))
    return found


def stream_edges(streams: list[list[int]]) -> list[Edge]:
    """Each operation waits for the one before it on its stream."""
    return [edge for ops in streams for edge in chain(ops)]


def one_before(streams: list[list[int]]) -> dict[int, int]:
    """The operation before each on its stream; the first ones have none."""
    return {after: before for before, after in stream_edges(streams)}
