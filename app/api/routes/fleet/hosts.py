"""Hosts: all of a project, slow ones first, and the history of one host."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import Path, Query
from pydantic import Field

from app.api.http.fields import (
    PRINTABLE,
    Cursor,
    JobName,
    Limit,
    ResponseModel,
    UnixTime,
    WorkerOut,
)
from app.api.routes.dependencies import ApiRouter, CallerDep, PageOut, ServiceDep
from app.errors import NotFound
from app.store import hosts
from app.store.database import Connection
from app.store.hosts import BlamedHost, BlamingRun, HostRun, HostUse, WorkerKey

router = ApiRouter("hosts")

DAY_S = 86_400.0
MAX_RUNS = 200
MAX_WORKERS = 64  # listed workers of one run on one host
# Workers of all runs that are searched: a map of 16,384 takes some 20 ms to read.
MAX_WORKERS_SEARCHED = 40_000

Days = Annotated[int, Query(ge=1, le=3650, description="Number of days to look back.")]
HostName = Annotated[
    str,
    Path(
        max_length=255,
        pattern=PRINTABLE,
        description="Host name as the workers report it.",
        examples=["gpu-node-7"],
    ),
]


class HostNotFound(NotFound):
    """No job of the project had a worker on this host."""

    code = "host_not_found"


class ListedHostOut(ResponseModel):
    """A host of the project's jobs, and what it has cost them in the period."""

    host: str
    jobs: int = Field(
        validation_alias="num_jobs", description="Jobs in which the host was a culprit."
    )
    jobs_on_it: int = Field(description="Jobs with a worker on the host.")
    workers: int | None = Field(
        validation_alias="num_workers",
        description="Workers on the host in runs that have not ended; null if the runs are too "
        "large to be searched.",
    )
    worst_slowdown: float | None = Field(
        validation_alias="slowdown",
        description="Highest slowdown of a worker on this host, compared with its peers.",
    )
    slow_since_at: UnixTime | None = Field(
        validation_alias="first_s",
        description="When the first window of the period was analysed that found it slow; null if "
        "none did.",
    )
    last_seen_at: UnixTime | None = Field(
        validation_alias="last_s", description="The same of the last such window."
    )
    last_data_at: UnixTime | None = Field(validation_alias="last_data_s")
    gpu_hours_lost: float

    @classmethod
    def of(cls, listed: BlamedHost, use: HostUse) -> "ListedHostOut":
        """From the stored host and its use by jobs."""
        lost = listed.gpu_s / 3600
        return cls.of_record(listed, use, jobs_on_it=use.num_jobs, gpu_hours_lost=lost)


class ListedHostsOut(PageOut[ListedHostOut]):
    """A page of hosts: those that most jobs name as culprit first, then all others by name."""

    total: int = Field(description="Hosts with a job in the period.")
    total_slow: int = Field(description="Hosts that at least one job names as culprit.")


class HostBlameOut(ResponseModel):
    """Windows of a run with the host as culprit, and their cost."""

    windows: int = Field(validation_alias="num_windows")
    first_window: str
    last_window: str
    worst_slowdown: float | None = Field(validation_alias="slowdown")
    gpu_hours_lost: float
    last_seen_at: UnixTime = Field(validation_alias="last_s")

    @classmethod
    def of(cls, blamed: BlamingRun) -> "HostBlameOut":
        """From the stored entry."""
        return cls.of_record(
            blamed,
            first_window=f"{blamed.epoch}-{blamed.first_step}",
            last_window=f"{blamed.epoch}-{blamed.last_first_step}",
            gpu_hours_lost=blamed.gpu_s / 3600,
        )


class HostRunOut(ResponseModel):
    """A run with workers on the host; `blame` is null if the host was never a culprit."""

    job_id: JobName
    epoch: int
    name: str
    began_at: UnixTime = Field(validation_alias="registered_s")
    ended_at: UnixTime | None
    last_data_at: UnixTime | None = Field(validation_alias="last_data_s")
    workers: list[WorkerOut] | None = Field(
        description="The first 64 workers of the run on this host; null for runs too old to "
        "be searched."
    )
    num_workers: int | None
    blame: HostBlameOut | None


class HostOut(ResponseModel):
    """A host with its runs, newest first, and its figures as a culprit."""

    host: str
    jobs_blamed: int
    worst_slowdown: float | None
    gpu_hours_lost: float
    runs: list[HostRunOut] = Field(description="The 200 newest runs.")


@router.get("/hosts", summary="List hosts, slow ones first")
def list_hosts(
    service: ServiceDep,
    caller: CallerDep,
    days: Days = 30,
    min_jobs: Annotated[
        int,
        Query(
            ge=0,
            le=1000,
            description="Minimum number of jobs in which the host was a culprit; 0: every host.",
        ),
    ] = 0,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> ListedHostsOut:
    """Hosts of the period's jobs: by number of jobs that name them as culprit, descending.

    Of equally many, that which cost more comes first; hosts that no job names follow by name.
    """
    since_s = service.now_s() - days * DAY_S
    with service.store.read() as conn:
        blamed, next_cursor = hosts.listed_hosts(
            conn, caller.project, since_s=since_s, min_jobs=min_jobs, cursor=cursor, limit=limit
        )
        names = [listed.host for listed in blamed]
        used = hosts.uses(
            conn, caller.project, names, since_s=since_s, most_workers=MAX_WORKERS_SEARCHED
        )
        total, total_slow = hosts.count_hosts(conn, caller.project, since_s=since_s)
    items = [ListedHostOut.of(listed, used.get(listed.host, HostUse())) for listed in blamed]
    return ListedHostsOut(items=items, next_cursor=next_cursor, total=total, total_slow=total_slow)


@router.get("/hosts/{host:path}", summary="Get a host")
def get_host(service: ServiceDep, caller: CallerDep, host: HostName) -> HostOut:
    """The host's runs, and the windows in which it was the culprit."""
    with service.store.read() as conn:
        runs = hosts.runs_on(conn, caller.project, host, limit=MAX_RUNS)
        if not runs:
            raise HostNotFound(f"no job of this project had a worker on host {host!r}")
        blamed = hosts.blaming_runs(conn, caller.project, host, since_s=0.0)
        of_run = {(loss.job_id, loss.epoch): loss for loss in blamed}
        placed = _workers_on_host(conn, host, runs)
    items = [
        _host_run_out(run, of_run.get((run.job_id, run.epoch)), workers)
        for run, workers in zip(runs, placed, strict=True)
    ]
    slowdowns = [loss.slowdown for loss in blamed if loss.slowdown is not None]
    return HostOut(
        host=host,
        jobs_blamed=len({loss.job_id for loss in blamed}),
        worst_slowdown=max(slowdowns, default=None),
        gpu_hours_lost=sum(loss.gpu_s for loss in blamed) / 3600,
        runs=items,
    )


def _workers_on_host(
    conn: Connection, host: str, runs: Sequence[HostRun]
) -> list[list[WorkerKey] | None]:
    """Each run's workers on the host; None for runs beyond the search limit."""
    left = MAX_WORKERS_SEARCHED
    by_run: list[list[WorkerKey] | None] = []
    for run in runs:
        # The newest run is always searched.
        if left < run.num_workers and by_run:
            by_run.append(None)
            continue
        left -= run.num_workers
        placed = hosts.load(conn, run.job_id, run.epoch)
        by_run.append([worker for worker, name in placed.items() if name == host])
    return by_run


def _host_run_out(
    run: HostRun, blamed: BlamingRun | None, workers: list[WorkerKey] | None
) -> HostRunOut:
    ended_s = [at_s for at_s in (run.ended_s, run.superseded_s) if at_s is not None]
    shown = None if workers is None else [WorkerOut.of(worker) for worker in workers[:MAX_WORKERS]]
    return HostRunOut.of_record(
        run,
        ended_at=min(ended_s, default=None),
        workers=shown,
        num_workers=None if workers is None else len(workers),
        blame=None if blamed is None else HostBlameOut.of(blamed),
    )
