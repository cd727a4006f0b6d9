"""Operations that end together because they meet (docs/replay.md, section 4)."""

from app.engine.template import Template


def stage_groups(template: Template) -> list[list[int]]:
    """embedding-grads-all-reduce of the first and last stage; clip of all stages."""
    last = template.parallelism.pp_size - 1
    ends = [0, last] if last else [0]
    return [
        *same_number(template, ends, "embedding-grads-all-reduce"),
        *same_number(template, list(range(last + 1)), "optimizer-clip-main-grad"),
    ]


def same_number(template: Template, stages: list[int], name: str) -> list[list[int]]:
    """Operations of a type on some stages, those of the same number together."""
    groups: dict[int, list[int]] = {}
    for stage in stages:
        for op in template.ops(stage, name):
            groups.setdefault(int(template.seq_id[op]), []).append(op)
    return list(groups.values())
