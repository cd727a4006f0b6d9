"""What follows a stage's last compute, up to its optimizer (rule 8)."""

from app.engine.rules import Edge, chain
from app.engine.template import Template


def end_of_step_edges(template: Template, stage: int) -> list[Edge]:
    """Last compute, gc, gradient collectives and optimizer, one after the other."""
    overlapped = template.has("separate-grads-all-reduce")
    head = _last_compute(template, stage) + _first_gc(template, stage)
    tail = [
        *_numbered(template, stage, "layernorm-grads-all-reduce"),
        *_embedding(template, stage),
        *_gradients(template, stage, overlapped=overlapped),
        *_numbered(template, stage, "optimizer-clip-main-grad"),
        *_numbered(template, stage, "optimizer"),
    ]
    edges = chain(head + tail)
    if overlapped and template.parallelism.is_data_parallel:
        edges += _overlapped_edges(template, stage, tail)
    return edges


def _last_compute(template: Template, stage: int) -> list[int]:
    computes = template.ops(stage, "forward-compute", "backward-compute")
    # Of those that end at the same time, the last one to run waits for all others.
    return sorted(computes, key=template.end_s.__getitem__)[-1:]


def _first_gc(template: Template, stage: int) -> list[int]:
    return [op for op in template.ops(stage, "gc") if template.seq_id[op] == 0]


def _numbered(template: Template, stage: int, name: str) -> list[int]:
    return template.by_seq_id(template.ops(stage, name))


def _embedding(template: Template, stage: int) -> list[int]:
    if stage not in (0, template.parallelism.pp_size - 1):
        return []
    return _numbered(template, stage, "embedding-grads-all-reduce")


def _gradients(template: Template, stage: int, *, overlapped: bool) -> list[int]:
    if not template.parallelism.is_data_parallel:
        return []
    name = "separate-grads-all-reduce" if overlapped else "grads-reduce-scatter"
    return _numbered(template, stage, name)


def _overlapped_edges(template: Template, stage: int, tail: list[int]) -> list[Edge]:
    """Reduce-scatters run beside the backward: each chunk's first waits for its last backward."""
    scatters = _numbered(template, stage, "grads-reduce-scatter")
    if not scatters:
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
    backwards = template.ops(stage, "backward-compute")
    by_end = sorted(backwards, key=template.end_s.__getitem__)
    return {int(template.mc[op]): op for op in by_end}
