"""The culprits of some workers, and how scores and confidences are computed."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from app.result.finding import Culprit
from app.trace.job import Parallelism
from app.trace.window import Floats, Ints

# Below this score a cause is not named.
MIN_SCORE = 0.5


Worker = tuple[int, int]  # dp rank, stage
Hosts = Mapping[Worker, str]

# A fault of the host itself, its network card or CPUs, shows in this share of its workers.
MIN_SHARE_OF_HOST = 0.75


def group_culprits(
    workers: Iterable[Worker], hosts: Hosts, parallelism: Parallelism
) -> tuple[Culprit, ...]:
    """Culprits of these workers, in their order: hosts, then dp ranks or stages, then workers.

    A host needs two workers and all that it has in the job, as one that is not affected would be
    blamed with the others; a dp rank needs all stages, a stage all dp ranks.
    """
    return tuple(dict.fromkeys(culprit_of_each(workers, hosts, parallelism).values()))


def culprit_of_each(
    workers: Iterable[Worker], hosts: Hosts, parallelism: Parallelism
) -> dict[Worker, Culprit]:
    """The culprit of `group_culprits` to which each of these workers belongs, in their order."""
    hit = list(dict.fromkeys(workers))
    of_host = _hosts_hit(hit, hosts)
    left = {worker for worker in hit if hosts.get(worker) not in of_host}
    return {
        worker: _group(worker, left, hosts, parallelism)
        if worker in left
        else Culprit(host=hosts[worker])
        for worker in hit
    }


def with_ranks(
    culprit: Culprit,
    workers: Sequence[Worker],
    rank_of: Ints,
    sizes: Parallelism,
    *,
    is_whole: bool = False,
) -> Culprit:
    """The culprit with the global ranks of its workers, where it is one worker or a host.

    Args:
        culprit: one that knows its rank already keeps it.
        workers: what it consists of; empty for a dp rank or a stage.
        rank_of: [dp, pp], the rank that each worker reported, below 0 where none did.
        sizes: of the job: the tensor-parallel ranks of a worker in the usual order are known.
        is_whole: whether all workers of a host are affected.
    """
    if culprit.rank is not None:
        return replace(culprit, ranks=culprit.ranks or (culprit.rank,))
    if (culprit.dp_rank is None) is not (culprit.stage is None):  # a dp rank or a stage
        return culprit
    ranks = sorted(
        rank for worker in workers for rank in _ranks_of(worker, int(rank_of[worker]), sizes)
    )
    if not ranks:
        return culprit
    if culprit.dp_rank is None:
        # A host has no rank of its own: `rank` would be that of one worker.
        return replace(culprit, ranks=tuple(ranks), num_workers=len(workers) if is_whole else None)
    return replace(culprit, rank=ranks[0], ranks=tuple(ranks))


def _ranks_of(worker: Worker, rank: int, sizes: Parallelism) -> Sequence[int]:
    """Global ranks of a worker; in another order than the usual one only that which reported."""
    if rank < 0:
        return ()
    if rank != sizes.usual_rank(*worker):
        return (rank,)
    return range(rank, rank + sizes.tp_size * sizes.dsp_size)


def worker_culprit(worker: Worker, hosts: Hosts) -> Culprit:
    """One worker, with its host where known."""
    return Culprit(*worker, hosts.get(worker))


def _hosts_hit(hit: list[Worker], hosts: Hosts) -> set[str]:
    there = Counter(hosts.values())
    counts = Counter(hosts[worker] for worker in hit if worker in hosts)
    return {host for host, count in counts.items() if 2 <= count == there[host]}


def _group(worker: Worker, hit: set[Worker], hosts: Hosts, sizes: Parallelism) -> Culprit:
    dp_rank, stage = worker
    if sizes.pp_size > 1 and hit.issuperset((dp_rank, other) for other in range(sizes.pp_size)):
        return Culprit(dp_rank=dp_rank)
    if sizes.dp_size > 1 and hit.issuperset((other, stage) for other in range(sizes.dp_size)):
        return Culprit(stage=stage)
    return worker_culprit(worker, hosts)


def score(figure: float, limit: float, certain: float) -> float:
    """0..1 for a ratio: 0 at 1, 0.5 at the limit, 1 from `certain` on."""
    return float(scores(np.array([figure]), limit, certain)[0])


def scores(figures: Floats, limit: float | Floats, certain: float | Floats) -> Floats:
    """`score` of each of many ratios."""
    below = MIN_SCORE * np.maximum(figures - 1, 0.0) / (limit - 1)
    beyond = np.log(np.maximum(figures, limit) / limit) / np.log(certain / limit)
    above = np.minimum(1.0, MIN_SCORE + (1 - MIN_SCORE) * beyond)
    return np.where(figures < limit, below, above)


def confidence(standard_errors: float, needed: float) -> float:
    """0.5..0.99, by the standard errors shown and those needed."""
    beyond = max(0.0, standard_errors / needed - 1)
    return float(0.99 - 0.49 * np.exp(-1.5 * beyond))
