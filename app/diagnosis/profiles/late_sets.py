"""Waits by who was late: what was waited for some ranks, and what these held up."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from app.engine.arrivals.arrivals import Arrivals
from app.trace.window import Floats, Ints


class LateSets:
    """The late sets of all occurrences, by seat (a member of a group) and place (a rank)."""

    def __init__(self, arrivals: Arrivals) -> None:
        self._found = arrivals.occurrences
        self._late = arrivals.lateness

    def waited_for_alone_s(self, seat: int, others: Sequence[int]) -> Floats:
        """[steps], what was waited for late sets with this seat and none of these places."""
        is_mine = self._has_late(self._seat_of_row == seat) & ~self._with(others)
        total_s = np.zeros(len(self._found.steps))
        np.add.at(total_s, self._found.step[is_mine], self._late.late_wait_s[is_mine])
        return total_s

    def waited_on_s(self, places: Sequence[int]) -> Floats:
        """[seats], what each waited, over all steps, where one of these places was late."""
        found = self._found
        is_theirs = self._with(places)[self._occurrence_of_row] & ~self._late.is_late
        waited_s = found.stay_s - self._late.transfer_s[self._occurrence_of_row]
        return np.bincount(
            self._seat_of_row[is_theirs], waited_s[is_theirs], found.seat_rank.size
        ).astype(np.float64)

    def _with(self, places: Sequence[int]) -> NDArray[np.bool_]:
        """[occurrences], whether one of these places is in the late set."""
        is_named = np.zeros(len(self._found.places), np.bool_)
        is_named[list(places)] = True
        return self._has_late(is_named[self._found.seat_rank[self._seat_of_row]])

    def _has_late(self, rows: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """[occurrences], whether one of these rows is in the late set."""
        return np.asarray(np.logical_or.reduceat(rows & self._late.is_late, self._found.first_row))

    @cached_property
    def _occurrence_of_row(self) -> Ints:
        sizes = self._found.group_size[self._found.group]
        return np.repeat(np.arange(sizes.size), sizes)

    @cached_property
    def _seat_of_row(self) -> Ints:
        at = self._occurrence_of_row
        member = np.arange(at.size) - self._found.first_row[at]
        return self._found.first_seat[self._found.group[at]] + member
