"""What is known of one worker of a job in a window."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from app import words
from app.api.service import Service
from app.api.window_range import shown_result
from app.errors import NotFound, WindowNotFound
from app.store import drops, hosts, jobs
from app.trace.names import plain
from app.trace.placement import UNPLACED, Placement


class WorkerNotFound(NotFound):
    """The job has no worker of this dp rank and stage."""

    code = "worker_not_found"


@dataclass(frozen=True, slots=True)
class SeenWorker:
    """A worker, who else is where, and the window's result; empty before there is one.

    `dropped` operations of the run its recorders could not send; None where none has said.
    """

    dp_rank: int
    stage: int
    num_workers: int
    hosts: Mapping[tuple[int, int], str]
    result: Mapping[str, Any]
    dropped: int | None = None
    placement: Placement = UNPLACED

    @property
    def host(self) -> str | None:
        """Its host, where that is known."""
        return self.hosts.get((self.dp_rank, self.stage))

    @property
    def name(self) -> str:
        """What it is called: dp 3, stage 1 on host-017."""
        return words.worker(self.dp_rank, self.stage, self.hosts)

    @property
    def verdict(self) -> Literal["ok", "low"] | None:
        """How far the window's figures can be trusted."""
        return (self.result.get("fidelity") or {}).get("verdict")

    @property
    def beside(self) -> list[tuple[int, int]]:
        """The other workers of the job on its host."""
        if self.host is None:
            return []
        own = (self.dp_rank, self.stage)
        here = (each for each, name in self.hosts.items() if name == self.host)
        return sorted(each for each in here if each != own)

    def figure(self, *keys: str) -> float | None:
        """Its value in one of the result's [dp][stage] arrays; None where that is not known."""
        found: Any = self.result
        for key in keys:
            found = (found or {}).get(key)
        return None if not found else float(found[self.dp_rank][self.stage])


def seen_worker(service: Service, job_id: str, worker: str, window: str) -> SeenWorker:
    """The worker "dp-stage" of a job in a window, `latest` or several.

    Raises:
        JobNotFound, WindowNotFound, WorkerNotFound: there is none.
    """
    dp_rank, stage = (int(number) for number in worker.split("-"))
    try:
        result = shown_result(service, job_id, window)
    except WindowNotFound:
        if window != "latest":
            raise
        result = {}
    with service.store.read() as conn:
        job = jobs.get(conn, job_id)
        epoch = result["window"]["epoch"] if result else job.epoch
        sizes = jobs.run(conn, job_id, epoch).parallelism
        names = hosts.load(conn, job_id, epoch)
        dropped = drops.of_worker(conn, job_id, epoch, dp_rank, stage)
        placed = hosts.placements(conn, job_id, epoch).get((dp_rank, stage), UNPLACED)
    if dp_rank >= sizes.dp_size or stage >= sizes.pp_size:
        raise WorkerNotFound(
            f"job {plain(job_id)!r} has dp ranks 0 to {sizes.dp_size - 1} and stages 0 to "
            f"{sizes.pp_size - 1}: no dp {dp_rank}, stage {stage}"
        )
    return SeenWorker(dp_rank, stage, sizes.num_workers, names, result, dropped, placed)
