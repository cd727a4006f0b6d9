"""What follows a stage's last compute, up to its optimizer (docs/replay.md, 3 and 5)."""

from app.engine.rules import Edge, chain
from app.engine.rules.beside import BACKWARDS, GRADIENTS, SCATTER, SEPARATE, Beside
from app.engine.template import Template


def end_of_step_edges(template: Template, stage: int, beside: Beside) -> list[Edge]:
    """Last compute, gc, gradient collectives and optimizer, one after the other."""
    head, tail, update = _parts(template, stage, beside)
    edges = chain(last_compute(template, stage) + head + tail + update)
    if template.has(SEPARATE) and SCATTER not in beside.types:
        edges += _overlapped_edges(template, stage, tail + update)
    return edges + _join(template, stage, beside, update)


def chain_of(template: Template, stage: int, beside: Beside) -> list[int]:
    """Operations of the chain after the last compute."""
    return [op for part in _parts(template, stage, beside) for op in part]


def _parts(
    template: Template, stage: int, beside: Beside
) -> tuple[list[int], list[int], list[int]]:
    """The pause before the gradients, the gradients, and what uses them."""
    gradients = [
        *_numbered(template, stage, "layernorm-grads-all-reduce"),
        *_embedding(template, stage),
        *_gradients(template, stage, beside),
    ]
    update = [
        *_numbered(template, stage, "optimizer-clip-main-grad"),
        *_numbered(template, stage, "optimizer"),
    ]
    return _first_gc(template, stage), gradients, update


def last_compute(template: Template, stage: int) -> list[int]:
    """The operation of the compute stream that ends last, if there is any."""
    # Of those that end at the same time, the last one to run waits for all others.
    return sorted(template.computes(stage), key=template.end_s.__getitem__)[-1:]


def _first_gc(template: Template, stage: int) -> list[int]:
    return [op for op in template.ops(stage, "gc") if template.seq_id[op] == 0]


def _numbered(template: Template, stage: int, name: str) -> list[int]:
    return template.by_seq_id(template.ops(stage, name))


def _embedding(template: Template, stage: int) -> list[int]:
    if stage not in (0, template.parallelism.pp_size - 1):
        return []
    return _numbered(template, stage, "embedding-grads-all-reduce")


def _gradients(template: Template, stage: int, beside: Beside) -> list[int]:
    name = SEPARATE if template.has(SEPARATE) else SCATTER
    if not template.parallelism.is_data_parallel or name in beside.types:
        return []
    return _numbered(template, stage, name)


def _join(template: Template, stage: int, beside: Beside, update: list[int]) -> list[Edge]:
    """Gradients that were reduced beside the computation have all come before the update."""
    names = [name for name in GRADIENTS if name in beside.types]
    return [(template.ops(stage, name)[-1], update[0]) for name in names if update]


def _overlapped_edges(template: Template, stage: int, tail: list[int]) -> list[Edge]:
    """Reduce-scatters run beside other chunks: each chunk's first waits for its last backward."""
    scatters = _numbered(template, stage, SCATTER)
    if not scatters or not template.parallelism.is_data_parallel:
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
