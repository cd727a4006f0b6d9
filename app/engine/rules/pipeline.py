"""Sends and receives between pipeline stages (rules 4 to 6)."""

from dataclasses import dataclass, field
from typing import Literal

from app.engine.rules import Edge
from app.engine.template import Template
from app.errors import InvalidTrace

DirectionName = Literal["forward", "backward"]
DIRECTIONS: tuple[DirectionName, ...] = ("forward", "backward")

# A recv posted this much after the last compute began, or a send over this much before the
# first compute ended, belongs to no compute of the step (rule 4).
LIVE_TOLERANCE_S = 50e-6


@dataclass(slots=True)
class Matched:
    """One stage's p2p operations of one direction.

    `sends` and `recvs` have a peer on a neighbouring stage; operations at the model's ends and
    unmatched ones have none.
    """

    edges: list[Edge] = field(default_factory=list)
    sends: list[int] = field(default_factory=list)
    recvs: list[int] = field(default_factory=list)


def match(template: Template, stage: int, direction: DirectionName) -> Matched:
    """Which compute each live send and recv of a stage belongs to, by position (rule 4)."""
    computes = template.ops(stage, f"{direction}-compute")
    matched = Matched()
    if not computes:
        return matched
    recvs = _live_recvs(template, stage, direction, computes)
    first = 1 if len(recvs) == len(computes) - 1 else 0
    for position, recv in enumerate(recvs[: len(computes) - first], start=first):
        matched.edges.append((recv, computes[position]))
        if position > 0:
            matched.edges.append((computes[position - 1], recv))
        if _has_peer(template, computes[position], direction, sends=False):
            matched.recvs.append(recv)
    sends = _live_sends(template, stage, direction, computes)
    for send, compute in zip(sends, computes, strict=False):
        matched.edges.append((compute, send))
        if _has_peer(template, compute, direction, sends=True):
            matched.sends.append(send)
    return matched


def _live_recvs(
    template: Template, stage: int, direction: DirectionName, computes: list[int]
) -> list[int]:
    last_start_s = template.start_s[computes[-1]]
    recvs = template.ops(stage, f"{direction}-recv")
    return [op for op in recvs if template.start_s[op] <= last_start_s + LIVE_TOLERANCE_S]


def _live_sends(
    template: Template, stage: int, direction: DirectionName, computes: list[int]
) -> list[int]:
    first_end_s = template.end_s[computes[0]]
    sends = template.ops(stage, f"{direction}-send")
    return [op for op in sends if template.end_s[op] >= first_end_s - LIVE_TOLERANCE_S]


def _has_peer(template: Template, compute: int, direction: DirectionName, *, sends: bool) -> bool:
    """Whether the neighbouring chunk, in the whole model, exists."""
    parallelism = template.parallelism
    chunk = _model_chunk(template, compute)
    towards_end = sends == (direction == "forward")
    peer = chunk + 1 if towards_end else chunk - 1
    return bool(0 <= peer < parallelism.vpp_size * parallelism.pp_size)


def _model_chunk(template: Template, compute: int) -> int:
    """Where in the whole model a compute's chunk is; a stage of one chunk need not name it."""
    parallelism = template.parallelism
    if template.mc[compute] < 0 and parallelism.vpp_size > 1:
        raise InvalidTrace(
            f"{template.describe(compute)} names no model chunk: "
            f"with {parallelism.vpp_size} chunks on a stage, every compute has to"
        )
    return int(max(template.mc[compute], 0) * parallelism.pp_size + template.stage[compute])


def pairs(template: Template, matched: list[Matched], direction: DirectionName) -> list[list[int]]:
    """The j-th send of a stage with the j-th recv of the next one in that direction (rule 6)."""
    num_stages = len(matched)
    found = []
    for stage, here in enumerate(matched):
        peer = (stage + (1 if direction == "forward" else -1)) % num_stages
        there = matched[peer]
        if len(here.sends) != len(there.recvs):
            raise InvalidTrace(
                f"stage {stage} has {len(here.sends)} {direction}-send for stage {peer}, which has "
                f"{len(there.recvs)} {direction}-recv: the step's record is not complete"
            )
        found += [list(pair) for pair in zip(here.sends, there.recvs, strict=True)]
    return found


def first_backward_edges(template: Template, stage: int) -> list[Edge]:
    """The first backward send and recv wait for the second-last compute before it (rule 5)."""
    computes = template.ops(stage, "forward-compute", "backward-compute")
    backwards = template.ops(stage, "backward-compute")
    if not backwards or (position := computes.index(backwards[0])) < 2:
        return []
    waiting = template.ops(stage, "backward-send", "backward-recv")
    return [(computes[position - 2], op) for op in waiting if template.seq_id[op] == 0]
