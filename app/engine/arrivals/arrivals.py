"""Arrivals of one window: lateness of every occurrence, waits of every rank, and who is to blame.

Read first: `arrivals_of` for a window that is replayed, `arrivals_in` for a table alone. Next come
occurrences.py, lateness.py, own_delay.py and blame.py, in the order in which they run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from app.engine.arrivals.blame import LateRank, late_ranks
from app.engine.arrivals.lateness import Lateness, filled, lateness
from app.engine.arrivals.occurrences import Occurrences, of_collectives, of_replay
from app.engine.arrivals.waiting import Waits, clock_of, clock_of_table
from app.trace.collectives import Collectives, RankPlace
from app.trace.window import Floats, Ints

if TYPE_CHECKING:
    from app.engine.replays import WindowReplay


@dataclass(frozen=True)
class Arrivals:
    """What a window's collectives say; `step_s` [steps] is how long its steps took, seconds.

    `late` has every rank that was late far more often than by chance and by much, culprits first.
    """

    occurrences: Occurrences
    lateness: Lateness
    waits: Waits
    late: tuple[LateRank, ...]
    step_s: Floats

    @property
    def culprits(self) -> list[LateRank]:
        """Ranks that all conditions of blame hold for, most waited for first."""
        return [each for each in self.late if each.is_culprit]

    @property
    def places(self) -> tuple[RankPlace, ...]:
        """Every rank that is a member of some group."""
        return self.occurrences.places

    @cached_property
    def waited_for_s(self) -> Floats:
        """[places, steps], what others waited for a rank in the group where it was most."""
        return self._largest(self.lateness.waited_for_s)

    @cached_property
    def waited_s(self) -> Floats:
        """[places, steps], what a rank waited for others in the group where it was most."""
        return self._largest(self.lateness.waited_s)

    @cached_property
    def lost_s(self) -> Floats:
        """[steps], what was waited for late sets in the group where that was most."""
        return np.asarray(self.lateness.lost_s.max(axis=0))

    @property
    def waiting_share(self) -> float:
        """Share of the ranks' time that they waited for later ones."""
        return float(self.waited_s[self._in_groups].mean() / self.step_s.mean())

    @property
    def largest_share(self) -> float:
        """Share of the step that was waited for the one rank waited for most."""
        return float(self.waited_for_s.mean(axis=1).max(initial=0.0) / self.step_s.mean())

    @cached_property
    def late_share(self) -> Floats:
        """[places], share of a rank's occurrences in which it was in the late set."""
        of_seat = np.bincount(
            self.occurrences.seat_rank, self.lateness.late.sum(axis=1), len(self.places)
        )
        num = self.lateness.num_occurrences.sum(axis=1)[self.occurrences.seat_group]
        total = np.bincount(self.occurrences.seat_rank, num, len(self.places))
        return np.asarray(of_seat / np.maximum(total, 1))

    def lost_without_s(self, explained: Sequence[int]) -> Floats:
        """[groups, steps], what was waited for late sets that have none of these places."""
        found = self.occurrences
        is_explained = np.zeros(len(self.places), np.bool_)
        is_explained[list(explained)] = True
        lost_s = np.zeros_like(self.lateness.lost_s)
        size = found.group_size[found.group]
        seat = np.repeat(found.first_seat[found.group] - found.first_row, size)
        mine = is_explained[found.seat_rank[seat + np.arange(found.stay_s.size)]]
        ours = np.add.reduceat(mine & self.lateness.is_late, found.first_row) > 0
        np.add.at(lost_s, (found.group[~ours], found.step[~ours]), self.lateness.late_wait_s[~ours])
        return filled(lost_s, self.lateness.is_recorded(found))

    @cached_property
    def _in_groups(self) -> Ints:
        return np.unique(self.occurrences.seat_rank)

    def _largest(self, of_seats: Floats) -> Floats:
        largest = np.zeros((len(self.places), of_seats.shape[1]))
        np.maximum.at(largest, self.occurrences.seat_rank, of_seats)
        return largest


def arrivals_of(replay: WindowReplay, step_s: Floats) -> Arrivals | None:
    """Arrivals of a window's steps; None where no collective has several members."""
    found = of_replay(replay)
    if found is None or not step_s.mean() > 0:
        return None
    late, clock = lateness(found).in_all_steps(found), clock_of(replay)
    waits = Waits(found, late, clock, replay)
    return Arrivals(
        found, late, waits, tuple(late_ranks(found, late, waits, clock, step_s)), step_s
    )


def arrivals_in(
    table: Collectives,
    steps: Sequence[int],
    step_s: Floats,
    receives: Mapping[int, tuple[Floats, Floats]] | None = None,
) -> Arrivals | None:
    """Arrivals of a table alone.

    `receives` are intervals (start, end) [receives] in which a rank waited for what it received,
    by global rank and the table's clock of that rank. None where no occurrence is complete.
    """
    found = of_collectives(table, steps)
    if found is None or not step_s.mean() > 0:
        return None
    late = lateness(found)
    clock = clock_of_table(found, is_continuous=table.is_continuous)
    index = {place.rank: at for at, place in enumerate(found.places)}
    by_place = {index[rank]: each for rank, each in (receives or {}).items() if rank in index}
    waits = Waits(found, late, clock, receives=by_place)
    return Arrivals(
        found, late, waits, tuple(late_ranks(found, late, waits, clock, step_s)), step_s
    )
