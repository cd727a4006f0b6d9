"""Random tables of collectives on tp x dp layouts, with ties, gaps and missing members.

All times are multiples of 2^-16 s, so that sums are exact and ties are ties.
"""

import random
from collections.abc import Sequence

import numpy as np

from app.trace.collectives import Collectives, GroupAxis, RankGroup
from tests.engine.arrivals.reference import Row

TICK_S = 2.0**-16
LAYOUTS = [(1, 2), (1, 3), (2, 2), (4, 2), (3, 3), (2, 4), (1, 9), (1, 17), (9, 2), (4, 4)]


def groups_of(tp: int, dp: int, axis: GroupAxis = "tp") -> tuple[RankGroup, ...]:
    """Groups of neighbours along an axis, data-parallel ones across."""
    inside = [
        RankGroup(f"{axis}{at}", axis, tuple(range(at * tp, at * tp + tp)))
        for at in range(dp)
        if tp > 1
    ]
    across = [
        RankGroup(f"dp{at}", "dp", tuple(range(at, tp * dp, tp))) for at in range(tp) if dp > 1
    ]
    return (*inside, *across)


def table_of(
    rows: Sequence[Row], groups: tuple[RankGroup, ...], *, is_continuous: bool = True
) -> Collectives:
    """The rows as the engine reads them."""

    def ints(name: str) -> np.ndarray:
        return np.array([getattr(row, name) for row in rows], np.int64)

    return Collectives(
        groups,
        ("all-reduce", "all-gather"),
        ints("group"),
        ints("kind"),
        ints("step"),
        ints("sequence"),
        ints("rank"),
        np.array([row.start for row in rows], np.float64),
        np.array([row.stay for row in rows], np.float64),
        ints("num_bytes"),
        is_continuous=is_continuous,
    )


def random_rows(
    chance: random.Random,
    groups: tuple[RankGroup, ...],
    steps: Sequence[int],
    *,
    with_starts: bool = True,
    is_continuous: bool = True,
) -> list[Row]:
    """Ranks that compute and meet in their groups, some of them slow, some only now and then."""
    ranks = sorted({rank for group in groups for rank in group.ranks})
    slow = {rank: chance.choice([0, 0, 0, 0, 30, 100]) for rank in ranks}
    share_of_steps = {rank: chance.choice([1.0, 1.0, 0.5, 0.2]) for rank in ranks}
    offset = {rank: chance.randrange(1 << 16) * TICK_S for rank in ranks}
    noise, share_missing = chance.choice([0, 1, 5, 40]), chance.choice([0.0, 0.0, 0.02])
    rounds = chance.randint(1, 4)
    load = {rank: chance.choice([1.0, 1.0, 1.2, 1.6]) for rank in ranks}
    rows: list[Row] = []
    clock = dict.fromkeys(ranks, 0)
    for step in steps:
        for rank in ranks:
            clock[rank] += 20
        began = dict(clock)
        is_slow = {rank: chance.random() < share_of_steps[rank] for rank in ranks}
        for sequence in range(rounds):
            for number, group in enumerate(groups):
                of_load = {rank: load[rank] * chance.choice([0.9, 1.0, 1.0]) for rank in ranks}
                for rank in group.ranks:
                    by_load = of_load[rank] if group.axis == "ep" else 1.0
                    clock[rank] += round(50 * by_load) + chance.randint(0, noise)
                    clock[rank] += is_slow[rank] * slow[rank]
                left = max(clock[rank] for rank in group.ranks) + chance.randint(1, 20)
                for rank in group.ranks:
                    end = left + chance.choice([0, 0, 0, 1])
                    since = 0 if is_continuous else began[rank]
                    start = offset[rank] + (clock[rank] - since) * TICK_S
                    stay = (end - clock[rank]) * TICK_S
                    clock[rank] = end
                    if chance.random() >= share_missing:
                        known = start if with_starts else float("nan")
                        kind = sequence % 2
                        num_bytes = -1 if chance.random() < 0.01 else round(1e6 * of_load[rank])
                        rows.append(
                            Row(number, kind, step, sequence // 2, rank, known, stay, num_bytes)
                        )
    chance.shuffle(rows)
    return rows
