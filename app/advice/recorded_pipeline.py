"""A recorded job's pipeline: its schedule, and which rows of the replay are its computations.

A job with operations that have no place in the pipelines of `app/synth` (own op types, gradient
buckets that overlap computations) cannot be rebuilt; the reason says which.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from app.engine.template import Template
from app.engine.what_if import Replayer
from app.errors import InvalidRequest
from app.synth.drawing import P2P_OPS
from app.synth.schedules import SCHEDULES, ComputeKind, Schedule, StageWork
from app.synth.structure import ReplicaStructure, replica_structure
from app.trace.ops import Direction
from app.trace.window import Ints

PARTS = {part.value: part for part in ComputeKind}
# Operations at a step's ends; those of `PER_CHUNK` occur once per model chunk.
PER_CHUNK = ("params-all-gather", "grads-reduce-scatter")
ONCE = (
    *PER_CHUNK,
    "gc",
    "layernorm-grads-all-reduce",
    "embedding-grads-all-reduce",
    "optimizer-clip-main-grad",
    "optimizer",
)
_KNOWN = frozenset({*PARTS, *ONCE, *P2P_OPS})


@dataclass(frozen=True, slots=True)
class NotRebuilt:
    """The reason why a job's pipeline cannot be rebuilt."""

    reason: str


@dataclass(frozen=True)
class RecordedPipeline:
    """The pipeline of one replica's step.

    `rows` {computation: [pp, chunks, micro-batches]} are rows of the replay, `received`
    {direction: the same} those of the transfers into computations, -1 where there is none.
    """

    group: Replayer
    schedule: Schedule
    structure: ReplicaStructure
    rows: dict[ComputeKind, Ints]
    received: dict[Direction, Ints]


def recorded_pipeline(group: Replayer) -> RecordedPipeline | NotRebuilt:
    """The pipeline of steps of equal structure."""
    template = group.template
    if unknown := sorted(template.type_names - _KNOWN):
        return NotRebuilt(f"operations of type {unknown[0]} have no place in a rebuilt pipeline")
    if several := _several_per_chunk(template):
        return NotRebuilt(f"{several} is in several parts, which may overlap computations")
    orders = _orders(template)
    if isinstance(orders, NotRebuilt):
        return orders
    num_microbatches = 1 + max(work.microbatch for order in orders for work in order)
    schedule = _schedule_of(template, orders, num_microbatches)
    if schedule is None:
        names = ", ".join(SCHEDULES)
        return NotRebuilt(f"the order of its computations is none of {names}")
    structure = ReplicaStructure(template.parallelism, num_microbatches, orders)
    received = _received(template, structure)
    if received is None:
        return NotRebuilt("transfers between stages are not recorded for every micro-batch")
    return RecordedPipeline(group, schedule, structure, _rows(template, structure), received)


def _several_per_chunk(template: Template) -> str | None:
    most = template.parallelism.vpp_size
    several = (
        name for of_type in template.of_stage for name in PER_CHUNK if len(of_type[name]) > most
    )
    return next(several, None)


def _orders(template: Template) -> tuple[tuple[StageWork, ...], ...] | NotRebuilt:
    """Computations of each stage in recorded order, micro-batches counted from 0."""
    computes = [op for ops in template.computes for op in ops]
    if not all(template.computes) or min(template.mb_id[op] for op in computes) < 0:
        return NotRebuilt("micro-batches of its computations are not recorded (mb_id)")
    position = _positions(template, computes)

    def work_of(op: int) -> StageWork:
        chunk = max(int(template.mc[op]), 0)
        return StageWork(PARTS[template.name(op)], position[int(template.mb_id[op])], chunk)

    return tuple(tuple(map(work_of, ops)) for ops in template.computes)


def _positions(template: Template, ops: Sequence[int]) -> dict[int, int]:
    """Position of every micro-batch of some operations, from 0, by its number."""
    numbers = sorted({int(template.mb_id[op]) for op in ops})
    return {number: position for position, number in enumerate(numbers)}


def _schedule_of(
    template: Template, orders: Sequence[Sequence[StageWork]], num_microbatches: int
) -> Schedule | None:
    """The first schedule that gives every stage its recorded order."""
    sizes = template.parallelism
    for schedule in SCHEDULES.values():
        try:
            schedule.check(sizes, num_microbatches)
        except InvalidRequest:
            continue
        if replica_structure(sizes, num_microbatches, schedule).orders == orders:
            return schedule
    return None


def _rows(template: Template, structure: ReplicaStructure) -> dict[ComputeKind, Ints]:
    sizes = template.parallelism
    shape = sizes.pp_size, sizes.vpp_size, structure.num_microbatches
    by_kind: dict[ComputeKind, Ints] = {}
    for stage, (ops, order) in enumerate(zip(template.computes, structure.orders, strict=True)):
        for op, work in zip(ops, order, strict=True):
            rows = by_kind.setdefault(work.part, np.full(shape, -1, np.int64))
            rows[stage, work.chunk, work.microbatch] = op
    return by_kind


def _received(template: Template, structure: ReplicaStructure) -> dict[Direction, Ints] | None:
    """Receives by computation; None unless each that has a sender has one."""
    sizes = template.parallelism
    shape = sizes.pp_size, sizes.vpp_size, structure.num_microbatches
    received = {}
    for direction in (Direction.FORWARD, Direction.BACKWARD):
        rows = received[direction] = np.full(shape, -1, np.int64)
        for stage, order in enumerate(structure.orders):
            ops = template.of_stage[stage][f"{direction.value}-recv"]
            works = [
                work
                for work in order
                if work.direction is direction and structure.sender_of(stage, work)
            ]
            matched = _matched(template, ops, works)
            if matched is None:
                return None
            for op, work in zip(matched, works, strict=True):
                rows[stage, work.chunk, work.microbatch] = op
    return received


def _matched(
    template: Template, ops: Sequence[int], works: Sequence[StageWork]
) -> list[int] | None:
    """The receive of each computation: by micro-batch and chunk, else in recorded order.

    Some feeds record receives at the pipeline's ends, too, where nothing is sent: those have
    micro-batches, and are left out.
    """
    if len(ops) == len(works):
        return list(ops)
    if not ops or min(template.mb_id[op] for op in ops) < 0:
        return None
    position = _positions(template, ops)
    by_id = {(position[int(template.mb_id[op])], max(int(template.mc[op]), 0)): op for op in ops}
    try:
        return [by_id[work.microbatch, work.chunk] for work in works]
    except KeyError:
        return None
