"""Which operations does an edit change in one window, and is the edit valid there?

All checks come before any replay.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.engine.questions.edits import (
    MAX_EDITS,
    MAX_FACTOR,
    MAX_SECONDS,
    Add,
    Edit,
    Factor,
    FromWorker,
    Selection,
    Set,
)
from app.engine.replays import WindowReplay
from app.engine.what_if import Replayer
from app.errors import InvalidRequest
from app.trace.ops import Axis, OpKind, OpSpec, OpTypes
from app.trace.window import Ints

# Each name stands for every op type that it holds for; the joint names of reports
# (forward-pp-comm, backward-pp-comm) are taken as well.
OP_TYPE_GROUPS: dict[str, Callable[[OpSpec], bool]] = {
    "compute": lambda spec: spec.kind is OpKind.COMPUTE,
    "pp-comm": lambda spec: spec.kind is OpKind.P2P,
    "dp-comm": lambda spec: spec.kind is OpKind.COLLECTIVE and spec.axis is Axis.DP,
    "comm": lambda spec: spec.kind in (OpKind.P2P, OpKind.COLLECTIVE),
}


def named_codes(name: str, op_types: OpTypes) -> set[int]:
    """Codes of the op types that a name stands for; empty if it is not known."""
    if name in op_types.codes:
        return {op_types.codes[name]}
    if name in OP_TYPE_GROUPS:
        return {code for code, spec in op_types.by_code.items() if OP_TYPE_GROUPS[name](spec)}
    return {code for code, spec in op_types.by_code.items() if spec.group == name}


MAX_LISTED = 8


def check_numbers(edits: Sequence[Edit]) -> None:
    """Check the number of edits and the values of all changes.

    Raises:
        InvalidRequest: too many edits, or a number that no duration can be changed by.
    """
    if len(edits) > MAX_EDITS:
        raise InvalidRequest(f"{len(edits)} edits: a question has at most {MAX_EDITS}")
    for number, edit in enumerate(edits, 1):
        match edit.change:
            case Factor(factor):
                _check_number(number, "a factor", factor, least=0, most=MAX_FACTOR)
            case Add(seconds):
                name = "the seconds to add"
                _check_number(number, name, seconds, least=-MAX_SECONDS, most=MAX_SECONDS)
            case Set(seconds):
                _check_number(number, "a duration in seconds", seconds, least=0, most=MAX_SECONDS)


def _check_number(number: int, name: str, value: float, *, least: float, most: float) -> None:
    if not least <= value <= most:  # nor is NaN
        raise InvalidRequest(
            f"edit {number}: {name} cannot be {value:g}: "
            f"it is a number from {least:,.0f} to {most:,.0f}"
        )


def _check_names(replay: WindowReplay, edit: Edit, number: int) -> None:
    """Check that the window has all names of the edit."""
    select, sizes = edit.select, replay.window.job.parallelism
    for name in select.op_types:
        if not named_codes(name, replay.window.job.op_types):
            raise InvalidRequest(
                f"edit {number}: op type {name!r} is not known: take one of the job's op types, "
                f"a joint name such as forward-pp-comm, or {', '.join(OP_TYPE_GROUPS)}"
            )
    _check_below(number, "stage", select.stages, sizes.pp_size)
    _check_below(number, "dp rank", select.dp_ranks, sizes.dp_size)
    workers = list(select.workers)
    if isinstance(edit.change, FromWorker):
        workers.append((edit.change.dp_rank, edit.change.stage))
    _check_below(number, "dp rank", [dp_rank for dp_rank, _ in workers], sizes.dp_size)
    _check_below(number, "stage", [stage for _, stage in workers], sizes.pp_size)
    _check_steps(number, select, replay)
    if negative := [microbatch for microbatch in select.microbatches if microbatch < 0]:
        raise InvalidRequest(f"edit {number}: micro-batch {negative[0]} cannot be: the first is 0")


def _check_below(number: int, name: str, indices: Collection[int], size: int) -> None:
    for index in indices:
        if not 0 <= index < size:
            raise InvalidRequest(
                f"edit {number}: there is no {name} {index}: the job has 0 to {size - 1}"
            )


def _check_steps(number: int, select: Selection, replay: WindowReplay) -> None:
    known = set(replay.steps)
    for step in select.steps:
        if step in known:
            continue
        reasons = [skip.reason for skip in replay.skipped if skip.step == step]
        why = f"was left out ({reasons[0]})" if reasons else "is not in it"
        raise InvalidRequest(
            f"edit {number}: step {step} of window {replay.window.id} {why}: "
            f"it has steps {first_values(replay.steps)}"
        )


def first_values(values: Collection[object]) -> str:
    """Text of the first values, and whether there are more."""
    shown = ", ".join(str(value) for value in list(values)[:MAX_LISTED])
    return shown + (" ..." if len(values) > MAX_LISTED else "")


Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Region:
    """Operations of one group of steps: rows of the template, and some lanes of every stage.

    Shapes: `rows` [ops], `lanes` [pp, dp, steps].
    """

    rows: Mask
    lanes: Mask

    def num_ops(self, stage: Ints) -> int:
        """Number of operations, counted in every lane; `stage` is the template's."""
        per_stage = np.bincount(stage[self.rows], minlength=self.lanes.shape[0])
        return int(per_stage @ self.lanes.sum(axis=(1, 2)))


def regions(replay: WindowReplay, edit: Edit, number: int) -> list[Region]:
    """Operations that the edit changes in each replay group; `number` is the edit's in messages.

    Raises:
        InvalidRequest: a name or number that the window does not have, or nothing is selected.
    """
    _check_names(replay, edit, number)
    selected = [_everything(group) for group in replay.groups]
    for field, (words, narrowed) in _FIELDS.items():
        wanted = getattr(edit.select, field)
        if not wanted:
            continue
        pairs = zip(replay.groups, selected, strict=True)
        selected = [narrowed(group, region, wanted) for group, region in pairs]
        pairs = zip(replay.groups, selected, strict=True)
        if not any(region.num_ops(group.template.stage) for group, region in pairs):
            raise InvalidRequest(
                f"edit {number} selects no operation: none that its other fields leave "
                f"has {words} {first_values(wanted)}"
            )
    return selected


def _everything(group: Replayer) -> Region:
    lanes = np.ones((group.pp_size, group.dp_size, len(group.steps)), np.bool_)
    return Region(np.ones(group.template.num_ops, np.bool_), lanes)


def _of_types(group: Replayer, region: Region, names: Collection[str]) -> Region:
    template = group.template
    codes = set().union(*(named_codes(name, template.op_types) for name in names))
    return Region(region.rows & np.isin(template.optype, sorted(codes)), region.lanes)


def _of_stages(group: Replayer, region: Region, stages: Collection[int]) -> Region:
    return Region(region.rows & np.isin(group.template.stage, list(stages)), region.lanes)


def _of_microbatches(group: Replayer, region: Region, numbers: Collection[int]) -> Region:
    return Region(region.rows & np.isin(group.template.mb_id, list(numbers)), region.lanes)


def _of_dp_ranks(group: Replayer, region: Region, dp_ranks: Collection[int]) -> Region:
    chosen = np.isin(np.arange(group.dp_size), list(dp_ranks))
    return _in_lanes(group, region, chosen[None, :, None])


def _of_workers(group: Replayer, region: Region, workers: Collection[tuple[int, int]]) -> Region:
    chosen = np.zeros((group.pp_size, group.dp_size), np.bool_)
    for dp_rank, stage in workers:
        chosen[stage, dp_rank] = True
    return _in_lanes(group, region, chosen[:, :, None])


def _of_steps(group: Replayer, region: Region, steps: Collection[int]) -> Region:
    return _in_lanes(group, region, np.isin(group.steps, list(steps)))


def _in_lanes(group: Replayer, region: Region, chosen: Mask) -> Region:
    lanes = region.lanes & chosen
    # A row that is left with no lane is no longer selected: nothing need be held for it.
    on_stage = np.asarray(lanes.any(axis=(1, 2)))
    return Region(region.rows & on_stage[group.template.stage], lanes)


# By field: what a message calls it, and how it narrows a region. In this order they are applied, so
# that a message names the field that left nothing.
_FIELDS: dict[str, tuple[str, Callable[..., Region]]] = {
    "op_types": ("the op type", _of_types),
    "stages": ("the stage", _of_stages),
    "microbatches": ("the micro-batch", _of_microbatches),
    "dp_ranks": ("the dp rank", _of_dp_ranks),
    "workers": ("the worker (dp rank, stage)", _of_workers),
    "steps": ("the step", _of_steps),
}
