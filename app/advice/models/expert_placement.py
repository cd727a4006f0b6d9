"""Which expert-parallel rank holds which experts: hot ones copied, the longest load placed first.

As in DeepSeek's expert-parallel load balancer: copies go one by one to the expert with the largest
load per copy, then each copy to the rank of least load with a free slot (LPT with equal counts).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from math import isfinite

from app.errors import InvalidRequest

# Numbers of copies that are tried.
_MAX_TRIED = 9


@dataclass(frozen=True, slots=True)
class ExpertPlacement:
    """Experts of each rank, and each rank's load; an expert with k copies has 1 / k in each.

    `ranks` [ranks][slots] are expert numbers, `load` [ranks] tokens, `copies` [experts].
    """

    ranks: tuple[tuple[int, ...], ...]
    load: tuple[float, ...]
    copies: tuple[int, ...]

    @property
    def imbalance(self) -> float:
        """Largest load over the mean load; 1 is even."""
        mean = sum(self.load) / len(self.load)
        return max(self.load) / mean if mean > 0 else 1.0


def in_order(loads: Sequence[float], num_ranks: int) -> ExpertPlacement:
    """The usual placement: the same number of successive experts on every rank, no copies.

    Raises:
        InvalidRequest: the experts cannot be split evenly, or a load is negative.
    """
    _check(loads, num_ranks)
    if len(loads) % num_ranks:
        raise InvalidRequest(
            f"{len(loads)} experts over {num_ranks} expert-parallel ranks: not the same number each"
        )
    size = len(loads) // num_ranks
    ranks = tuple(tuple(range(at, at + size)) for at in range(0, len(loads), size))
    return _placement(ranks, loads, (1,) * len(loads))


def balanced(loads: Sequence[float], num_ranks: int, extra_per_rank: int = 0) -> ExpertPlacement:
    """The most even placement that LPT finds, with at most `extra_per_rank` copies on each rank.

    Raises:
        InvalidRequest: the experts cannot be split evenly, or a load is negative.
    """
    usual = in_order(loads, num_ranks)
    if extra_per_rank < 0:
        raise InvalidRequest(f"{extra_per_rank} slots for copies: give 0 or more")
    num_slots, best = len(usual.ranks[0]) + extra_per_rank, usual
    # More copies are not always better: the smaller parts of the last one may fit nowhere.
    for num_extra in _some_numbers(num_ranks * extra_per_rank):
        copies = _copies(loads, num_extra, num_ranks)
        ranks = _longest_first(loads, copies, num_ranks, num_slots)
        found = _placement(ranks, loads, copies)
        if found.imbalance < best.imbalance:
            best = found
    return best


def _some_numbers(most: int) -> list[int]:
    """At most `_MAX_TRIED` numbers from 0 to `most`, evenly apart."""
    num = min(most, _MAX_TRIED - 1)
    return sorted({round(at * most / max(1, num)) for at in range(num + 1)})


def _copies(loads: Sequence[float], num_extra: int, num_ranks: int) -> tuple[int, ...]:
    """[experts], copies of each, no more than one a rank; one by one to the largest per copy."""
    copies = [1] * len(loads)
    order = [(-load, expert) for expert, load in enumerate(loads)]
    heapify(order)
    for _ in range(num_extra):
        while order and copies[order[0][1]] >= num_ranks:
            heappop(order)
        if not order:
            break
        expert = order[0][1]
        copies[expert] += 1
        heapreplace(order, (-loads[expert] / copies[expert], expert))
    return tuple(copies)


def _longest_first(
    loads: Sequence[float], copies: Sequence[int], num_ranks: int, num_slots: int
) -> tuple[tuple[int, ...], ...]:
    """Each copy to the rank of least load with a free slot and, where possible, no copy yet."""
    placed: list[list[int]] = [[] for _ in range(num_ranks)]
    total = [0.0] * num_ranks
    for expert in sorted(range(len(loads)), key=lambda each: -loads[each] / copies[each]):
        for _ in range(copies[expert]):
            free = [rank for rank in range(num_ranks) if len(placed[rank]) < num_slots]
            rank = min(free, key=lambda each: (expert in placed[each], total[each], each))
            placed[rank].append(expert)
            total[rank] += loads[expert] / copies[expert]
    return tuple(tuple(sorted(each)) for each in placed)


def _placement(
    ranks: tuple[tuple[int, ...], ...], loads: Sequence[float], copies: tuple[int, ...]
) -> ExpertPlacement:
    load = tuple(sum(loads[each] / copies[each] for each in of_rank) for of_rank in ranks)
    return ExpertPlacement(ranks, load, copies)


def _check(loads: Sequence[float], num_ranks: int) -> None:
    if num_ranks < 1 or not loads:
        raise InvalidRequest(f"{len(loads)} experts over {num_ranks} ranks: give at least 1 each")
    if any(not (isfinite(each) and each >= 0) for each in loads):
        raise InvalidRequest("an expert's load is negative or no number: give tokens, 0 or more")
