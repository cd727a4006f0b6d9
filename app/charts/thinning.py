"""A step axis over more steps than can be drawn: the slowest of each few stands for them all."""

from collections.abc import Sequence
from itertools import pairwise

from app.charts.step_axis import StepAxis

# Points of a line 650 px wide.
MAX_POINTS = 600
# Further than that, each point means another window to be read for the charts by worker.
MAX_READ = 240
_FEW_STEPS = 8 * MAX_READ

Timed = tuple[int, float]  # step, seconds


def thinned(steps: Sequence[Timed]) -> StepAxis:
    """The axis over ascending steps and their times; none is drawn for steps across a gap."""
    most = MAX_POINTS if len(steps) <= _FEW_STEPS else MAX_READ
    if len(steps) <= most:
        return StepAxis.over([step for step, _ in steps])
    runs = _runs(steps)
    if len(runs) > most // 2:
        runs = [list(steps)]  # broken up so much that gaps cannot be shown
    size = -(-len(steps) // most)
    while sum(-(-len(run) // size) for run in runs) > most:
        size += 1
    groups = [run[at : at + size] for run in runs for at in range(0, len(run), size)]
    return StepAxis.over(
        [max(group, key=lambda each: each[1])[0] for group in groups],
        [(group[0][0], group[-1][0]) for group in groups],
    )


def _runs(steps: Sequence[Timed]) -> list[list[Timed]]:
    runs: list[list[Timed]] = [[steps[0]]]
    for before, after in pairwise(steps):
        if after[0] - before[0] > 1:
            runs.append([])
        runs[-1].append(after)
    return runs
