"""Repairs: durations of operations without a cause; other operations stay as recorded.

`durations_repair` replaces single operations, `delays_repair` removes launch delays,
`ShortenedComputations` divides computations of workers, `ShortenedTypes` their operations of some
types.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from app.diagnosis.case import Case
from app.diagnosis.features import Computations
from app.engine.what_if import Replayer
from app.trace.window import Floats, Ints


@dataclass(frozen=True, slots=True)
class Repaired:
    """New durations of some operations.

    Shapes: `rows` [edited rows] of the replayer's template, each once; `duration_s`
    [edited rows, lanes] with lane = dp_rank * steps + step position, own (transfer) durations.
    """

    rows: Ints
    duration_s: Floats


Repair = Callable[[Replayer], Repaired]


def repaired_parts(group: Replayer, parts: Iterable[tuple[Ints, Floats]]) -> Repaired:
    """Rows with their durations [rows, lanes], of parts of which no two have the same row."""
    rows, durations_s = [np.empty(0, np.int64)], [np.empty((0, group.grid.start_s.shape[1]))]
    for part, part_s in parts:
        rows.append(part)
        durations_s.append(part_s)
    return Repaired(np.concatenate(rows), np.concatenate(durations_s))


@dataclass(frozen=True, slots=True)
class BlamedOps:
    """Operations of a group of steps that a cause affects, each once.

    Shapes: [operations] for `row` of the template, `lane` and `seconds`, the duration without the
    cause or the launch delay due to it.
    """

    row: Ints
    lane: Ints
    seconds: Floats


# By the steps of the group.
BlamedByGroup = Mapping[tuple[int, ...], BlamedOps]


def durations_repair(by_group: BlamedByGroup) -> Repair:
    """These operations take `seconds`, all others what was recorded."""
    return lambda replayer: _repaired(replayer, by_group, replayer.durations.recorded_s)


def delays_repair(by_group: BlamedByGroup) -> Repair:
    """These operations were launched `seconds` late, all others in time."""
    return lambda replayer: _repaired(replayer, by_group, None)


def _repaired(replayer: Replayer, by_group: BlamedByGroup, else_s: Floats | None) -> Repaired:
    ops = by_group.get(replayer.steps)
    if ops is None:
        return repaired_parts(replayer, ())
    place = np.zeros(replayer.template.num_ops, np.int64)
    place[ops.row] = 1
    rows = np.flatnonzero(place)
    place[rows] = np.arange(rows.size)
    shape = (rows.size, replayer.grid.start_s.shape[1])
    duration_s = np.zeros(shape) if else_s is None else else_s[rows]
    duration_s[place[ops.row], ops.lane] = ops.seconds
    return Repaired(rows, duration_s)


# A computation so many times longer than usual holds a pause.
_PAUSE_RATIO = 3.0


@dataclass(frozen=True)
class ShortenedComputations:
    """A repair: divide forward and backward computations by factors [steps, dp, pp].

    Noise stays in. Stages with factors of 1 are not edited. `shares` are by how much an item of a
    stage has more of the factor than the stage's mean item, [items]; all have it alike without.
    """

    case: Case
    forward: Floats
    backward: Floats
    shares: Callable[[Computations, int], Floats] | None = None

    def __call__(self, group: Replayer) -> Repaired:
        """The group's computations divided by the factors."""
        return repaired_parts(group, self._parts(group))

    def _parts(self, group: Replayer) -> Iterator[tuple[Ints, Floats]]:
        features = self.case.group_of(group)
        at = features.positions
        for side, factor in ((features.forward, self.forward), (features.backward, self.backward)):
            if side is None:
                continue
            for stage in np.flatnonzero((factor[at] != 1.0).any(axis=(0, 1))).tolist():
                items, parts = np.nonzero(side.rows[stage] >= 0)
                rows = side.rows[stage][items, parts]
                lanes, usual_s = (
                    figure[:, :, stage].T.ravel() for figure in (factor[at], side.pace.mean_s)
                )
                if self.shares is not None:
                    share = self.shares(side, stage)[items][:, None]
                    # Where nothing is divided, no item is.
                    lanes, usual_s = np.where(lanes == 1.0, 1.0, lanes * share), usual_s * share
                yield rows, without_factor(group.durations.recorded_s[rows], lanes, usual_s)


def without_factor(recorded_s: Floats, factor: Floats, usual_s: Floats) -> Floats:
    """Durations divided by a factor; a pause within one is not shortened.

    Args:
        recorded_s: [rows, lanes], seconds.
        factor: slowdown, 1 = none.
        usual_s: usual seconds of such a computation, slowdown included.
    """
    shorter_s = recorded_s / factor
    has_pause = recorded_s > _PAUSE_RATIO * usual_s
    if has_pause.any():
        shorter_s = np.where(has_pause, recorded_s - usual_s * (1 - 1 / factor), shorter_s)
    return shorter_s


def stretch_slice(usual: Ints, first: int, end: int, num_steps: int) -> slice:
    """Positions in all steps of a stretch [first, end) of usual ones.

    Odd steps at either end of the window belong to a stretch that reaches it.
    """
    return slice(
        0 if first == 0 else int(usual[first]),
        num_steps if end == usual.size else int(usual[end - 1]) + 1,
    )


@dataclass(frozen=True)
class ShortenedTypes:
    """A repair: divide operations of some types, by name, by factors [steps, dp, pp].

    Stages with factors of 1 are not edited.
    """

    case: Case
    factors: Mapping[str, Floats]

    def __call__(self, group: Replayer) -> Repaired:
        """The group's operations of these types divided by their factors."""
        return repaired_parts(group, self._parts(group))

    def _parts(self, group: Replayer) -> Iterator[tuple[Ints, Floats]]:
        at, template = self.case.group_of(group).positions, group.template
        for optype, factor in self.factors.items():
            is_one = template.optype == template.op_types.codes[optype]
            for stage in np.flatnonzero((factor[at] != 1.0).any(axis=(0, 1))).tolist():
                rows = np.flatnonzero(is_one & (template.stage == stage))
                lanes = factor[at][:, :, stage].T.ravel()
                yield rows, group.durations.recorded_s[rows] / lanes


def joint_repair(*repairs: Repair) -> Repair:
    """Several repairs at once, of which no two edit the same operation."""

    def repair(replayer: Replayer) -> Repaired:
        parts = [part(replayer) for part in repairs]
        return repaired_parts(replayer, [(part.rows, part.duration_s) for part in parts])

    return repair
