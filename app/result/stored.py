"""How a result is stored: its figures by step, most of it for large jobs, apart from the rest."""

from collections.abc import Mapping
from typing import Any

_ARRIVALS = "arrivals"
_BY_STEP = "per_step"


def split_by_step(result: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Split a result into what lists need, and its figures by step: most of it for large jobs.

    The figures are None where nothing was measured.
    """
    rest = {name: value for name, value in result.items() if name != _BY_STEP}
    by_step = result.get(_BY_STEP)
    arrivals = result.get(_ARRIVALS)
    if not arrivals or _BY_STEP not in arrivals:
        return rest, by_step
    rest[_ARRIVALS] = {name: value for name, value in arrivals.items() if name != _BY_STEP}
    return rest, None if by_step is None else {**by_step, **arrivals[_BY_STEP]}


def join_by_step(result: Mapping[str, Any], by_step: Mapping[str, Any] | None) -> dict[str, Any]:
    """The result with its figures by step, at `per_step` and `arrivals.per_step`."""
    arrivals = result.get(_ARRIVALS)
    if not arrivals or by_step is None or "waited_for_s" not in by_step:
        return {**result, _BY_STEP: by_step}
    rest = {name: value for name, value in by_step.items() if name != "waited_for_s"}
    own = {_BY_STEP: {"waited_for_s": by_step["waited_for_s"]}}
    return {**result, _ARRIVALS: {**arrivals, **own}, _BY_STEP: rest}
