"""Order of operations in a replica: streams, end of the step, pipeline exchanges, registered types.

By section of docs/replay.md: operations of one stream run one after the other (1); sends and
receives between stages are matched with computes by micro-batch and chunk where operations name
these, else by position (2); gradient collectives and the optimizer follow a stage's last compute
(3 and 5); operations that meet end together (4); operation types that the job registered (6).

A worker may hold a send back until its gradients are reduced: DDP reduces its last buckets inside
the last backward of a pipeline stage, and the gradient of the stage's input is sent only when that
backward returns.
"""

from collections import Counter
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Literal, NoReturn

from app.engine.grid import Grid
from app.engine.rules.overlap import (
    BACKWARDS,
    GATHER,
    GRADIENTS,
    SCATTER,
    SEPARATE,
    ConsumerOps,
    Launches,
    Milestones,
    Overlap,
    overlap_of,
    parameter_edges,
)
from app.engine.template import AT_ONCE_S, SAME_MOMENT_S, Edge, Template
from app.errors import InvalidTrace
from app.trace.ops import COMPUTE_STREAM, FIRST_USER_CODE, Axis, OpSpec


def edges_and_groups(grid: Grid, milestones: Milestones) -> tuple[list[Edge], list[list[int]]]:
    """Edges between the operations of a replica, and operations that meet and end together.

    Milestones are added to `milestones`; edges have them as well.

    Raises:
        InvalidTrace: a send or recv has no peer.
    """
    edges: list[Edge] = []
    template = grid.template
    overlaps = [overlap_of(template, stage) for stage in range(template.parallelism.pp_size)]
    for stage, overlap in enumerate(overlaps):
        # Each operation waits for the one before it on its stream.
        streams = in_streams(template, stage, overlap)
        in_order = list(chain.from_iterable(map(pairwise, streams)))
        previous = {op: before for before, op in in_order}
        launches = Launches(template, grid, stage, milestones, edges, previous)
        edges += in_order
        edges += first_backward_edges(template, stage)
        edges += parameter_edges(launches, overlap)
        edges += end_of_step_edges(template, stage, overlap)
        for name in GRADIENTS:
            if name in overlap.op_types:
                for op in template.of_stage[stage][name]:
                    launches.launch(op)
        edges += user_type_edges(launches, overlap)
    groups = stage_groups(template) + user_type_groups(template)
    for direction in DIRECTIONS:
        direction_edges, pairs = pipeline(template, direction, overlaps)
        edges += direction_edges
        groups += pairs
    return edges, groups


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
            groups.setdefault(template.listed.seq_id[op], []).append(op)
    return list(groups.values())


DP_STREAM = "dp-comm"


def in_streams(template: Template, stage: int, overlap: Overlap) -> list[list[int]]:
    """Operations of each stream of a stage, in recorded order."""
    streams = []
    of_type = template.of_stage[stage]
    for name, ops in template.streams[stage].items():
        if name == DP_STREAM and not template.parallelism.is_data_parallel:
            # Without peers the recorded exchanges neither wait nor are waited for.
            exchanges = {*of_type[GATHER], *of_type[SCATTER]}
            streams.append([op for op in ops if op not in exchanges])
        elif name == DP_STREAM and overlap.two_streams:
            scatters = set(of_type[SCATTER])
            streams += [of_type[SCATTER], [op for op in ops if op not in scatters]]
        elif name:
            streams.append(ops)
    if SEPARATE in overlap.op_types:
        streams.append(of_type[SEPARATE])
    return streams


def end_of_step_edges(template: Template, stage: int, overlap: Overlap) -> list[Edge]:
    """Last compute, gc, gradient collectives and optimizer, one after the other."""
    head, tail, update = _parts(template, stage, overlap)
    edges = list(pairwise(last_compute(template, stage) + head + tail + update))
    if SEPARATE in template.type_names and SCATTER not in overlap.op_types:
        edges += _overlapped_edges(template, stage, tail + update)
    # The update waits for overlapped gradient reductions.
    names = [name for name in GRADIENTS if update and name in overlap.op_types]
    return edges + [(template.of_stage[stage][name][-1], update[0]) for name in names]


def _parts(
    template: Template, stage: int, overlap: Overlap
) -> tuple[list[int], list[int], list[int]]:
    """The gc before the gradients, the gradients, and the update."""
    gradients = _numbered(template, stage, "layernorm-grads-all-reduce")
    if stage in (0, template.parallelism.pp_size - 1):
        gradients += _numbered(template, stage, "embedding-grads-all-reduce")
    name = SEPARATE if SEPARATE in template.type_names else SCATTER
    if template.parallelism.is_data_parallel and name not in overlap.op_types:
        gradients += _numbered(template, stage, name)
    update = [
        *_numbered(template, stage, "optimizer-clip-main-grad"),
        *_numbered(template, stage, "optimizer"),
    ]
    first_gc = [op for op in template.of_stage[stage]["gc"] if template.listed.seq_id[op] == 0]
    return first_gc, gradients, update


def last_compute(template: Template, stage: int) -> list[int]:
    """The operation of the compute stream that ends last, if there is any."""
    # With equal ends, the last one in recorded order.
    return sorted(template.computes[stage], key=template.listed.end_s.__getitem__)[-1:]


def _numbered(template: Template, stage: int, name: str) -> list[int]:
    return sorted(template.of_stage[stage][name], key=template.listed.seq_id.__getitem__)


def _overlapped_edges(template: Template, stage: int, tail: list[int]) -> list[Edge]:
    """Reduce-scatters overlap other chunks: each chunk's first waits for its last backward."""
    scatters = _numbered(template, stage, SCATTER)
    if not scatters or not template.parallelism.is_data_parallel:
        return []
    first_scatter = {template.listed.mc[op]: op for op in reversed(scatters)}
    by_end = sorted(template.ops(stage, *BACKWARDS), key=template.listed.end_s.__getitem__)
    last_backward = {template.listed.mc[op]: op for op in by_end}
    edges = [
        (backward, first_scatter[chunk])
        for chunk, backward in last_backward.items()
        if chunk in first_scatter
    ]
    return edges + ([(scatters[-1], tail[0])] if tail else [])


Id = tuple[int, int, int]  # micro-batch, chunk, repetition of the pair


def have_ids(template: Template, ops: list[int]) -> bool:
    """Whether every one of them names a micro-batch."""
    return all(template.listed.mb_id[op] >= 0 for op in ops)


def by_id(template: Template, ops: list[int]) -> dict[Id, int]:
    """Operations in recorded order, by micro-batch, chunk and repetition."""
    by_key: dict[Id, int] = {}
    counts = Counter[tuple[int, int]]()
    for op in ops:
        key = template.listed.mb_id[op], max(template.listed.mc[op], 0)
        by_key[(*key, counts[key])] = op
        counts[key] += 1
    return by_key


def held_send(
    template: Template, stage: int, overlap: Overlap, computes: dict[int, int]
) -> list[Edge]:
    """The send of the last computation waits for gradients that ended between the two.

    `computes` has the computation of each of the stage's sends of one direction.
    """
    last = last_compute(template, stage)
    sends = sorted(computes)  # in recorded order
    held = [send for send in sends if computes[send] in last]
    if not held or not template.parallelism.is_data_parallel:
        return []
    since_s = template.listed.end_s[last[0]]
    before = sends[: sends.index(held[0])][-1:]
    free_s = max([since_s, *(template.listed.end_s[send] for send in before)])
    # A send right after the previous send was queued behind it.
    if template.listed.start_s[held[0]] <= free_s + AT_ONCE_S:
        return []
    until_s = template.listed.start_s[held[0]] + SAME_MOMENT_S
    # Other gradients are reduced at the end of the step, after stages that need this send.
    inside = [
        (template.listed.end_s[op], op)
        for name in GRADIENTS
        if name in overlap.op_types
        for op in template.of_stage[stage][name]
        if since_s - SAME_MOMENT_S <= template.listed.end_s[op] <= until_s
    ]
    return [(op, held[0]) for _, op in sorted(inside)[-1:]]


DirectionName = Literal["forward", "backward"]
# How many stages on a micro-batch goes.
DIRECTIONS: dict[DirectionName, int] = {"forward": 1, "backward": -1}
COMPUTES: dict[DirectionName, tuple[str, ...]] = {
    "forward": ("forward-compute",),
    "backward": ("backward-compute", "backward-input-compute"),
}

# A recv posted this much after the last compute began, or a send over this much before the
# first compute ended, belongs to no compute of the step (rule 4).
LIVE_TOLERANCE_S = 50e-6


@dataclass(slots=True)
class Matched:
    """One stage's p2p operations of one direction.

    `sends` and `recvs` (operation: its compute) have a peer on a neighbouring stage; operations
    at the model's ends and unmatched ones have none.
    """

    edges: list[Edge] = field(default_factory=list)
    sends: dict[int, int] = field(default_factory=dict)
    recvs: dict[int, int] = field(default_factory=dict)


def pipeline(
    template: Template, direction: DirectionName, overlaps: list[Overlap]
) -> tuple[list[Edge], list[list[int]]]:
    """Edges between computes and p2p operations of one direction, and the pairs that meet.

    Raises:
        InvalidTrace: a send or recv has no peer.
    """
    stages = range(template.parallelism.pp_size)
    computes = [template.ops(stage, *COMPUTES[direction]) for stage in stages]
    named = _are_named(template, direction, computes)
    match = _by_id if named else _by_position
    matched = [
        _matched(template, *match(template, stage, direction, ops), direction, ops)
        for stage, ops in enumerate(computes)
    ]
    edges = [edge for stage in matched for edge in stage.edges]
    if named:
        for stage, of_stage in enumerate(matched):
            edges += held_send(template, stage, overlaps[stage], of_stage.sends)
    pair = _pairs_by_id if named else _pairs_by_position
    return edges, pair(template, matched, direction)


def _are_named(template: Template, direction: DirectionName, computes: list[list[int]]) -> bool:
    names = (f"{direction}-send", f"{direction}-recv")
    p2p = [op for of_type in template.of_stage for name in names for op in of_type[name]]
    return bool(p2p) and have_ids(template, [*p2p, *chain.from_iterable(computes)])


def _matched(
    template: Template,
    recvs: dict[int, int],
    sends: dict[int, int],
    direction: DirectionName,
    computes: list[int],
) -> Matched:
    """Edges of the matched recvs and sends (operation: its compute), and which have a peer."""
    position = {op: k for k, op in enumerate(computes)}
    matched = Matched()
    # The neighbouring chunk, in the whole model, has the peer where it exists.
    chunks = range(template.parallelism.vpp_size * template.parallelism.pp_size)
    onward = DIRECTIONS[direction]
    for recv, compute in recvs.items():
        matched.edges.append((recv, compute))
        if position[compute] > 0:
            matched.edges.append((computes[position[compute] - 1], recv))
        if _model_chunk(template, compute) - onward in chunks:
            matched.recvs[recv] = compute
    for send, compute in sends.items():
        matched.edges.append((compute, send))
        if _model_chunk(template, compute) + onward in chunks:
            matched.sends[send] = compute
    return matched


def _by_id(
    template: Template, stage: int, direction: DirectionName, computes: list[int]
) -> tuple[dict[int, int], dict[int, int]]:
    """Recvs and sends of the same micro-batch and chunk as a compute, with that compute."""
    compute_of = by_id(template, computes)

    def with_compute(name: str) -> dict[int, int]:
        ops = by_id(template, template.of_stage[stage][name])
        return {op: compute_of[key] for key, op in ops.items() if key in compute_of}

    return with_compute(f"{direction}-recv"), with_compute(f"{direction}-send")


def _by_position(
    template: Template, stage: int, direction: DirectionName, computes: list[int]
) -> tuple[dict[int, int], dict[int, int]]:
    """The k-th live recv and send with the k-th compute (rule 4)."""
    if not computes:
        return {}, {}
    of_type, listed = template.of_stage[stage], template.listed
    last_start_s, first_end_s = listed.start_s[computes[-1]], listed.end_s[computes[0]]
    recvs = of_type[f"{direction}-recv"]
    recvs = [op for op in recvs if listed.start_s[op] <= last_start_s + LIVE_TOLERANCE_S]
    sends = of_type[f"{direction}-send"]
    sends = [op for op in sends if listed.end_s[op] >= first_end_s - LIVE_TOLERANCE_S]
    first = 1 if len(recvs) == len(computes) - 1 else 0
    recv_of = dict(zip(recvs, computes[first:], strict=False))
    return recv_of, dict(zip(sends, computes, strict=False))


def _model_chunk(template: Template, compute: int) -> int:
    """Position of a compute's chunk in the whole model; with one chunk per stage it may be -1."""
    parallelism = template.parallelism
    chunk = template.listed.mc[compute]
    if chunk < 0 and parallelism.vpp_size > 1:
        raise InvalidTrace(
            f"{template.describe(compute)} names no model chunk: "
            f"with {parallelism.vpp_size} chunks on a stage, every compute has to"
        )
    return max(chunk, 0) * parallelism.pp_size + template.listed.stage[compute]


def _pairs_by_position(
    template: Template, matched: list[Matched], direction: DirectionName
) -> list[list[int]]:
    """The j-th send of a stage with the j-th recv of the next one in that direction (rule 6)."""
    pairs = []
    for stage, sending in enumerate(matched):
        peer = (stage + DIRECTIONS[direction]) % len(matched)
        receiving = matched[peer]
        if len(sending.sends) != len(receiving.recvs):
            raise InvalidTrace(
                f"stage {stage} has {len(sending.sends)} {direction}-send for stage {peer}, "
                f"which has {len(receiving.recvs)} {direction}-recv: "
                "the step's record is not complete"
            )
        pairs += [list(pair) for pair in zip(sending.sends, receiving.recvs, strict=True)]
    return pairs


def _pairs_by_id(
    template: Template, matched: list[Matched], direction: DirectionName
) -> list[list[int]]:
    """A send of a micro-batch with the next chunk's recv of it."""
    pairs = []
    onward = DIRECTIONS[direction]
    for stage, sending in enumerate(matched):
        peer = (stage + onward) % len(matched)
        recvs = _by_model_chunk(template, matched[peer].recvs)
        for (microbatch, chunk, nth), send in _by_model_chunk(template, sending.sends).items():
            recv = recvs.pop((microbatch, chunk + onward, nth), None)
            if recv is None:
                _refuse_unpaired(template, send, peer)
            pairs.append([send, recv])
        for recv in recvs.values():
            _refuse_unpaired(template, recv, stage)
    return pairs


def _by_model_chunk(template: Template, matched: dict[int, int]) -> dict[Id, int]:
    chunks = by_id(template, list(matched))
    return {
        (microbatch, _model_chunk(template, matched[op]), nth): op
        for (microbatch, _, nth), op in chunks.items()
    }


def _refuse_unpaired(template: Template, op: int, peer: int) -> NoReturn:
    raise InvalidTrace(
        f"{template.describe(op)} (micro-batch {template.listed.mb_id[op]}, chunk "
        f"{max(template.listed.mc[op], 0)}) has no peer on stage {peer}: "
        "the step's record is not complete"
    )


def first_backward_edges(template: Template, stage: int) -> list[Edge]:
    """The first backward send and recv wait for the second-last compute before it (rule 5)."""
    backwards = template.ops(stage, *COMPUTES["backward"])
    computes = template.ops(stage, *COMPUTES["forward"], *COMPUTES["backward"])
    if not backwards or (position := computes.index(backwards[0])) < 2:
        return []
    waiting = template.ops(stage, "backward-send", "backward-recv")
    return [(computes[position - 2], op) for op in waiting if template.listed.seq_id[op] == 0]


def user_type_edges(launches: Launches, overlap: Overlap) -> list[Edge]:
    """Launches of registered types, and the operations that wait for them."""
    template, stage = launches.template, launches.stage
    edges: list[Edge] = []
    users = ConsumerOps(template, template.computes[stage])
    end_of_step = list(chain.from_iterable(_parts(template, stage, overlap)))
    for spec in _present(template):
        if spec.stream == COMPUTE_STREAM:
            continue
        for op in template.of_stage[stage][spec.name]:
            launched = launches.launch(op)
            if spec.pairs_with or launches.feed(op, launched, users):
                continue
            ended_s = template.listed.end_s[op] - SAME_MOMENT_S
            later = [after for after in end_of_step if template.listed.start_s[after] >= ended_s]
            edges += [(op, after) for after in later[:1]]
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


def _pairs(template: Template, spec: OpSpec) -> list[list[int]]:
    pairs: list[list[int]] = []
    for stage in range(template.parallelism.pp_size):
        peer = stage + spec.towards
        if 0 <= peer < template.parallelism.pp_size:
            sends = template.of_stage[stage][spec.name]
            pairs += _paired(template, sends, template.of_stage[peer][spec.pairs_with])
    return pairs


def _paired(template: Template, sends: list[int], recvs: list[int]) -> list[list[int]]:
    if have_ids(template, sends + recvs):
        recv_of = by_id(template, recvs)
        pairs = [(op, recv_of.pop(key, None)) for key, op in by_id(template, sends).items()]
        alone = [op for op, peer in pairs if peer is None] + list(recv_of.values())
    else:
        pairs = list(zip(sends, recvs, strict=False))
        alone = sends[len(recvs) :] + recvs[len(sends) :]
    if alone:
        raise InvalidTrace(
            f"{template.describe(alone[0])} has no peer: the step's record is not complete"
        )
    return [[op, peer] for op, peer in pairs if peer is not None]
