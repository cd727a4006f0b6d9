"""Ranks that come late because a rank to blame held them up: in another group, or as a sender."""

from collections.abc import Sequence

import numpy as np

from app.diagnosis.profiles.job import ProfiledJob
from app.diagnosis.profiles.late_sets import LateSets
from app.engine.arrivals.occurrences import Occurrences
from app.engine.profile.exposed import receive_waits_s
from app.trace.window import Floats, Ints

# Of what the others wait for a rank, so much has to be waiting of its own.
_MIN_SHARE = 0.5


def held_up(job: ProfiledJob, blamed: Sequence[int]) -> tuple[int, ...]:
    """Places that are late because they waited for these places, or for ones held up so.

    A rank was held up where it waits for them, in other groups and for what they send, longer than
    its peers wait there, by half of what the others wait for it.
    """
    arrivals = job.arrivals
    if arrivals is None or not blamed:
        return ()
    found, sets = arrivals.occurrences, LateSets(arrivals)
    waited_for_s = arrivals.lateness.waited_for_s.sum(axis=1)
    sent_s = receive_waits_s(job.waits)
    reached = list(blamed)
    while True:
        on_them_s = _elsewhere_s(found, sets.waited_on_s(reached)) + _received_s(
            found, sent_s, reached
        )
        new = {
            int(found.seat_rank[seat])
            for seat in np.flatnonzero(waited_for_s > 0).tolist()
            if int(found.seat_rank[seat]) not in reached
            and on_them_s[seat] - _peers(found, on_them_s, seat) >= _MIN_SHARE * waited_for_s[seat]
        }
        if not new:
            return tuple(reached[len(blamed) :])
        reached += sorted(new)


def _elsewhere_s(found: Occurrences, waited_s: Floats) -> Floats:
    """[seats], what the seat's rank waited in its other groups, in the one where most."""
    most_s = np.zeros(waited_s.size)
    for place in np.unique(found.seat_rank).tolist():
        seats = np.flatnonzero(found.seat_rank == place)
        if seats.size < 2:
            continue
        for seat in seats.tolist():
            most_s[seat] = waited_s[seats[seats != seat]].max()
    return most_s


def _received_s(
    found: Occurrences, sent_s: dict[tuple[int, int], float], senders: Sequence[int]
) -> Floats:
    """[seats], what the seat's rank waited for these places to send."""
    ranks = {found.places[place].rank for place in senders}
    by_rank: dict[int, float] = {}
    for (sender, receiver), waited_s in sent_s.items():
        if sender in ranks:
            by_rank[receiver] = by_rank.get(receiver, 0.0) + waited_s
    return np.array([by_rank.get(found.places[place].rank, 0.0) for place in found.seat_rank])


def _peers(found: Occurrences, of_seats: Floats, seat: int) -> float:
    """The median of the group's other members."""
    group = int(found.seat_group[seat])
    first, size = int(found.first_seat[group]), int(found.group_size[group])
    seats: Ints = first + np.arange(size)
    return float(np.median(of_seats[seats[seats != seat]]))
