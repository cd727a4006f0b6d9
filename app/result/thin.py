"""One small result of successive windows, to be stored in their place when they are old.

It is the joint result of the windows, with causes, losses and figures by worker over all of their
steps. Of its lists by step at most `MAX_VALUES` values are left, each the mean of successive steps
(app.result.step_counts). What is needed to replay one of the windows stays beside them.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from app.result.join import joint_result
from app.result.step_counts import step_counts
from app.result.window_result import (
    BySteps,
    RecordedPart,
    Resolution,
    SkippedStepRecord,
    StepTimes,
    Thinned,
    WindowResult,
)
from app.trace.window import Floats

# Of each list by step: an hour's are of two and a half minutes, a day's of an hour.
MAX_VALUES = 24
# Skipped steps that are listed: the first ones, of every reason at least one.
MAX_SKIPPED = 20


def thinned_result(
    parts: Sequence[WindowResult], resolution: Resolution, recorded: WindowResult | None = None
) -> WindowResult:
    """The result that replaces those of successive windows of one run.

    Args:
        parts: their results, ascending, without `per_step`; thinned ones may be among them.
        resolution: what the new result is of.
        recorded: that of the windows whose operations stay stored.
    """
    joint = joint_result(parts)
    windows = [part.window for part in parts]
    header = replace(
        joint.window,
        id=windows[0].id,
        num_windows=sum(window.num_windows or 1 for window in windows),
        windows=None,
        left_out=None,
        num_left_out=None,
    )
    counts = step_counts(joint)
    groups = _groups(len(counts))
    weights = [np.array([counts[at] for at in group], float) for group in groups]
    result = replace(
        joint,
        window=header,
        steps=tuple(joint.steps[group[0]] for group in groups),
        skipped_steps=_some_skipped(joint.skipped_steps),
        thinned=Thinned(
            resolution=resolution,
            step_counts=tuple(int(weight.sum()) for weight in weights),
            num_skipped=sum(_num_skipped(part) for part in parts),
            recorded=None if recorded is None else recorded_part(recorded),
        ),
        imputed=joint.imputed and replace(joint.imputed, steps=()),
    )
    if not groups:  # no step of any window has figures
        return result
    means = _Means(groups, weights)
    times = joint.step_time_s
    simulated, ideal = means.of(times.simulated), means.of(times.ideal)
    return replace(
        result,
        step_time_s=StepTimes(
            recorded=means.of(times.recorded),
            between=means.of(times.between or ()),
            simulated=simulated,
            ideal=ideal,
        ),
        step_started_s=tuple(joint.step_started_s[group[0]] for group in groups),
        step_slowdown=tuple(
            simulated_s / ideal_s if simulated_s is not None and ideal_s else None
            for simulated_s, ideal_s in zip(simulated, ideal, strict=True)
        ),
        structures=(),
        fidelity=replace(
            joint.fidelity, step_discrepancy=means.of(joint.fidelity.step_discrepancy)
        ),
    )


def recorded_part(result: WindowResult) -> RecordedPart:
    """What a replay needs of the result of the window whose operations are stored."""
    if result.thinned is not None and result.thinned.recorded is not None:
        return result.thinned.recorded
    return RecordedPart(
        window=result.window,
        steps=result.steps,
        skipped_steps=result.skipped_steps,
        imputed=result.imputed,
    )


class ThinnedSteps(NamedTuple):
    """Successive steps, seconds a step; `last_step` is that before the next ones, or the window's.

    `started_s` is the Unix time at which the first of them started.
    """

    first_step: int
    last_step: int
    num_steps: int
    recorded_s: float | None
    simulated_s: float | None
    ideal_s: float | None
    slowdown: float | None
    started_s: float | None


def thinned_steps(result: WindowResult, last_step: int, *, max_values: int) -> list[ThinnedSteps]:
    """The steps with figures of a window that ends at `last_step`, as so many means at most."""
    numbers, counts = result.steps, step_counts(result)
    groups = _groups(len(numbers), max_values)
    weights = [np.array([counts[at] for at in group], float) for group in groups]
    means = _Means(groups, weights)
    times = result.step_time_s
    recorded, simulated, ideal = map(means.of, (times.recorded, times.simulated, times.ideal))
    started_s = result.step_started_s or (None,) * len(numbers)
    ends = [numbers[after[0]] - 1 for _, after in pairwise(groups)] + [last_step]
    found = []
    for at, group in enumerate(groups):
        without, best = simulated[at], ideal[at]
        slowdown = None if without is None or not best else without / best
        found.append(
            ThinnedSteps(
                numbers[group[0]], ends[at], int(weights[at].sum()),
                recorded[at], without, best, slowdown, started_s[group[0]],
            )
        )  # fmt: skip
    return found


class _Means:
    """Weighted means of each group of places in a list."""

    def __init__(self, groups: Sequence[range], weights: Sequence[Floats]) -> None:
        self._groups, self._weights = groups, weights

    def of(self, values: BySteps) -> BySteps:
        """A mean is over the known values, None where none is."""
        if not values:
            return (None,) * len(self._groups)
        found: list[float | None] = []
        for group, weight in zip(self._groups, self._weights, strict=True):
            part = np.array([values[at] for at in group], float)
            is_known = np.isfinite(part)
            total = weight[is_known].sum()
            found.append(float((part * weight)[is_known].sum() / total) if total else None)
        return tuple(found)


def _groups(number: int, max_values: int = MAX_VALUES) -> list[range]:
    """Successive places in as many parts of about equal length as there may be."""
    edges = np.linspace(0, number, min(number, max_values) + 1).round().astype(int).tolist()
    return [range(first, end) for first, end in pairwise(edges)]


def _num_skipped(result: WindowResult) -> int:
    listed = None if result.thinned is None else result.thinned.num_skipped
    return len(result.skipped_steps) if listed is None else listed


def _some_skipped(skipped: Sequence[SkippedStepRecord]) -> tuple[SkippedStepRecord, ...]:
    first_of = {step.reason: at for at, step in reversed(list(enumerate(skipped)))}
    kept = sorted(first_of.values())[:MAX_SKIPPED]
    others = (at for at in range(len(skipped)) if at not in set(kept))
    for at, _ in zip(others, range(MAX_SKIPPED - len(kept)), strict=False):
        kept.append(at)
    return tuple(skipped[at] for at in sorted(kept))
