"""What workers that stop irregularly lose, and which of them are launched late by their hosts.

`allocator_stall` and `cpu_contention` tell causes of such stops apart; both repair them alike.
`rank_blocks` are the workers that share a host if ranks fill hosts one after the other.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.case import Case
from app.diagnosis.evidence.data_waits import data_waits
from app.diagnosis.evidence.interruptions import (
    ComputationEvents,
    Stalls,
    late_computations,
    long_computations,
)
from app.diagnosis.evidence.late_workers import late_hosts
from app.diagnosis.evidence.outliers import LaunchDelays
from app.diagnosis.finding import Worker
from app.trace.window import Floats, Ints

# A stopped worker's delay counts from so many times the usual one.
MIN_TIMES_USUAL = 5.0
# A worker that is launched late in this share of its computations is a late host.
MAX_SHARE_OF_COMPUTATIONS = 0.5
# GPUs of a host.
HOST_SIZES = (8, 4, 16)


@dataclass(frozen=True, slots=True)
class HeldUp:
    """Computations of chosen workers that took too long, and those that were launched late."""

    longer: ComputationEvents
    later: ComputationEvents

    @property
    def seconds_lost(self) -> float:
        """Seconds of all of them, of which others may wait for a part only."""
        return float(self.longer.excess_s.sum() + self.later.excess_s.sum())


def held_up(case: Case, chosen: NDArray[np.bool_]) -> HeldUp:
    """What the chosen workers [dp, pp] lose by stops, short ones included."""
    # A first forward that is late repeatedly waits for data.
    loads = case.cached(data_waits).waits.any()
    later = late_computations(case, lambda late: ~(late.is_first & loads), _least_s)
    later = later.where(case.is_usual[later.step])
    longer = case.cached(long_computations)
    return HeldUp(*(each.where(chosen[each.dp_rank, each.stage]) for each in (longer, later)))


def _least_s(late: LaunchDelays) -> Floats:
    return np.full(late.rows.size, MIN_TIMES_USUAL * late.usual_s)


def launched_late(case: Case, found: Stalls) -> NDArray[np.bool_]:
    """[dp, pp], late hosts that launch most of their computations late: no irregular stops."""
    hosts = np.zeros(found.is_frequent.shape, np.bool_)
    for each in case.cached(late_hosts):
        hosts[each.worker] = True
    is_regular = found.late.counts(case) >= MAX_SHARE_OF_COMPUTATIONS * found.trials
    return np.asarray(hosts & is_regular)


def rank_blocks(case: Case, stopped: NDArray[np.bool_], size: int) -> dict[str, list[Worker]]:
    """Hosts of any of these workers [dp, pp], if ranks fill hosts of so many GPUs in order.

    By the first and last global rank in words; empty where a host would have one worker.
    """
    tp_size, rank = case.parallelism.tp_size, case.replay.groups[0].grid.rank
    hit = np.isin(rank // size, rank[stopped & (rank >= 0)] // size)
    return {
        f"ranks {size * number} to {size * number + len(workers) * tp_size - 1}": workers
        for number, workers in _blocks(rank, hit, size).items()
        if len(workers) > 1
    }


def chance_of_one_host(case: Case, workers: Sequence[Worker]) -> float:
    """Probability that as many workers, drawn at random, share a host; 1.0 if these do not.

    Where hosts are unknown, blocks of successive ranks are taken for them.
    """
    by_host: dict[str, list[Worker]] = defaultdict(list)
    for worker, host in case.replay.window.hosts.items():
        by_host[host].append(worker)
    rank = case.replay.groups[0].grid.rank
    hosts = [*(by_host or _blocks(rank, rank >= 0, HOST_SIZES[0])).values()]
    if not any(set(workers) <= set(others) for others in hosts):
        return 1.0
    shared = sum(comb(len(others), len(workers)) for others in hosts)
    return float(shared / comb(case.num_workers, len(workers)))


def _blocks(rank: Ints, chosen: NDArray[np.bool_], size: int) -> dict[int, list[Worker]]:
    """The chosen workers [dp, pp] by host, if each has so many GPUs and ranks fill them."""
    found: dict[int, list[Worker]] = defaultdict(list)
    for dp_rank, stage in np.argwhere(chosen & (rank >= 0)).tolist():
        found[int(rank[dp_rank, stage]) // size].append((dp_rank, stage))
    return dict(found)
