"""Which faults each job of the grid has: every kind in turn, and every fourth job has two."""

from itertools import combinations

import numpy as np

from app.cli.bench.diagnosis.kinds import KINDS, Kind

_A_ROUND = 4  # so many jobs, the last one with two faults


def kinds_of(index: int) -> tuple[Kind, ...]:
    """The kinds of fault of the `index`-th faulty job."""
    turn, place = divmod(index, _A_ROUND)
    if place == _A_ROUND - 1:
        pairs = _pairs()
        return pairs[turn % len(pairs)]
    return (KINDS[(turn * (_A_ROUND - 1) + place) % len(KINDS)],)


def _pairs() -> list[tuple[Kind, Kind]]:
    """All pairs of different causes, in an order that is the same for ever."""
    alone = [kind for kind in KINDS if not kind.is_alone]
    pairs = [(a, b) for a, b in combinations(alone, 2) if a.cause != b.cause]
    order = np.random.default_rng(5).permutation(len(pairs))
    return [pairs[position] for position in order]
