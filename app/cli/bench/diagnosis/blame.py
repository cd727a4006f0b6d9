"""Culprits as the workers that they are, so that what is said can be compared with the truth."""

from collections.abc import Iterable, Mapping

from app.cli.bench.diagnosis.outcome import Worker, Workers
from app.diagnosis.finding import Culprit
from app.trace.job import Parallelism


def blamed(culprits: Iterable[Culprit], sizes: Parallelism, hosts: Mapping[Worker, str]) -> Workers:
    """All workers that are named, by whatever name; nobody where it is everybody's fault."""
    named: set[Worker] = set()
    for culprit in culprits:
        named |= {worker for worker in _all(sizes) if _is(culprit, worker, hosts)}
    return frozenset() if len(named) == sizes.num_workers else frozenset(named)


def _all(sizes: Parallelism) -> Iterable[Worker]:
    return ((d, p) for d in range(sizes.dp_size) for p in range(sizes.pp_size))


def _is(culprit: Culprit, worker: Worker, hosts: Mapping[Worker, str]) -> bool:
    dp_rank, stage = worker
    if culprit.dp_rank is not None or culprit.stage is not None:  # its host says nothing more
        return culprit.dp_rank in (None, dp_rank) and culprit.stage in (None, stage)
    return culprit.host is not None and culprit.host == hosts.get(worker)
