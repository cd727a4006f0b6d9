"""How many steps a value of a result's lists by step stands for: one, or several once thinned.

A thinned result (app.result.thin) has fewer values than steps: each is the mean of
successive ones, `thinned.step_counts` has their numbers, and `steps` the first of each.
"""

from collections.abc import Sequence
from typing import Literal

from app.result.window_result import Resolution, WindowResult

StepTimeName = Literal["recorded", "simulated", "ideal"]


def resolution_of(result: WindowResult) -> Resolution:
    """What each figure of the result is of."""
    return "step" if result.thinned is None else result.thinned.resolution


def step_counts(result: WindowResult) -> Sequence[int]:
    """[len(steps)] steps that each of `steps` stands for."""
    counts = None if result.thinned is None else result.thinned.step_counts
    return (1,) * len(result.steps) if counts is None else counts


def num_steps(result: WindowResult) -> int:
    """Steps with figures."""
    return sum(step_counts(result))


def total_s(result: WindowResult, name: StepTimeName) -> float:
    """Seconds that all steps took together."""
    times: Sequence[float] = getattr(result.step_time_s, name)
    counts = None if result.thinned is None else result.thinned.step_counts
    if counts is None:
        return float(sum(times))
    return float(sum(time_s * count for time_s, count in zip(times, counts, strict=True)))


def mean_s(result: WindowResult, name: StepTimeName) -> float:
    """Mean seconds of a step."""
    return total_s(result, name) / num_steps(result)
