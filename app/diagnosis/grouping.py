"""Workers that are slow together are one culprit: their host, their dp rank or their stage."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from app.diagnosis.finding import Culprit
from app.trace.job import Parallelism

Worker = tuple[int, int]  # dp rank, stage
Hosts = Mapping[Worker, str]

# Of a host's workers in the job; one that is hit too little to be seen must not hide the host.
NEARLY_ALL = 0.75


def culprits(
    workers: Iterable[Worker], hosts: Hosts, parallelism: Parallelism
) -> tuple[Culprit, ...]:
    """Who is to blame for these workers, the first of them first.

    A host with two or more of them, nearly all that the job has there; then all stages of a dp
    rank, or all dp ranks of a stage; then each worker by itself, with its host if that is known.
    """
    hit = list(dict.fromkeys(workers))
    of_host = _hosts_hit(hit, hosts)
    left = [worker for worker in hit if hosts.get(worker) not in of_host]
    groups = {worker: _group(worker, set(left), hosts, parallelism) for worker in left}
    named = (groups[worker] if worker in groups else Culprit(host=hosts[worker]) for worker in hit)
    return tuple(dict.fromkeys(named))


def of_worker(worker: Worker, hosts: Hosts) -> Culprit:
    """One worker, with its host if that is known."""
    return Culprit(*worker, hosts.get(worker))


def _hosts_hit(hit: list[Worker], hosts: Hosts) -> set[str]:
    there: dict[str, int] = defaultdict(int)
    for host in hosts.values():
        there[host] += 1
    found: dict[str, int] = defaultdict(int)
    for worker in hit:
        if worker in hosts:
            found[hosts[worker]] += 1
    return {
        host for host, count in found.items() if count >= 2 and count >= NEARLY_ALL * there[host]
    }


def _group(worker: Worker, hit: set[Worker], hosts: Hosts, sizes: Parallelism) -> Culprit:
    dp_rank, stage = worker
    if sizes.pp_size > 1 and all((dp_rank, each) in hit for each in range(sizes.pp_size)):
        return Culprit(dp_rank=dp_rank)
    if sizes.dp_size > 1 and all((each, stage) in hit for each in range(sizes.dp_size)):
        return Culprit(stage=stage)
    return of_worker(worker, hosts)
