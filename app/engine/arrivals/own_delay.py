"""Did a late member delay itself, or had others held it up? (docs/arrivals.md, "Own delay")

A stretch of a member lies between the end of its group's occurrence before and its start in this
one, by its own clock. Its own time there is the stretch without what the member waited for others
in any group, and for what it received. Own delay is own time minus the peers' median.
"""

import numpy as np

from app.engine.arrivals.occurrences import Occurrences
from app.engine.arrivals.waiting import Clock, Waits
from app.trace.window import Floats, Ints

# Peers' medians hardly change with more.
MAX_PEERS = 33


def own_time_s(found: Occurrences, waits: Waits, clock: Clock, seat: int) -> Floats:
    """[the group's occurrences, by step and order], NaN where the stretch has no known begin."""
    start_s, end_s, occurrences = waits.span_s(seat)
    step = found.step[occurrences]
    own_s = np.full(start_s.size, np.nan)
    if start_s.size < 2:
        return own_s
    # The first one of a step goes back to the last of the step before, where steps follow.
    is_known = (step[1:] == step[:-1]) | (clock.follows[step[1:]] & (step[1:] == step[:-1] + 1))
    waiting = waits.of(int(found.seat_rank[seat]))
    waited_s = waiting.until(start_s[1:]) - waiting.until(end_s[:-1])
    # Occurrences that overlap have nothing between them.
    stretch_s = np.maximum(0.0, start_s[1:] - end_s[:-1] - np.maximum(0.0, waited_s))
    own_s[1:] = np.where(is_known, stretch_s, np.nan)
    return own_s


def own_delays_s(
    found: Occurrences, waits: Waits, clock: Clock, seat: int, suspects: Ints
) -> Floats:
    """[the group's occurrences], own time minus the median of peers that are no suspects."""
    group = int(found.seat_group[seat])
    first = int(found.first_seat[group])
    seats = first + np.arange(int(found.group_size[group]))
    others = seats[seats != seat]
    peers = np.setdiff1d(others, suspects)
    if not peers.size:
        peers = others
    # Spread over the group, so that one host does not stand for all.
    chosen = peers[np.linspace(0, peers.size - 1, min(MAX_PEERS, peers.size)).astype(np.int64)]
    theirs_s = np.array([own_time_s(found, waits, clock, int(peer)) for peer in chosen])
    return np.asarray(own_time_s(found, waits, clock, seat) - np.median(theirs_s, axis=0))
