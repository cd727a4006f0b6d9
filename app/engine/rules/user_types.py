"""Operation types that the job registered (docs/replay.md, section 6)."""

from app.engine.rules.end_of_step import end_of_step_ops, same_number
from app.engine.rules.overlap import ConsumerOps, Launches, Overlap
from app.engine.rules.pipeline import by_id, have_ids
from app.engine.template import SAME_MOMENT_S, Edge, Template
from app.errors import InvalidTrace
from app.trace.ops import COMPUTE_STREAM, FIRST_USER_CODE, Axis, OpSpec


def user_type_edges(
    template: Template, stage: int, overlap: Overlap, launches: Launches, before: dict[int, int]
) -> list[Edge]:
    """Launches of registered types, and the operations that wait for them."""
    edges: list[Edge] = []
    users = ConsumerOps(template, template.computes[stage])
    end_of_step = end_of_step_ops(template, stage, overlap)
    for spec in _present(template):
        if spec.stream == COMPUTE_STREAM:
            continue
        for op in template.of_stage[stage][spec.name]:
            launched = launches.launch(op, before.get(op))
            if spec.pairs_with or launches.feed(op, launched, users):
                continue
            edges += _end_of_step_edge(template, op, end_of_step)
    return edges


def user_type_groups(template: Template) -> list[list[int]]:
    """Operations of registered types that meet within a replica."""
    groups: list[list[int]] = []
    for spec in _present(template):
        if spec.axis is Axis.STAGES:
            stages = list(range(template.parallelism.pp_size))
            groups += same_number(template, stages, spec.name)
        elif spec.pairs_with:
            groups += _pairs(template, spec)
    return groups


def _present(template: Template) -> list[OpSpec]:
    types = template.op_types.by_code
    return [types[code] for code in template.present if code >= FIRST_USER_CODE]


def _end_of_step_edge(template: Template, op: int, end_of_step: list[int]) -> list[Edge]:
    ended_s = template.end_s[op] - SAME_MOMENT_S
    later = [each for each in end_of_step if template.start_s[each] >= ended_s]
    return [(op, later[0])] if later else []


def _pairs(template: Template, spec: OpSpec) -> list[list[int]]:
    found: list[list[int]] = []
    for stage in range(template.parallelism.pp_size):
        peer = stage + spec.towards
        if 0 <= peer < template.parallelism.pp_size:
            sends = template.of_stage[stage][spec.name]
            found += _paired(template, sends, template.of_stage[peer][spec.pairs_with])
    return found


def _paired(template: Template, sends: list[int], recvs: list[int]) -> list[list[int]]:
    if have_ids(template, sends + recvs):
        there = by_id(template, recvs)
        pairs = [(op, there.pop(key, None)) for key, op in by_id(template, sends).items()]
        alone = [op for op, peer in pairs if peer is None] + list(there.values())
    else:
        pairs = list(zip(sends, recvs, strict=False))
        alone = sends[len(recvs) :] + recvs[len(sends) :]
    if alone:
        raise InvalidTrace(
            f"{template.describe(alone[0])} has no peer: the step's record is not complete"
        )
    return [[op, peer] for op, peer in pairs if peer is not None]
