"""Operations by the micro-batch and chunk that they name."""

from app.engine.template import Template

Id = tuple[int, int, int]  # micro-batch, chunk, which of those with the same


def have_ids(template: Template, ops: list[int]) -> bool:
    """Whether every one of them names a micro-batch."""
    return all(template.mb_id[op] >= 0 for op in ops)


def by_id(template: Template, ops: list[int]) -> dict[Id, int]:
    """Operations, in recorded order, by what they name."""
    found: dict[Id, int] = {}
    counts: dict[tuple[int, int], int] = {}
    for op in ops:
        key = int(template.mb_id[op]), max(int(template.mc[op]), 0)
        nth = counts.get(key, 0)
        counts[key] = nth + 1
        found[(*key, nth)] = op
    return found
