"""Are links of unknown hosts slow, or only between hosts rather than within them?

The global ranks of a job fill its hosts (or its racks) one after the other, all of one size. So the
links between hosts follow from the size: those whose two ranks differ in rank // size. Where the
slow links are not those of any size, placement does not explain them.
"""

import numpy as np
from numpy.typing import NDArray

from app.trace.window import Floats, Ints

# GPUs of a host, of a board within one, of a rack with one fast network.
HOST_SIZES = (1, 2, 4, 8, 16, 32, 64, 72)
# Beyond healthy noise.
MIN_RATIO = 3.5
# Slow links are apart from the others by this ratio.
MIN_GAP = 2.5


def is_no_placement(ratio: Floats, pairs: Ints, rank: Ints) -> bool:
    """Whether some links are far slower than the others, and no size of hosts explains which.

    Args:
        ratio: [links, dp], typical transfer of each link over that of the fastest one.
        pairs: [links, 2], the stages of each link.
        rank: [dp, pp], global ranks, -1 where unknown.
    """
    is_slow: NDArray[np.bool_] = ratio >= MIN_GAP
    if is_slow.all() or not is_slow.any() or (rank < 0).any():
        return False
    if ratio[is_slow].min() < max(MIN_RATIO, MIN_GAP * float(ratio[~is_slow].max())):
        return False
    return not is_placement(is_slow, pairs, rank)


def is_placement(is_slow: NDArray[np.bool_], pairs: Ints, rank: Ints) -> bool:
    """Whether the slow links [links, dp] are just those between hosts of some size."""
    ends = rank[:, pairs]  # [dp, links, 2]
    return any(
        bool((is_slow == (ends[..., 0] // size != ends[..., 1] // size).T).all())
        for size in _sizes(rank)
    )


def _sizes(rank: Ints) -> list[int]:
    """Usual sizes of hosts, and any that the job fills evenly."""
    known = np.unique(rank)
    world_size = int(known[-1]) + (int(np.diff(known).min()) if known.size > 1 else 1)
    even = {size for size in range(1, world_size + 1) if world_size % size == 0}
    return sorted(even.union(HOST_SIZES))


def slow_block(is_slow: NDArray[np.bool_], pairs: Ints, rank: Ints) -> list[tuple[int, int]] | None:
    """Workers of the one host of unknown name whose links to all others are the slow ones.

    Hosts hold successive ranks; the smallest size that fits counts.

    Args:
        is_slow: [links, dp], slow links.
        pairs: [links, 2], the stages of each link.
        rank: [dp, pp], global ranks.

    Returns:
        (dp rank, stage) of two or more workers; None where no host explains the slow links.
    """
    ends = rank[:, pairs]
    for size in _sizes(rank):
        for host in np.unique(rank // size).tolist():
            inside = ends // size == host
            if (is_slow == (inside[..., 0] != inside[..., 1]).T).all():
                workers = [(dp, stage) for dp, stage in np.argwhere(rank // size == host).tolist()]
                return workers if len(workers) > 1 else None
    return None
