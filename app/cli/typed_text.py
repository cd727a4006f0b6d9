"""Parses typed edits of a what-if question.

An edit reads "op=pp-comm stage=0,2-3 factor=0.8": a selection, and one change.
"""

import re
from collections.abc import Sequence
from typing import Any

from app.engine.questions import edits
from app.errors import InvalidRequest
from app.trace.window import parse_step_ranges

_MAX_LISTED = 100_000
_PER_SECOND = {"": 1.0, "s": 1.0, "ms": 1e3, "us": 1e6}
_SECONDS = re.compile(r"([-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:e[-+]?[0-9]{1,3})?)(|s|ms|us)")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_WORKER = re.compile(r"([0-9]{1,9})/([0-9]{1,9})")
_HELP = "write what it selects (op=, stage=, dp=, worker=DP/STAGE, step=, mb=) and one change"
_CHANGES = "ideal, factor=X, add=SECONDS, set=SECONDS or from=DP/STAGE"


def parse_edit(text: str, steps: Sequence[int]) -> edits.Edit:
    """One edit of a window with these steps."""
    select: dict[str, Any] = {}
    changes: list[edits.DurationChange] = []
    for part in text.split():
        key, _, value = part.partition("=")
        if key in _FIELDS and value:
            field, read = _FIELDS[key]
            if field in select:
                raise _refused(text, f"{key} is given twice: write {key}=A,B")
            select[field] = parse_step_ranges(value, steps) if key == "step" else read(text, value)
        else:
            changes.append(_change(text, key, value))
    if len(changes) != 1:
        raise _refused(text, f"has {len(changes)} changes: {_HELP}: {_CHANGES}")
    return edits.Edit(changes[0], edits.Selection(**select))


def _change(text: str, key: str, value: str) -> edits.DurationChange:
    match key:
        case "ideal" if not value:
            return edits.Ideal()
        case "factor":
            return edits.Factor(_seconds(text, value, units=False))
        case "add":
            return edits.Add(_seconds(text, value))
        case "set":
            return edits.Set(_seconds(text, value))
        case "from":
            return edits.FromWorker(*_worker(text, value))
    raise _refused(text, f"{key[:40]!r} is not known: {_HELP}: {_CHANGES}")


def _names(_text: str, value: str) -> tuple[str, ...]:
    return tuple(value.split(","))


def _numbers(text: str, value: str) -> tuple[int, ...]:
    numbers: list[int] = []
    for part in value.split(","):
        match = _RANGE.fullmatch(part)
        first, last = (int(end or match[1]) for end in match.groups()) if match else (1, 0)
        if first > last:
            raise _refused(text, f"{part[:40]!r} is no number or range: write 3 or 5-9")
        if last - first >= _MAX_LISTED:
            why = f"{part[:40]!r} is more than {_MAX_LISTED:,} of them: leave it out"
            raise _refused(text, why)
        numbers += range(first, last + 1)
    return tuple(numbers)


def _workers(text: str, value: str) -> tuple[tuple[int, int], ...]:
    return tuple(_worker(text, part) for part in value.split(","))


def _worker(text: str, value: str) -> tuple[int, int]:
    match = _WORKER.fullmatch(value)
    if match is None:
        hint = "write DP/STAGE, such as 0/3; dp=3 or stage=1 name all of a replica or stage"
        raise _refused(text, f"{value[:40]!r} names no worker: {hint}")
    return int(match[1]), int(match[2])


def _seconds(text: str, value: str, *, units: bool = True) -> float:
    match = _SECONDS.fullmatch(value)
    if match is None or (match[2] and not units):
        example = "such as 0.5, 5ms or 20us" if units else "such as 0.8"
        raise _refused(text, f"{value[:40]!r} is no number: write one {example}")
    return float(match[1]) / _PER_SECOND[match[2]]


def _refused(text: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"--edit {text[:100]!r}: {why}")


_FIELDS: dict[str, tuple[str, Any]] = {
    "op": ("op_types", _names),
    "stage": ("stages", _numbers),
    "dp": ("dp_ranks", _numbers),
    "worker": ("workers", _workers),
    "step": ("steps", None),
    "mb": ("microbatches", _numbers),
}
