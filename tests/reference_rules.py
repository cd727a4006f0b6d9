"""Dependencies of every operation of a step: docs/replay.md, on the stages of one replica."""

from collections.abc import Iterable

from app.trace.job import Parallelism
from tests.reference_launch import launches
from tests.reference_matching import own_sends_and_receives, sends_and_receives, stages_that_meet
from tests.reference_ops import (
    Dependencies,
    Key,
    Op,
    backwards,
    in_recorded_order,
    last_to_end,
    numbered,
    of,
    passes,
)
from tests.reference_stage import GATHER, REDUCE, SCATTER, Stage


def dependencies(
    ops: Iterable[Op], sizes: Parallelism, recorded: Iterable[Op] = ()
) -> Dependencies:
    """The rules, from the operations of one step of one replica.

    `recorded` are those of all replicas and steps of the same structure.
    """
    lanes: dict[tuple[int, int], dict[Key, Op]] = {}
    for op in recorded:
        lanes.setdefault((op.step, op.dp_rank), {})[op.key] = op
    ops = in_recorded_order(ops)
    found = Dependencies({op.key: set() for op in ops}, {op.key: set() for op in ops})
    overlapped = bool(of(ops, REDUCE))
    stages = [
        Stage(
            number,
            [op for op in ops if op.key.stage == number],
            sizes,
            overlapped,
            list(lanes.values()),
        )
        for number in range(sizes.pp_size)
    ]
    for stage in stages:
        for stream in stage.streams.values():
            found.chain(stream)
        _first_backward(found, stage)
        _parameters(found, stage)
        _end_of_step(found, stage)
        launches(found, stage)
    sends_and_receives(found, stages, sizes)
    own_sends_and_receives(found, stages)
    stages_that_meet(found, ops, sizes)
    return found


def _first_backward(found: Dependencies, stage: Stage) -> None:
    """Section 2, its last sentence."""
    before: list[Op] = []
    for first in passes(stage.ops, "backward")[:1]:
        order = in_recorded_order([*passes(stage.ops, "forward"), first])
        before = order[: order.index(first)]
    for op in of(stage.ops, "backward-send", "backward-recv"):
        if op.key.seq_id == 0 and len(before) >= 2:
            found.add(before[-2].key, op.key)


def _parameters(found: Dependencies, stage: Stage) -> None:
    """Section 3: a chunk's last gather comes before its first forward."""
    if not stage.sizes.is_data_parallel or GATHER in stage.overlapping_types:
        return
    gathers = numbered(stage.ops, GATHER)
    for chunk in {op.mc for op in gathers}:
        last = [op for op in gathers if op.mc == chunk][-1]
        for forward in [op for op in passes(stage.ops, "forward") if op.mc == chunk][:1]:
            found.add(last.key, forward.key)


def _end_of_step(found: Dependencies, stage: Stage) -> None:
    """Section 3: operations after the computation."""
    found.chain(last_to_end(stage.computes) + stage.end_of_step)
    scatters = numbered(stage.ops, SCATTER)
    if stage.sizes.is_data_parallel and stage.overlapped and SCATTER not in stage.overlapping_types:
        _overlapped(found, stage, scatters)


def _overlapped(found: Dependencies, stage: Stage, scatters: list[Op]) -> None:
    """Section 3: each chunk's gradients after its own backwards, all before the layernorm's."""
    for chunk in {op.mc for op in scatters}:
        first = next(op for op in scatters if op.mc == chunk)
        for last in last_to_end([op for op in backwards(stage.ops) if op.mc == chunk]):
            found.add(last.key, first.key)
    after_gc = [op for op in stage.end_of_step if op.optype != "gc"]
    for scatter, after in zip(scatters[-1:], after_gc, strict=False):
        found.add(scatter.key, after.key)
