"""One result of several windows, with their causes."""

from collections.abc import Mapping, Sequence
from typing import Any

from app.result.join_causes import combine_causes
from app.result.join_figures import combine_per_step, combine_results

Result = Mapping[str, Any]


def joint_result(parts: Sequence[Result]) -> dict[str, Any]:
    """The figures and causes of windows of one run, ascending, as if they were one window."""
    figures = combine_results(parts)
    header = {"window": {**figures["window"], "left_out": [], "num_left_out": 0}}
    result = {**figures, **header, **combine_causes(parts, figures)}
    if "per_step" in parts[0]:
        known = [each["per_step"] for each in parts if each["slowdown"] is not None]
        # Thinned windows have none: the others alone would not fit `steps`.
        is_whole = bool(known) and None not in known
        result["per_step"] = combine_per_step(known) if is_whole else None
    return result
