"""Hosts: which of them several jobs found slower than their peers, and what one was part of."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import Field

from app.api.deps import CallerDep, ServiceDep, refusals
from app.api.fields import PRINTABLE, Answer, Cursor, Limit, timestamp, timestamp_or_none
from app.api.worker_out import WorkerOut
from app.errors import NotFound
from app.store import hosts as workers_hosts
from app.store import ledger, run_hosts
from app.store.engine import Connection
from app.store.hosts import Worker
from app.store.ledger import BlamedHost, BlamedIn
from app.store.run_hosts import HostRun
from app.trace.names import plain

router = APIRouter(tags=["hosts"])

DAY_S = 86_400.0
MAX_RUNS = 200
MAX_WORKERS = 64  # of one run on one host, told by number
# Of all runs together that are looked through for them: a map of 16,384 takes some 20 ms to read.
MAX_LOOKED_THROUGH = 40_000

Days = Annotated[int, Query(ge=1, le=3650, description="How many days back.")]
HostName = Annotated[
    str,
    Path(
        max_length=255,
        pattern=PRINTABLE,
        description="As its workers say it.",
        examples=["gpu-node-7"],
    ),
]


class HostNotFound(NotFound):
    """No job of the project had a worker on a host of this name."""

    code = "host_not_found"


class BlamedHostOut(Answer):
    """A host that was the culprit in several jobs."""

    host: str
    jobs: int
    worst_slowdown: float | None = Field(description="Against the peers of its slowest worker.")
    last_seen_at: datetime
    gpu_hours_lost: float

    @classmethod
    def of(cls, blamed: BlamedHost) -> "BlamedHostOut":
        """The host as the API says it."""
        return cls(
            host=blamed.host,
            jobs=blamed.num_jobs,
            worst_slowdown=blamed.slowdown,
            last_seen_at=timestamp(blamed.last_s),
            gpu_hours_lost=blamed.gpu_s / 3600,
        )


class BlamedHostsOut(Answer):
    """A page of hosts, those that most jobs blamed first."""

    items: list[BlamedHostOut]
    next_cursor: str | None


class BlameOut(Answer):
    """When a run found the host slower than its peers, and what that cost."""

    windows: int
    first_window: str
    last_window: str
    worst_slowdown: float | None
    gpu_hours_lost: float
    last_seen_at: datetime

    @classmethod
    def of(cls, blamed: BlamedIn) -> "BlameOut":
        """The same as the API says it."""
        return cls(
            windows=blamed.num_windows,
            first_window=f"{blamed.epoch}-{blamed.first_step}",
            last_window=f"{blamed.epoch}-{blamed.last_first_step}",
            worst_slowdown=blamed.slowdown,
            gpu_hours_lost=blamed.gpu_s / 3600,
            last_seen_at=timestamp(blamed.last_s),
        )


class HostRunOut(Answer):
    """A run that had workers on the host; `blame` is null where it was never the culprit."""

    job_id: str
    epoch: int
    name: str
    began_at: datetime
    ended_at: datetime | None
    last_data_at: datetime | None
    workers: list[WorkerOut] | None = Field(
        description="The first 64; null of runs too long ago to be looked through."
    )
    num_workers: int | None
    blame: BlameOut | None


class HostOut(Answer):
    """One host: what it was part of, newest first, and when it was the culprit."""

    host: str
    jobs_blamed: int
    worst_slowdown: float | None
    gpu_hours_lost: float
    runs: list[HostRunOut] = Field(description="The 200 that began last.")


@router.get(
    "/hosts",
    operation_id="list_hosts",
    summary="List hosts that several jobs found slow",
    responses=refusals(),
)
def list_hosts(
    service: ServiceDep,
    caller: CallerDep,
    days: Days = 30,
    min_jobs: Annotated[int, Query(ge=1, le=1000, description="In so many jobs or more.")] = 2,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> BlamedHostsOut:
    """Hosts that were the culprit, those of most jobs first."""
    since_s = service.now_s() - days * DAY_S
    with service.store.read() as conn:
        found, next_cursor = ledger.hosts(
            conn, caller.project, since_s=since_s, min_jobs=min_jobs, cursor=cursor, limit=limit
        )
    items = [BlamedHostOut.of(each) for each in found]
    return BlamedHostsOut(items=items, next_cursor=next_cursor)


@router.get(
    "/hosts/{host:path}",
    operation_id="get_host",
    summary="See one host",
    responses=refusals(404),
)
def get_host(service: ServiceDep, caller: CallerDep, host: HostName) -> HostOut:
    """The runs that it was part of, and in which of their windows it was the culprit."""
    with service.store.read() as conn:
        runs = run_hosts.runs_on(conn, caller.project, host, limit=MAX_RUNS)
        if not runs:
            raise HostNotFound(f"no job of this project had a worker on host {host!r}")
        blamed = ledger.runs_of(conn, caller.project, host, since_s=0.0)
        of_run = {(each.job_id, each.epoch): each for each in blamed}
        placed = _placed(conn, host, runs)
    items = [
        _run(each, of_run.get((each.job_id, each.epoch)), workers)
        for each, workers in zip(runs, placed, strict=True)
    ]
    slowdowns = [each.slowdown for each in blamed if each.slowdown is not None]
    return HostOut(
        host=host,
        jobs_blamed=len({each.job_id for each in blamed}),
        worst_slowdown=max(slowdowns, default=None),
        gpu_hours_lost=sum(each.gpu_s for each in blamed) / 3600,
        runs=items,
    )


def _placed(conn: Connection, host: str, runs: Sequence[HostRun]) -> list[list[Worker] | None]:
    """The workers of each run on the host; None of those beyond what is looked through."""
    left = MAX_LOOKED_THROUGH
    found: list[list[Worker] | None] = []
    for run in runs:
        # The newest run is looked through however large it is: the page is about now.
        if left < run.num_workers and found:
            found.append(None)
            continue
        left -= run.num_workers
        placed = workers_hosts.load(conn, run.job_id, run.epoch)
        found.append([worker for worker, name in placed.items() if name == host])
    return found


def _run(run: HostRun, blamed: BlamedIn | None, workers: list[Worker] | None) -> HostRunOut:
    ended_s = [each for each in (run.ended_s, run.superseded_s) if each is not None]
    return HostRunOut(
        job_id=plain(run.job_id),
        epoch=run.epoch,
        name=run.name,
        began_at=timestamp(run.registered_s),
        ended_at=timestamp_or_none(min(ended_s, default=None)),
        last_data_at=timestamp_or_none(run.last_data_s),
        workers=None if workers is None else [WorkerOut.of(each) for each in workers[:MAX_WORKERS]],
        num_workers=None if workers is None else len(workers),
        blame=None if blamed is None else BlameOut.of(blamed),
    )
