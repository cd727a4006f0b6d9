"""Sends, receives and meeting stages within a replica: docs/replay.md, sections 2, 4 and 6."""

from collections.abc import Callable

from app.trace.job import Parallelism
from app.trace.ops import Axis, OpKind
from tests.reference_ops import Dependencies, Key, Op, is_own, last_to_end, of, passes
from tests.reference_stage import CLEARLY_S, GRADIENTS, ROUNDING_S, Stage

ONWARD = {"forward": 1, "backward": -1}
Id = tuple[int, int, int]  # micro-batch, chunk, which of those that share them
Matched = list[tuple[Op, int]]  # sends or receives that have a peer, with their chunk of the model


def sends_and_receives(found: Dependencies, stages: list[Stage], sizes: Parallelism) -> None:
    """Section 2: dependencies of computations, and pairs of send and receive."""
    for direction in ONWARD:
        by_id = _all_have_ids(stages, direction)
        sends: list[Matched] = []
        receives: list[Matched] = []
        for stage in stages:
            match = _match_by_id if by_id else _match_by_position
            sent, received = match(found, stage, direction, sizes)
            sends.append(sent)
            receives.append(received)
            if by_id:
                _held(found, stage, sent, direction)
        pair = _pairs_by_id if by_id else _pairs_by_position
        for stage in stages:
            peer = (stage.number + ONWARD[direction]) % sizes.pp_size
            found.pairs += pair(sends[stage.number], receives[peer], ONWARD[direction])
    found.groups += found.pairs


def _all_have_ids(stages: list[Stage], direction: str) -> bool:
    ops = [op for stage in stages for op in stage.ops]
    between = of(ops, f"{direction}-send", f"{direction}-recv")
    return all(op.mb_id >= 0 for op in between + passes(ops, direction))


def _match_by_position(
    found: Dependencies, stage: Stage, direction: str, sizes: Parallelism
) -> tuple[Matched, Matched]:
    computes = passes(stage.ops, direction)
    sent: Matched = []
    received: Matched = []
    if not computes:
        return sent, received
    receives = [
        op
        for op in of(stage.ops, f"{direction}-recv")
        if not op.start_s > computes[-1].start_s + CLEARLY_S
    ]
    sends = [
        op
        for op in of(stage.ops, f"{direction}-send")
        if not op.end_s < computes[0].end_s - CLEARLY_S
    ]
    first = 1 if len(receives) == len(computes) - 1 else 0
    for k, receive in zip(range(first, len(computes)), receives, strict=False):
        _receive(found, receive, computes, k)
        received += _if_in_the_model(receive, computes[k], -ONWARD[direction], sizes)
    for compute, send in zip(computes, sends, strict=False):
        found.add(compute.key, send.key)
        sent += _if_in_the_model(send, compute, ONWARD[direction], sizes)
    return sent, received


def _receive(found: Dependencies, receive: Op, computes: list[Op], k: int) -> None:
    found.add(receive.key, computes[k].key)
    if k > 0:
        found.add(computes[k - 1].key, receive.key)


def _if_in_the_model(op: Op, compute: Op, towards: int, sizes: Parallelism) -> Matched:
    """The operation, where there is a chunk of the model that many further on."""
    chunk = compute.mc * sizes.pp_size + compute.key.stage
    is_inside = 0 <= chunk + towards < sizes.vpp_size * sizes.pp_size
    return [(op, chunk)] if is_inside else []


def _match_by_id(
    found: Dependencies, stage: Stage, direction: str, sizes: Parallelism
) -> tuple[Matched, Matched]:
    computes = passes(stage.ops, direction)
    computed = _with_ids(computes, lambda op: op.chunk)
    sent: Matched = []
    received: Matched = []
    for wanted, receive in _with_ids(of(stage.ops, f"{direction}-recv"), lambda op: op.chunk):
        for compute in [compute for its, compute in computed if its == wanted]:
            _receive(found, receive, computes, computes.index(compute))
            received += _inside(receive, -ONWARD[direction], sizes)
    for wanted, send in _with_ids(of(stage.ops, f"{direction}-send"), lambda op: op.chunk):
        for compute in [compute for its, compute in computed if its == wanted]:
            found.add(compute.key, send.key)
            sent += _inside(send, ONWARD[direction], sizes)
    return sent, received


def _held(found: Dependencies, stage: Stage, sent: Matched, direction: str) -> None:
    """Section 2: the last computation's send is held until gradients are reduced."""
    computed = _with_ids(passes(stage.ops, direction), lambda op: op.chunk)
    sends = _with_ids(of(stage.ops, f"{direction}-send"), lambda op: op.chunk)
    last = last_to_end(stage.computes)
    wanted = [its for its, op in computed if op in last]
    for position, (send, _) in enumerate(sent):
        if [its for its, op in sends if op is send] != wanted or not stage.sizes.is_data_parallel:
            continue
        before = [op.end_s for op, _ in sent[:position][-1:]]
        if send.start_s <= max([last[0].end_s, *before]) + CLEARLY_S:
            continue
        done = [
            op
            for op in of(stage.ops, *(stage.overlapping_types & set(GRADIENTS)))
            if last[0].end_s - ROUNDING_S <= op.end_s <= send.start_s + ROUNDING_S
        ]
        for op in last_to_end(done):
            found.add(op.key, send.key)


def _inside(op: Op, towards: int, sizes: Parallelism) -> Matched:
    chunk = op.chunk * sizes.pp_size + op.key.stage
    return [(op, chunk)] if 0 <= chunk + towards < sizes.vpp_size * sizes.pp_size else []


def _with_ids(ops: list[Op], chunk: Callable[[Op], int]) -> list[tuple[Id, Op]]:
    """Each with its micro-batch, its chunk, and how many before it have the same."""
    seen: list[tuple[int, int]] = []
    found = []
    for op in ops:
        same = op.mb_id, chunk(op)
        found.append(((*same, seen.count(same)), op))
        seen.append(same)
    return found


def _pairs_by_position(sends: Matched, receives: Matched, onward: int) -> list[tuple[Key, Key]]:
    if len(sends) != len(receives):
        raise ValueError(f"{len(sends)} sends and {len(receives)} receives have a peer")
    return [
        (send.key, receive.key) for (send, _), (receive, _) in zip(sends, receives, strict=True)
    ]


def _pairs_by_id(sends: Matched, receives: Matched, onward: int) -> list[tuple[Key, Key]]:
    reached = {op: chunk + onward for op, chunk in sends}
    left = dict(receives)
    return _same_ids(
        _with_ids(list(reached), lambda op: reached[op]),
        _with_ids(list(left), lambda op: left[op]),
    )


def _same_ids(sends: list[tuple[Id, Op]], receives: list[tuple[Id, Op]]) -> list[tuple[Key, Key]]:
    waiting = {wanted: op.key for wanted, op in receives}
    if len(waiting) != len(sends) or {wanted for wanted, _ in sends} != set(waiting):
        raise ValueError("a send or a receive has no peer")
    return [(op.key, waiting[wanted]) for wanted, op in sends]


def own_sends_and_receives(found: Dependencies, stages: list[Stage]) -> None:
    """Section 6: custom p2p types."""
    ops = [op for stage in stages for op in stage.ops if is_own(op) and op.spec.kind is OpKind.P2P]
    for spec in {op.spec for op in ops if op.spec.pairs_with}:
        both = of(ops, spec.name, spec.pairs_with)
        by_id = all(op.mb_id >= 0 for op in both)
        for stage in stages:
            there = stage.number + spec.towards
            if not 0 <= there < len(stages):
                continue
            sends = of(stage.ops, spec.name)
            receives = of(stages[there].ops, spec.pairs_with)
            found.groups += _own_pairs(sends, receives, by_id=by_id)


def _own_pairs(sends: list[Op], receives: list[Op], *, by_id: bool) -> list[tuple[Key, Key]]:
    if not by_id:
        if len(sends) != len(receives):
            raise ValueError(f"{len(sends)} sends and {len(receives)} receives")
        return [(send.key, got.key) for send, got in zip(sends, receives, strict=True)]
    return _same_ids(
        _with_ids(sends, lambda op: op.chunk), _with_ids(receives, lambda op: op.chunk)
    )


def stages_that_meet(found: Dependencies, ops: list[Op], sizes: Parallelism) -> None:
    """docs/replay.md, section 4, and the axis pp of section 6."""
    ends = {0, sizes.pp_size - 1}
    meeting: dict[tuple[str, int], list[Key]] = {}
    for op in ops:
        is_embedding = op.optype == "embedding-grads-all-reduce" and op.key.stage in ends
        is_own_over_stages = is_own(op) and op.spec.axis is Axis.STAGES
        if is_embedding or is_own_over_stages or op.optype == "optimizer-clip-main-grad":
            meeting.setdefault((op.optype, op.key.seq_id), []).append(op.key)
    found.groups += [tuple(keys) for keys in meeting.values()]
