"""When did a series change, and since when is it as bad as it is now?

Bayesian online change-point detection (run_lengths.py) finds that there was a change, and it
counts where the levels before and after are known from some steps each and differ by 10 % [G]
(splits.py). A change is placed at the most likely step, not at the one in which it was noticed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from app.diagnosis import splits
from app.diagnosis.ramp import ramp
from app.diagnosis.run_lengths import predictive_table
from app.diagnosis.splits import USUAL, Demand
from app.trace.window import Floats, Ints

# Changes in one direction this close to each other are the stairs of one ramp.
MOST_BETWEEN_STAIRS = 16


@dataclass(frozen=True, slots=True)
class Change:
    """A series went from one level to another.

    `position` is the first one with other values than before, `until` the first on the new level:
    the same where it jumped, later where it rose or fell gradually. Levels are geometric means.
    """

    position: int
    before: float
    after: float
    until: int

    @property
    def ratio(self) -> float:
        """The new level, by the old one."""
        return self.after / self.before


def changes(values: Floats, demand: Demand = USUAL) -> list[Change]:
    """The changes of one series [n], ascending; values that are not known are NaN."""
    return changes_of_each(values[None], demand)[0]


def changes_of_each(values: Floats, demand: Demand = USUAL) -> list[list[Change]]:
    """The changes of each series, [series, n]; only values above 0 count as known."""
    values = np.ascontiguousarray(values, np.float64)
    logs, at = np.empty(values.shape), np.empty(values.shape, np.int64)
    found = np.empty(values.shape, np.int64)
    sizes = np.zeros((values.shape[0], 2), np.int64)
    splits.find_each(values, demand, predictive_table(values.shape[1]), logs, at, found, sizes)
    return [
        _changes(logs[row, :size], at[row, :size], found[row, :num_splits].tolist())
        if num_splits
        else []
        for row, (size, num_splits) in enumerate(sizes.tolist())
    ]


def latest_onset(course: Floats, demand: Demand = USUAL) -> Change | None:
    """Since when a series [n] has been about as high as it is at its end.

    None where it never rose, has come down since, or was as high from its beginning.
    """
    return _still_up(changes(course, demand), demand)


def latest_onset_of_each(courses: Floats) -> list[Change | None]:
    """The same of each series, [series, n]."""
    return [_still_up(each, USUAL) for each in changes_of_each(courses)]


def _still_up(found: list[Change], demand: Demand) -> Change | None:
    """The rise after which the series stayed in the upper half of its way from the lowest level."""
    if not found:
        return None
    now = found[-1].after
    low = min(min(each.before, each.after) for each in found)
    if np.log(now / low) < demand.difference / 2:
        return None
    middle = float(np.sqrt(now * low))
    return next(each for each in reversed(found) if each.before < middle)


def _changes(logs: Floats, at: Ints, jumps: list[int]) -> list[Change]:
    """Changes of one series by positions in it; `logs` and `at` are of its known values."""
    if not jumps:
        return []
    bounds = [0, *jumps, logs.size]
    level = [float(logs[first:end].mean()) for first, end in pairwise(bounds)]
    found: list[Change] = []
    for first, end in _staircases(jumps, level):
        begin = bounds[first]
        inner = [jump - begin for jump in jumps[first:end]]
        gradual = ramp(logs[begin : bounds[end + 1]], inner)
        if gradual is None:
            found += [_change(at, jump, jump, *level[i : i + 2])
                      for i, jump in enumerate(jumps[first:end], first)]  # fmt: skip
        else:
            steps = begin + gradual.begin, begin + gradual.until
            found.append(_change(at, *steps, gradual.before, gradual.after))
    return found


def _staircases(jumps: list[int], level: list[float]) -> Iterator[tuple[int, int]]:
    """Jumps in one direction and near each other, as first and end index."""
    first = 0
    for index in range(1, len(jumps) + 1):
        if index < len(jumps):
            is_up = [level[i + 1] > level[i] for i in (index - 1, index)]
            is_near = jumps[index] - jumps[index - 1] <= MOST_BETWEEN_STAIRS
            if is_near and is_up[0] == is_up[1]:
                continue
        yield first, index
        first = index


def _change(at: Ints, begin: int, until: int, before: float, after: float) -> Change:
    return Change(int(at[begin]), float(np.exp(before)), float(np.exp(after)), int(at[until]))
