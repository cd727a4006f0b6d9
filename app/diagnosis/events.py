"""Things that happened to single computations, of all groups of a window together."""

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.blamed import Blamed, Blames
from app.diagnosis.case import Case
from app.diagnosis.delays import Delays
from app.diagnosis.features import Features
from app.diagnosis.outliers import Outliers
from app.trace.window import Floats, Ints


@dataclass(frozen=True, slots=True)
class Events:
    """Computations that took too long, or were launched too late, each once.

    Shapes: all [events]. `group` is a position in `case.groups`, `step` one in `case.steps`,
    `row` and `lane` are the group's, `item` its micro-batch in a chunk, as far as it matters, else
    -1. `excess_s` is what it took too long or was late, and
    `least_s` what is left without that; `ratio` is what it took over what it should have.
    """

    group: Ints
    row: Ints
    lane: Ints
    item: Ints
    step: Ints
    dp_rank: Ints
    stage: Ints
    is_backward: NDArray[np.bool_]
    ratio: Floats
    excess_s: Floats
    least_s: Floats

    @property
    def size(self) -> int:
        """How many there are."""
        return int(self.row.size)

    def where(self, chosen: NDArray[np.bool_]) -> "Events":
        """Only some of them."""
        at = np.flatnonzero(chosen)
        if at.size == self.size:
            return self
        return Events(*(getattr(self, name)[at] for name in _NAMES))

    def counts(self, case: Case) -> Ints:
        """[dp, pp], how many each worker has."""
        found = np.zeros((case.parallelism.dp_size, case.parallelism.pp_size), np.int64)
        np.add.at(found, (self.dp_rank, self.stage), 1)
        return found

    def seconds(self, case: Case) -> Floats:
        """[steps, dp, pp], what each worker lost in each step."""
        sizes = (case.steps.size, case.parallelism.dp_size, case.parallelism.pp_size)
        found = np.zeros(sizes)
        np.add.at(found, (self.step, self.dp_rank, self.stage), self.excess_s)
        return found

    def blames(self, case: Case, seconds: Floats) -> Blames:
        """The operations by group, with `seconds` [events] for each."""
        return {
            group.steps: Blamed(self.row[mine], self.lane[mine], seconds[mine])
            for number, group in enumerate(case.groups)
            if (mine := self.group == number).any()
        }


_NAMES = tuple(each.name for each in fields(Events))

# Clocks count nanoseconds: what took 0 took less than one.
_TICK_S = 1e-9


def joined(parts: list[Events]) -> Events:
    """All of them; at least one part."""
    filled = [part for part in parts if part.size] or parts[:1]
    if len(filled) == 1:
        return filled[0]
    return Events(*(np.concatenate([getattr(part, name) for part in filled]) for name in _NAMES))


def none() -> Events:
    """No events at all."""
    place, seconds = np.empty(0, np.int64), np.empty(0)
    return Events(
        group=place,
        row=place,
        lane=place,
        item=place,
        step=place,
        dp_rank=place,
        stage=place,
        is_backward=np.empty(0, np.bool_),
        ratio=seconds,
        excess_s=seconds,
        least_s=seconds,
    )


def long_ones(case: Case) -> Events:
    """Computations that took far longer than they should have."""
    return joined(
        [_long(case, *each) for each in enumerate(zip(case.groups, case.outliers, strict=True))]
    )


def late_ones(
    case: Case,
    choose: Callable[[Delays], NDArray[np.bool_]],
    at_least_s: Callable[[Delays], Floats],
) -> Events:
    """Computations launched late, of the chosen rows of a group's delays.

    `at_least_s` [computations] is what counts as late.
    """
    return joined(
        [
            _late(case, number, group, late, choose(late), at_least_s(late))
            for number, (group, late) in enumerate(zip(case.groups, case.delays, strict=True))
        ]
    )


def _long(case: Case, number: int, of_group: tuple[Features, Outliers]) -> Events:
    group, found = of_group
    return Events(
        group=np.full(found.row.size, number),
        row=found.row,
        lane=found.lane,
        item=found.item,
        step=case.at(group)[found.step],
        dp_rank=found.dp_rank,
        stage=found.stage,
        is_backward=found.direction == 1,
        ratio=found.ratio,
        excess_s=found.excess_s,
        least_s=found.expected_s,
    )


def _late(
    case: Case,
    number: int,
    group: Features,
    late: Delays,
    chosen: NDArray[np.bool_],
    at_least_s: Floats,
) -> Events:
    at, lane = np.nonzero((late.delay_s > at_least_s[:, None]) & chosen[:, None])
    dp_rank, step = np.divmod(lane, len(group.steps))
    delay_s, row = late.delay_s[at, lane], late.rows[at]
    took_s = group.replayer.durations.recorded_s[row, lane]
    return Events(
        group=np.full(at.size, number),
        row=row,
        lane=lane,
        item=np.full(at.size, -1),
        step=case.at(group)[step],
        dp_rank=dp_rank,
        stage=late.stage[at],
        is_backward=late.is_backward[at],
        ratio=1 + delay_s / np.maximum(np.maximum(took_s, late.usual_s), _TICK_S),
        excess_s=delay_s - late.usual_s,
        least_s=np.full(at.size, late.usual_s),
    )
