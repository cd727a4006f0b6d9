"""Operations launched while a stage computes: docs/replay.md, sections 5 and 6."""

from app.trace.ops import Axis
from tests.reference_ops import Dependencies, Op, is_on_compute_stream, is_own, of, passes
from tests.reference_stage import CLEARLY_S, GATHER, GRADIENTS, ROUNDING_S, Stage


def launches(found: Dependencies, stage: Stage) -> None:
    """Dependencies and dependents of every overlapped operation."""
    for op in of(stage.ops, *stage.overlapping_types):
        launching = _launch(found, stage, op)
        if op.optype == GATHER:
            _feed(found, stage, op, launching, _of_its_chunk(stage, op) or stage.computes)
    for optype in stage.overlapping_types & set(GRADIENTS):
        last = of(stage.ops, optype)[-1]
        for after in of(stage.end_of_step, "optimizer-clip-main-grad", "optimizer")[:1]:
            found.add(last.key, after.key)
    for op in stage.ops:
        if is_own(op) and not is_on_compute_stream(op):
            launching = _launch(found, stage, op)
            if not op.spec.pairs_with and not _feed(found, stage, op, launching, stage.computes):
                _feed_end_of_step(found, stage, op)


def _launch(found: Dependencies, stage: Stage, op: Op) -> Op | None:
    """The launching operation of the compute stream, if any; adds the dependency."""
    stream = stage.streams[stage.stream(op)]
    was_queued = any(
        op.start_s <= before.end_s + CLEARLY_S for before in stream[: stream.index(op)][-1:]
    )
    for other in [] if was_queued else reversed(stage.computes):
        is_running = other.start_s < op.start_s < other.end_s - ROUNDING_S
        if is_running and other.spec.axis is Axis.NONE:
            share = (op.start_s - other.start_s) / other.duration_s
            found.add_share(other.key, share, op.key)
            return other
    ended = [other for other in stage.computes if other.end_s <= op.start_s + ROUNDING_S]
    for last in ended[-1:]:
        found.add(last.key, op.key)
    return ended[-1] if ended else None


def _of_its_chunk(stage: Stage, op: Op) -> list[Op]:
    works = passes(stage.ops, "forward") + passes(stage.ops, "backward")
    return [other for other in stage.computes if other in works and other.mc == op.mc]


def _feed(
    found: Dependencies, stage: Stage, op: Op, launching: Op | None, candidates: list[Op]
) -> bool:
    """Whether one of the candidates begins after it; the first of them waits for it."""
    after = stage.computes.index(launching) + 1 if launching else 0
    for other in stage.computes[after:]:
        if other in candidates and other.start_s >= op.end_s - ROUNDING_S:
            found.add(op.key, other.key)
            return True
    return False


def _feed_end_of_step(found: Dependencies, stage: Stage, op: Op) -> None:
    for other in stage.end_of_step:
        if other.start_s >= op.end_s - ROUNDING_S:
            found.add(op.key, other.key)
            return
