"""What is wrong with an edit, said before anything is done."""

import math
from collections.abc import Collection, Sequence

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
from app.engine.questions.op_names import GROUPS, named_codes
from app.engine.replays import WindowReplay
from app.errors import InvalidRequest

MAX_LISTED = 8


def check_numbers(edits: Sequence[Edit]) -> None:
    """Returns if the numbers of all changes make sense.

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
                what = "the seconds to add"
                _check_number(number, what, seconds, least=-MAX_SECONDS, most=MAX_SECONDS)
            case Set(seconds):
                _check_number(number, "a duration in seconds", seconds, least=0, most=MAX_SECONDS)


def _check_number(number: int, what: str, value: float, *, least: float, most: float) -> None:
    if math.isfinite(value) and least <= value <= most:
        return
    raise InvalidRequest(
        f"edit {number}: {what} cannot be {value:g}: "
        f"it is a number from {least:,.0f} to {most:,.0f}"
    )


def check_names(replay: WindowReplay, edit: Edit, number: int) -> None:
    """Returns if the window has all that the edit names; `number` names it in messages.

    Raises:
        InvalidRequest: an op type, stage, rank, step or micro-batch that is not there.
    """
    select, sizes = edit.select, replay.window.job.parallelism
    for name in select.op_types:
        if not named_codes(name, replay.window.job.op_types):
            raise InvalidRequest(
                f"edit {number}: op type {name!r} is not known: take one of the job's op types, "
                f"a joint name such as forward-pp-comm, or {', '.join(GROUPS)}"
            )
    _check_below(number, "stage", select.stages, sizes.pp_size)
    _check_below(number, "dp rank", select.dp_ranks, sizes.dp_size)
    _check_workers(number, select, edit, replay)
    _check_steps(number, select, replay)
    if negative := [each for each in select.microbatches if each < 0]:
        raise InvalidRequest(f"edit {number}: micro-batch {negative[0]} cannot be: the first is 0")


def _check_workers(number: int, select: Selection, edit: Edit, replay: WindowReplay) -> None:
    sizes = replay.window.job.parallelism
    workers = list(select.workers)
    if isinstance(edit.change, FromWorker):
        workers.append((edit.change.dp_rank, edit.change.stage))
    _check_below(number, "dp rank", [dp_rank for dp_rank, _ in workers], sizes.dp_size)
    _check_below(number, "stage", [stage for _, stage in workers], sizes.pp_size)


def _check_below(number: int, what: str, indices: Collection[int], size: int) -> None:
    for index in indices:
        if not 0 <= index < size:
            raise InvalidRequest(
                f"edit {number}: there is no {what} {index}: the job has 0 to {size - 1}"
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
            f"it has steps {listed(replay.steps)}"
        )


def listed(values: Collection[object]) -> str:
    """The first values in words, and whether there are more."""
    shown = ", ".join(str(value) for value in list(values)[:MAX_LISTED])
    return shown + (" ..." if len(values) > MAX_LISTED else "")
