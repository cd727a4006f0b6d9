"""Where a fault is, and whom one blames for it."""

from collections.abc import Iterable, Sequence

from app.diagnosis.finding import Culprit
from app.errors import InvalidRequest
from app.synth.world import Worker, World

Workers = tuple[Worker, ...]


def refuse_worker(dp_rank: int, stage: int, world: World) -> None:
    """Nothing, if the job has this worker.

    Raises:
        InvalidRequest: it has not.
    """
    refuse_outside("dp rank", dp_rank, world.parallelism.dp_size)
    refuse_outside("stage", stage, world.parallelism.pp_size)


def refuse_outside(axis: str, index: int, size: int) -> None:
    """Nothing, if 0 <= index < size.

    Raises:
        InvalidRequest: there is no such index on this axis of the job.
    """
    if not 0 <= index < size:
        raise InvalidRequest(f"the fault is on {axis} {index}: this job has 0 to {size - 1}")


def refuse_host(host: str, world: World) -> None:
    """Nothing, if some worker of the job runs on this host.

    Raises:
        InvalidRequest: none does.
    """
    if not world.workers_of_host(host):
        raise InvalidRequest(f"the fault is on {host}: this job runs on {_some(world.host_names)}")


def culprit(world: World, dp_rank: int, stage: int) -> Culprit:
    """One worker, with its host."""
    return Culprit(dp_rank, stage, world.hosts.get((dp_rank, stage)))


def culprit_hosts(world: World, hosts: Iterable[str]) -> tuple[Culprit, ...]:
    """Each host by its name, or by its worker where the job has only one there."""
    found: list[Culprit] = []
    for host in hosts:
        workers = world.workers_of_host(host)
        found.append(culprit(world, *workers[0]) if len(workers) == 1 else Culprit(host=host))
    return tuple(sorted(found, key=str))


def _some(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{names[0]}, {names[1]} .. {names[-1]}"
