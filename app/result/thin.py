"""One small result of successive windows, to be stored in their place when they are old.

It is the joint result of the windows, with causes, losses and figures by worker over all of their
steps. Of its lists by step at most `MAX_VALUES` values are left, each the mean of successive steps
(app.result.window_result). What is needed to replay one of the windows stays beside them.
"""

from collections.abc import Sequence
from functools import partial
from itertools import islice, pairwise
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from app.result.join import joint_result
from app.result.window_result import (
    BySteps,
    RecordedPart,
    Resolution,
    SkippedStepRecord,
    StepTimes,
    Thinned,
    WindowResult,
    step_counts,
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

    `parts` are ascending, without `per_step`, some perhaps thinned already; `recorded` is that of
    the windows whose operations stay stored.
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
    means = partial(_means, groups, weights)
    times = joint.step_time_s
    simulated, ideal = means(times.simulated), means(times.ideal)
    return replace(
        result,
        step_time_s=StepTimes(
            recorded=means(times.recorded),
            between=means(times.between or ()),
            simulated=simulated,
            ideal=ideal,
        ),
        step_started_s=tuple(joint.step_started_s[group[0]] for group in groups),
        step_slowdown=tuple(map(_ratio, simulated, ideal)),
        structures=(),
        fidelity=replace(joint.fidelity, step_discrepancy=means(joint.fidelity.step_discrepancy)),
    )


def recorded_part(result: WindowResult) -> RecordedPart:
    """What a replay needs of the result of the window whose operations are stored."""
    if result.thinned is not None and result.thinned.recorded is not None:
        return result.thinned.recorded
    return RecordedPart(**{name: getattr(result, name) for name in RecordedPart.__struct_fields__})


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
    times = result.step_time_s
    recorded, simulated, ideal = map(
        partial(_means, groups, weights), (times.recorded, times.simulated, times.ideal)
    )
    started_s = result.step_started_s or (None,) * len(numbers)
    ends = [numbers[after[0]] - 1 for _, after in pairwise(groups)] + [last_step]
    return [
        ThinnedSteps(
            first_step=numbers[group[0]],
            last_step=ends[at],
            num_steps=int(weights[at].sum()),
            recorded_s=recorded[at],
            simulated_s=simulated[at],
            ideal_s=ideal[at],
            slowdown=_ratio(simulated[at], ideal[at]),
            started_s=started_s[group[0]],
        )
        for at, group in enumerate(groups)
    ]


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def _means(groups: Sequence[range], weights: Sequence[Floats], values: BySteps) -> BySteps:
    """Weighted means of each group of places: of the known values, None where none is."""
    if not values:
        return (None,) * len(groups)
    means: list[float | None] = []
    for group, weight in zip(groups, weights, strict=True):
        part = np.array([values[at] for at in group], float)
        is_known = np.isfinite(part)
        total = weight[is_known].sum()
        means.append(float((part * weight)[is_known].sum() / total) if total else None)
    return tuple(means)


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
    kept += islice(others, MAX_SKIPPED - len(kept))
    return tuple(skipped[at] for at in sorted(kept))
