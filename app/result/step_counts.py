"""How many steps a value of a result's lists by step stands for: one, or several once thinned.

A thinned result (app.result.thin) has fewer values than steps: each is the mean of
successive ones, `thinned.step_counts` has their numbers, and `steps` the first of each.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

Result = Mapping[str, Any]

# From the finest to the coarsest: what the figures that change over time are means of.
Resolution = Literal["step", "window", "hour", "day"]
RESOLUTIONS: tuple[Resolution, ...] = ("step", "window", "hour", "day")


def resolution_of(result: Result) -> Resolution:
    """What each figure of the result is of."""
    found: Resolution = (result.get("thinned") or {}).get("resolution", "step")
    return found


def step_counts(result: Result) -> Sequence[int]:
    """[len(steps)] steps that each of `steps` stands for."""
    counts: Sequence[int] | None = (result.get("thinned") or {}).get("step_counts")
    return [1] * len(result["steps"]) if counts is None else counts


def num_steps(result: Result) -> int:
    """Steps with figures."""
    return sum(step_counts(result))


def total_s(result: Result, name: str) -> float:
    """Seconds that all steps took together; `name` is a key of `step_time_s`."""
    times: Sequence[float] = result["step_time_s"][name]
    counts: Iterable[int] | None = (result.get("thinned") or {}).get("step_counts")
    if counts is None:
        return float(sum(times))
    return float(sum(time_s * count for time_s, count in zip(times, counts, strict=True)))


def mean_s(result: Result, name: str) -> float:
    """Mean seconds of a step; `name` is a key of `step_time_s`."""
    return total_s(result, name) / num_steps(result)
