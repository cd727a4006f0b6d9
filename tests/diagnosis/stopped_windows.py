"""Recorded windows, edited so that all workers stop at one moment or between steps."""

from dataclasses import replace
from typing import Any

import numpy as np

from app.trace.window import Window

NS_PER_S = 1_000_000_000


def freeze(window: Window, step: int, at_share: float, stop_s: float) -> Window:
    """The same with every process stopped for `stop_s`, at this share of the step.

    Operations that run at that moment end later, and later ones begin later.
    """
    trace = window.trace
    start_s, duration_s = trace.start_s.copy(), trace.duration_s.copy()
    of_step = trace.step == step
    first_s = start_s[of_step].min()
    last_s = (start_s + duration_s)[of_step].max()
    at_s = first_s + at_share * (last_s - first_s)
    runs = of_step & (start_s <= at_s) & (start_s + duration_s > at_s)
    duration_s[runs] += stop_s
    start_s[of_step & (start_s > at_s)] += stop_s
    columns: dict[str, Any] = {**trace.columns(), "start_s": start_s, "duration_s": duration_s}
    moved = _later(window, [step + 1], stop_s)
    return replace(moved, trace=type(trace)(**columns))


def longer_gaps(window: Window, every: int, gap_s: float) -> Window:
    """The same with a gap before each `every`-th step."""
    return _later(window, [step for step in window.steps if step and step % every == 0], gap_s)


def _later(window: Window, before: list[int], seconds: float) -> Window:
    """From each of these steps on, everything is later by so much."""
    assert window.origin_ns is not None
    moved = tuple(
        origin_ns + round(seconds * NS_PER_S) * int(np.sum([step >= each for each in before]))
        for step, origin_ns in zip(window.steps, window.origin_ns, strict=True)
    )
    return replace(window, origin_ns=moved)
