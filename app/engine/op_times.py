"""How long operations took: a micro-batch on each stage, and each type a step on a worker."""

from dataclasses import dataclass

import numpy as np

from app.engine.compiled import kernel
from app.engine.parallel import in_parallel
from app.engine.replays import WindowReplay
from app.engine.template import Template
from app.engine.what_if import Replayer
from app.trace.ops import Direction, Kind
from app.trace.window import Floats, Ints

# The second half of a backward that a zero-bubble schedule has split: of the same micro-batch.
_SECOND_HALF = "backward-weight-compute"


@dataclass(frozen=True, slots=True)
class TypeTime:
    """Mean seconds a step and worker in operations of one type.

    Of communication: until all peers were there, it waited; from then on, its transfer ran. Both
    are None of compute.
    """

    recorded_s: float
    transfer_s: float | None
    wait_s: float | None


@dataclass(frozen=True, slots=True)
class OpTimes:
    """Mean times over all steps.

    `forward_s` and `backward_s` [pp] are of one micro-batch on the stage, in all its chunks; None
    where it has none. `by_type` has the names of the op-type slowdowns.
    """

    forward_s: list[float | None]
    backward_s: list[float | None]
    by_type: dict[str, TypeTime]


@dataclass(frozen=True, slots=True)
class _Rows:
    """[ops] sums over all lanes of a group of steps, seconds; recorded ones of communication."""

    group: Replayer
    own_s: Floats
    recorded_s: Floats


def op_times(replay: WindowReplay) -> OpTimes:
    """One pass over what operations took themselves, and over recorded communication."""
    sums = [_sums(group) for group in replay.groups]
    return OpTimes(
        _of_stages(replay, sums, Direction.FORWARD),
        _of_stages(replay, sums, Direction.BACKWARD),
        _of_types(replay, sums),
    )


def _sums(group: Replayer) -> _Rows:
    template, own_s = group.template, group.durations.recorded_s
    by_code = template.op_types.by_code
    talks = [code for code in template.present if by_code[code].kind is not Kind.COMPUTE]
    talking = np.isin(template.optype, talks)
    found = _Rows(group, np.empty(template.num_ops), np.zeros(template.num_ops))
    in_parallel(
        group.grid.start_s.size,
        template.num_ops,
        lambda first, end: _row_sums(
            own_s, group.grid.duration_s, talking, first, end, found.own_s, found.recorded_s
        ),
    )
    return found


@kernel
def _row_sums(own_s, duration_s, talking, first, end, own, recorded):  # type: ignore[no-untyped-def]
    num_lanes = own_s.shape[1]
    for op in range(first, end):
        total_s = 0.0
        for lane in range(num_lanes):
            total_s += own_s[op, lane]
        own[op] = total_s
        if talking[op]:
            total_s = 0.0
            for lane in range(num_lanes):
                total_s += duration_s[op, lane]
            recorded[op] = total_s


def _of_stages(replay: WindowReplay, sums: list[_Rows], direction: Direction) -> list[float | None]:
    """[pp], seconds a micro-batch."""
    pp_size = replay.window.job.parallelism.pp_size
    total_s, count = np.zeros(pp_size), np.zeros(pp_size)
    for rows in sums:
        template = rows.group.template
        ops = _computing(template, direction)
        stage = template.stage[ops]
        total_s += np.bincount(stage, rows.own_s[ops], pp_size)
        num_lanes = rows.group.grid.start_s.shape[1]
        count += _microbatches(template, ops, pp_size) * num_lanes
    return [float(t / n) if n else None for t, n in zip(total_s, count, strict=True)]


def _computing(template: Template, direction: Direction) -> Ints:
    by_code = template.op_types.by_code
    codes = [
        code
        for code in template.present
        if by_code[code].kind is Kind.COMPUTE
        and (
            by_code[code].direction is direction
            or (direction is Direction.BACKWARD and by_code[code].name == _SECOND_HALF)
        )
    ]
    return np.flatnonzero(np.isin(template.optype, codes))


def _microbatches(template: Template, ops: Ints, pp_size: int) -> Floats:
    """[pp], micro-batches of a step: each is computed once in every chunk of the stage."""
    by_code = template.op_types.by_code
    second = [code for code in template.present if by_code[code].name == _SECOND_HALF]
    whole = ops[~np.isin(template.optype[ops], second)]
    stage, chunk = template.stage[whole], template.mc[whole]
    pairs = np.unique(np.stack([stage, chunk]), axis=1)[0]
    num_chunks = np.maximum(np.bincount(pairs, minlength=pp_size), 1)
    return np.asarray(np.bincount(stage, minlength=pp_size) / num_chunks)


def _of_types(replay: WindowReplay, sums: list[_Rows]) -> dict[str, TypeTime]:
    sizes, by_code = replay.window.job.parallelism, replay.window.job.op_types.by_code
    num_worker_steps = sizes.dp_size * sizes.pp_size * len(replay.steps)
    own_s: dict[str, float] = {}
    recorded_s: dict[str, float] = {}
    talks: dict[str, bool] = {}
    for code in sorted({code for rows in sums for code in rows.group.template.present}):
        name = by_code[code].group
        talks[name] = by_code[code].kind is not Kind.COMPUTE
        for rows in sums:
            of_code = rows.group.template.optype == code
            own_s[name] = own_s.get(name, 0.0) + float(rows.own_s[of_code].sum())
            talked_s = float(rows.recorded_s[of_code].sum())
            recorded_s[name] = recorded_s.get(name, 0.0) + talked_s
    return {
        name: _time(own_s[name], recorded_s[name] if talks[name] else None, num_worker_steps)
        for name in own_s
    }


def _time(own_s: float, recorded_s: float | None, num_worker_steps: int) -> TypeTime:
    own_s /= num_worker_steps
    if recorded_s is None:
        return TypeTime(own_s, None, None)
    recorded_s /= num_worker_steps
    return TypeTime(recorded_s, own_s, recorded_s - own_s)
