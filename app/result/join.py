"""One result of several windows, with their causes."""

from collections.abc import Sequence

from msgspec.structs import replace

from app.result.join_causes import combine_causes
from app.result.join_figures import combine_per_step, combine_results
from app.result.window_result import WindowResult


def joint_result(parts: Sequence[WindowResult]) -> WindowResult:
    """The figures and causes of windows of one run, ascending, as if they were one window."""
    figures = combine_results(parts)
    header = replace(figures.window, left_out=(), num_left_out=0)
    by_step = [part.per_step for part in parts if part.slowdown is not None]
    known = [figures_by_step for figures_by_step in by_step if figures_by_step is not None]
    # Thinned windows have none: the others alone would not fit `steps`.
    is_whole = bool(known) and len(known) == len(by_step)
    return replace(
        combine_causes(parts, figures),
        window=header,
        per_step=combine_per_step(known) if is_whole else None,
    )
