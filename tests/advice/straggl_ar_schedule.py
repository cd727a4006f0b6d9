"""The rounds of StragglAR after the last rank's arrival: who exchanges which piece with whom.

Rank n - 1 comes last. Each other rank r holds piece r of n - 1, summed over all but the last rank.
In one round each rank exchanges with at most one other, a piece each way. This is the broadcast of
n - 1 messages from one source among n ranks, whose optimum is n - 2 + log2 n rounds (Bar-Noy,
Kipnis and Schieber 2000): the ranks are in log2 n groups of 1, 2, 4, ... that hold the newest, the
second newest, ... piece. In a round the largest group, n / 2 ranks, exchanges with all others and
with the source: each younger piece then has twice as many holders, the oldest one reaches all.
"""

from typing import NamedTuple

from app.errors import InvalidRequest


class Exchange(NamedTuple):
    """Two ranks of a round, and the piece that each sends; None where it sends nothing."""

    one: int
    other: int
    one_sends: int | None
    other_sends: int | None


Round = tuple[Exchange, ...]


def straggl_ar_rounds(num_ranks: int) -> tuple[Round, ...]:
    """All n - 2 + log2 n rounds; when rank r meets the last rank, both sum piece r.

    Raises:
        InvalidRequest: n is no power of two, or 1.
    """
    if num_ranks < 2 or num_ranks & (num_ranks - 1):
        raise InvalidRequest(f"{num_ranks} ranks: this schedule is for 2, 4, 8, 16, ... ranks")
    num_groups = num_ranks.bit_length() - 1
    # Of the ranks that hold no piece yet, any are a group.
    groups = [list(range((1 << age) - 1, (2 << age) - 1)) for age in range(num_groups)]
    pieces: list[int | None] = [None] * num_groups
    unmet = set(range(num_ranks - 1))
    found = []
    for _ in range(num_ranks - 2 + num_groups):
        one_round, groups, pieces = _round(num_ranks - 1, groups, pieces, unmet)
        found.append(one_round)
    return tuple(found)


def _round(
    source: int, groups: list[list[int]], pieces: list[int | None], unmet: set[int]
) -> tuple[Round, list[list[int]], list[int | None]]:
    """One round, and groups and pieces after it; who meets the source leaves `unmet`."""
    oldest = sorted(groups[-1], key=lambda rank: rank not in unmet)
    meets = oldest.pop(0)
    is_new = meets in unmet
    # Afterwards the source sends the newest piece again.
    sent = meets if is_new else pieces[0]
    exchanges = [Exchange(source, meets, sent, meets if is_new else pieces[-1])]
    unmet.discard(meets)
    after = [[meets]]
    joined = []
    # Who has yet to meet the source joins the second oldest piece: it is here again next round.
    for group, piece in zip(groups[-2::-1], pieces[-2::-1], strict=True):
        partners, oldest = oldest[: len(group)], oldest[len(group) :]
        exchanges += [
            Exchange(one, other, piece, pieces[-1])
            for one, other in zip(group, partners, strict=True)
        ]
        joined.append(group + partners)
    kept = [each for each in exchanges if (each.one_sends, each.other_sends) != (None, None)]
    return tuple(kept), after + joined[::-1], [sent, *pieces[:-1]]
