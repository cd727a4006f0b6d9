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
    for before in stream[: stream.index(op)][-1:]:
        if op.start_s <= before.end_s + CLEARLY_S:
            launching, share = _launched_where_free(stage, op, before) or (
                _last_to_have_ended(op, stage.computes),
                None,
            )
            break
    else:
        launching, share = _launched(op, stage.computes)
    if launching is not None and share is not None:
        found.add_share(launching.key, share, op.key)
    elif launching is not None:
        found.add(launching.key, op.key)
    return launching


Launched = tuple[Op | None, float | None]  # the launching operation, and after which share of it


def _launched(op: Op, computes: list[Op]) -> Launched:
    """By the operations that one worker computes in one step."""
    for other in reversed(computes):
        is_running = other.start_s < op.start_s < other.end_s - ROUNDING_S
        if is_running and other.spec.axis is Axis.NONE:
            return other, (op.start_s - other.start_s) / other.duration_s
    return _last_to_have_ended(op, computes), None


def _last_to_have_ended(op: Op, computes: list[Op]) -> Op | None:
    ended = [other for other in computes if other.end_s <= op.start_s + ROUNDING_S]
    return ended[-1] if ended else None


def _launched_where_free(stage: Stage, op: Op, before: Op) -> Launched | None:
    """The launch of a queued operation, where a dp rank and step show it."""
    free = [
        lane[op.key]
        for lane in stage.lanes
        if lane[op.key].start_s > lane[before.key].end_s + CLEARLY_S
    ]
    free = [other for other in free if other.step == op.step] or [
        other for other in free if other.step == min(each.step for each in free)
    ]
    if not free:
        return None
    last = min(free, key=lambda other: (other.duration_s, other.dp_rank))
    [lane] = [lane for lane in stage.lanes if lane[op.key] is last]
    there, share = _launched(last, [lane[other.key] for other in stage.computes])
    if there is None:
        return None, None
    [launching] = [other for other in stage.computes if other.key == there.key]
    launched_s = launching.start_s + (1.0 if share is None else share) * launching.duration_s
    is_late = launched_s > op.start_s + ROUNDING_S
    return _launched(op, stage.computes) if is_late else (launching, share)


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
