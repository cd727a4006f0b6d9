"""Streams of a stage, operations that meet across stages, and the end of the step.

Operations of one stream run one after the other (docs/replay.md, section 1); operations that meet
end together (section 4); gradient collectives and the optimizer follow a stage's last compute
(sections 3 and 5).
"""

from app.engine.rules.overlap import BACKWARDS, GATHER, GRADIENTS, SCATTER, SEPARATE, Overlap
from app.engine.template import Edge, Template, in_sequence


def stage_groups(template: Template) -> list[list[int]]:
    """embedding-grads-all-reduce of the first and last stage; clip of all stages."""
    last = template.parallelism.pp_size - 1
    ends = [0, last] if last else [0]
    return [
        *same_number(template, ends, "embedding-grads-all-reduce"),
        *same_number(template, list(range(last + 1)), "optimizer-clip-main-grad"),
    ]


def same_number(template: Template, stages: list[int], name: str) -> list[list[int]]:
    """Operations of a type on some stages, grouped by seq_id."""
    groups: dict[int, list[int]] = {}
    for stage in stages:
        for op in template.of_stage[stage][name]:
            groups.setdefault(int(template.seq_id[op]), []).append(op)
    return list(groups.values())


DP_STREAM = "dp-comm"


def in_streams(template: Template, stage: int, overlap: Overlap) -> list[list[int]]:
    """Operations of each stream of a stage, in recorded order."""
    found = []
    of_type = template.of_stage[stage]
    for name, ops in template.streams[stage].items():
        if name == DP_STREAM and not template.is_data_parallel:
            # Without peers the recorded exchanges neither wait nor are waited for.
            exchanges = {*of_type[GATHER], *of_type[SCATTER]}
            found.append([op for op in ops if op not in exchanges])
        elif name == DP_STREAM and overlap.two_streams:
            scatters = set(of_type[SCATTER])
            found += [of_type[SCATTER], [op for op in ops if op not in scatters]]
        elif name:
            found.append(ops)
    if GRADIENTS[1] in overlap.op_types:
        found.append(template.of_stage[stage][GRADIENTS[1]])
    return found


def stream_edges(streams: list[list[int]]) -> list[Edge]:
    """Each operation waits for the one before it on its stream."""
    return [edge for ops in streams for edge in in_sequence(ops)]


def one_before(streams: list[list[int]]) -> dict[int, int]:
    """The previous operation of each on its stream; the first ones have none."""
    return {after: before for before, after in stream_edges(streams)}


def end_of_step_edges(template: Template, stage: int, overlap: Overlap) -> list[Edge]:
    """Last compute, gc, gradient collectives and optimizer, one after the other."""
    head, tail, update = _parts(template, stage, overlap)
    edges = in_sequence(last_compute(template, stage) + head + tail + update)
    if SEPARATE in template.type_names and SCATTER not in overlap.op_types:
        edges += _overlapped_edges(template, stage, tail + update)
    return edges + _join(template, stage, overlap, update)


def end_of_step_ops(template: Template, stage: int, overlap: Overlap) -> list[int]:
    """Operations of the chain after the last compute."""
    return [op for part in _parts(template, stage, overlap) for op in part]


def _parts(
    template: Template, stage: int, overlap: Overlap
) -> tuple[list[int], list[int], list[int]]:
    """The gc before the gradients, the gradients, and the update."""
    gradients = [
        *_numbered(template, stage, "layernorm-grads-all-reduce"),
        *_embedding(template, stage),
        *_gradients(template, stage, overlap),
    ]
    update = [
        *_numbered(template, stage, "optimizer-clip-main-grad"),
        *_numbered(template, stage, "optimizer"),
    ]
    return _first_gc(template, stage), gradients, update


def last_compute(template: Template, stage: int) -> list[int]:
    """The operation of the compute stream that ends last, if there is any."""
    # With equal ends, the last one in recorded order.
    return sorted(template.computes[stage], key=template.end_s.__getitem__)[-1:]


def _first_gc(template: Template, stage: int) -> list[int]:
    return [op for op in template.of_stage[stage]["gc"] if template.seq_id[op] == 0]


def _numbered(template: Template, stage: int, name: str) -> list[int]:
    return sorted(template.of_stage[stage][name], key=template.seq_id.__getitem__)


def _embedding(template: Template, stage: int) -> list[int]:
    if stage not in (0, template.parallelism.pp_size - 1):
        return []
    return _numbered(template, stage, "embedding-grads-all-reduce")


def _gradients(template: Template, stage: int, overlap: Overlap) -> list[int]:
    name = SEPARATE if SEPARATE in template.type_names else SCATTER
    if not template.is_data_parallel or name in overlap.op_types:
        return []
    return _numbered(template, stage, name)


def _join(template: Template, stage: int, overlap: Overlap, update: list[int]) -> list[Edge]:
    """The update waits for overlapped gradient reductions."""
    names = [name for name in GRADIENTS if name in overlap.op_types]
    return [(template.of_stage[stage][name][-1], update[0]) for name in names if update]


def _overlapped_edges(template: Template, stage: int, tail: list[int]) -> list[Edge]:
    """Reduce-scatters overlap other chunks: each chunk's first waits for its last backward."""
    scatters = _numbered(template, stage, SCATTER)
    if not scatters or not template.is_data_parallel:
        return []
    first_scatter: dict[int, int] = {}
    for op in scatters:
        first_scatter.setdefault(int(template.mc[op]), op)
    edges = [
        (backward, first_scatter[chunk])
        for chunk, backward in _last_backward(template, stage).items()
        if chunk in first_scatter
    ]
    return edges + ([(scatters[-1], tail[0])] if tail else [])


def _last_backward(template: Template, stage: int) -> dict[int, int]:
    by_end = sorted(template.ops(stage, *BACKWARDS), key=template.end_s.__getitem__)
    return {int(template.mc[op]): op for op in by_end}
