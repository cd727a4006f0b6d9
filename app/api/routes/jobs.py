"""Jobs: register them, end them, see how they are doing."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Response
from pydantic import Field

from app.api.deps import OF_BODIES, CallerDep, JobKey, ServiceDep, refusals
from app.api.fields import (
    Answer,
    Cursor,
    Label,
    Limit,
    Request,
    SomeText,
    Text,
    timestamp,
    timestamp_or_none,
)
from app.api.job_now import silent_workers
from app.api.job_state import JobState, job_state
from app.api.op_types import OpTypeIn, OpTypeOut, checked, shown
from app.api.recording_out import RecordingOut, ToldPlanOut
from app.api.recording_plans import told
from app.api.routes.windows import WindowSummaryOut
from app.api.service import Service
from app.api.worker_out import WorkerOut
from app.engine.metrics import gpu_time_wasted
from app.errors import InvalidRequest
from app.ingest.wire import EXTENSIONS
from app.store import jobs, recordings, registering, shards
from app.store.counts import Counts
from app.store.drops import Drops
from app.store.engine import Connection
from app.store.jobs import JobRecord
from app.store.registering import Registration
from app.trace.job import MAX_STAGES, Parallelism
from app.trace.names import plain
from app.trace.ops import MAX_USER_TYPES

router = APIRouter(tags=["jobs"])

MAX_WORKERS = 131_072
MAX_GPUS = 10_000_000
MAX_SILENT_RANKS = 100  # told by number

Size = Annotated[int, Field(ge=1, le=MAX_WORKERS)]


class ParallelismIn(Request):
    """Sizes of the parallel axes."""

    dp_size: Size
    pp_size: Annotated[int, Field(ge=1, le=MAX_STAGES)]
    tp_size: Size = 1
    vpp_size: Annotated[int, Field(ge=1, le=1024)] = 1
    dsp_size: Size = 1
    ep_size: Size = Field(
        1, description="Successive dp ranks that share their experts; divides dp_size."
    )

    def checked(self) -> Parallelism:
        """The sizes, if a job of that many workers is taken here."""
        sizes = Parallelism(**self.model_dump())
        if sizes.num_workers > MAX_WORKERS or sizes.world_size > MAX_GPUS:
            raise InvalidRequest(
                f"{sizes.num_workers} workers on {sizes.world_size} GPUs are too many: "
                f"at most {MAX_WORKERS} on {MAX_GPUS}"
            )
        return sizes


class JobIn(Request):
    """A job as its ranks register it, all with the same run_key."""

    name: Text | None = Field(None, description="For display; the job id if left out.")
    parallelism: ParallelismIn
    gpus: int | None = Field(None, ge=1, le=MAX_GPUS, description="World size if left out.")
    framework: Label | None = Field(None, examples=["megatron-lm"])
    labels: dict[Label, Text] = Field(default_factory=dict, max_length=32)
    op_types: list[OpTypeIn] = Field(
        default_factory=list,
        max_length=MAX_USER_TYPES,
        description="Operation types that the job records beside the built-in ones.",
        examples=[[{"name": "moe-all-to-all", "kind": "collective", "axis": "ep"}]],
    )
    run_key: SomeText = Field(
        description="Equal on all ranks of one run, new after a restart.",
        examples=["launch-4711-0"],
    )

    def registration(self, job_id: str) -> Registration:
        """What the store keeps."""
        parallelism = self.parallelism.checked()
        return Registration(
            name=self.name or job_id,
            parallelism=parallelism,
            num_gpus=self.gpus or parallelism.world_size,
            framework=self.framework,
            labels=dict(self.labels),
            run_key=self.run_key,
            op_types=checked(self.op_types),
        )


class RegisteredOut(Answer):
    """The run's epoch, which every batch names, and what its batches may have and are to have."""

    job_id: str
    epoch: int
    accepts: list[str] = Field(
        description="Extensions of wire format 1 that a batch may use: docs/wire-format.md.",
        examples=[list(EXTENSIONS)],
    )
    recording: ToldPlanOut | None = Field(
        description="Which steps to record; null: all, until an answer to a batch says other."
    )


class ParallelismOut(Answer):
    """Sizes of the parallel axes, and the number of ranks."""

    dp_size: int
    pp_size: int
    tp_size: int
    vpp_size: int
    dsp_size: int
    ep_size: int
    world_size: int


class ConflictOut(Answer):
    """A batch that came again with another content."""

    rank: int
    batch_seq: int


class InGroupsOut(Answer):
    """What became of collectives inside groups."""

    accepted: int
    duplicate: int = Field(description="In a batch that came twice.")
    late: int = Field(description="Of a window that had been closed for too long.")
    refused: int = Field(description="Too many of a rank in a step, or of all in memory.")


class IngestOut(Answer):
    """What became of the operations of the present run that were taken from the queue."""

    accepted: int
    duplicate: int
    conflict: int
    late: int
    dead: int
    lost_batches: int = Field(description="Skipped by their worker's later ones; never came.")
    last_conflict: ConflictOut | None
    in_groups: InGroupsOut | None = Field(
        description="Collectives inside groups; null where none came."
    )

    @classmethod
    def of(cls, counts: Counts) -> "IngestOut":
        """The counts as the API says them."""
        numbers = {name: getattr(counts, name) for name in cls.model_fields}
        return cls(**numbers | {"last_conflict": _conflict_out(counts.last_conflict)})


def _conflict_out(sample: dict[str, Any] | None) -> ConflictOut | None:
    if sample is None:
        return None
    return ConflictOut(rank=sample["rank"], batch_seq=sample["batch_seq"])


class WorkerDropsOut(WorkerOut):
    """Operations that a worker's recorders have dropped."""

    dropped: int


class DropsOut(Answer):
    """Operations of the present run that recorders have dropped and never sent."""

    total: int
    num_workers: int = Field(description="Workers that dropped any.")
    worst: list[WorkerDropsOut] = Field(description="The eight that dropped most.")

    @classmethod
    def of(cls, drops: Drops) -> "DropsOut":
        """The sums as the API says them."""
        worst = [WorkerDropsOut(**each._asdict()) for each in drops.worst]
        return cls(total=drops.total, num_workers=drops.num_workers, worst=worst)


class JobOut(Answer):
    """A job and how it is doing; unknown is null."""

    job_id: str
    name: str
    parallelism: ParallelismOut
    gpus: int
    framework: str | None
    labels: dict[str, str]
    op_types: list[OpTypeOut]
    epoch: int
    state: JobState
    registered_at: datetime
    ended_at: datetime | None
    last_data_at: datetime | None
    last_step: int | None
    silent_ranks: list[int] = Field(
        description="The first 100 ranks of which nothing comes while others go on."
    )
    num_silent_ranks: int
    silent_workers: list[WorkerOut] = Field(description="Of these ranks, in the same order.")
    num_silent_workers: int = Field(description="Fewer than ranks where several record one.")
    silent_since: datetime | None
    stalled_since: datetime | None = Field(description="Since when nothing comes of any rank.")
    ingest: IngestOut | None = Field(description="Null before the first operation was taken.")
    drops: DropsOut | None = Field(description="Null where no recorder has said.")
    recording: RecordingOut
    window_steps: int
    slowdown: float | None
    gpu_time_wasted: float | None
    latest_window: WindowSummaryOut | None


class JobsOut(Answer):
    """A page of jobs, by id."""

    items: list[JobOut]
    next_cursor: str | None


def job_out(job: JobRecord, service: Service, *, is_watched: bool) -> JobOut:
    """The job as the API says it; `is_watched` while any consumer is alive."""
    window = job.latest
    silent_ranks = job.silent_ranks or ()
    now_s, thresholds = service.now_s(), service.thresholds
    slowdown = window.slowdown if window else None
    sizes = job.parallelism
    return JobOut(
        job_id=plain(job.job_id),
        name=job.name,
        parallelism=ParallelismOut(
            **{name: getattr(sizes, name) for name in ParallelismOut.model_fields}
        ),
        gpus=job.num_gpus,
        framework=job.framework,
        labels=job.labels,
        op_types=shown(job.op_types),
        epoch=job.epoch,
        state=job_state(job, now_s=now_s, thresholds=thresholds, is_watched=is_watched),
        registered_at=timestamp(job.registered_s),
        ended_at=timestamp_or_none(job.ended_s),
        last_data_at=timestamp_or_none(job.last_data_s),
        last_step=job.last_step,
        silent_ranks=list(silent_ranks[:MAX_SILENT_RANKS]),
        num_silent_ranks=len(silent_ranks),
        num_silent_workers=len({*silent_workers(job)}),
        silent_workers=[WorkerOut.of(each) for each in silent_workers(job)[:MAX_SILENT_RANKS]],
        silent_since=timestamp_or_none(job.silent_since_s),
        stalled_since=timestamp_or_none(job.stalled_since_s),
        ingest=None if job.counts is None else IngestOut.of(job.counts),
        drops=None if job.drops is None else DropsOut.of(job.drops),
        recording=RecordingOut.of(job),
        window_steps=service.window_steps,
        slowdown=slowdown,
        gpu_time_wasted=None if slowdown is None else gpu_time_wasted(slowdown),
        latest_window=WindowSummaryOut.of(window) if window else None,
    )


def jobs_out(service: Service, project: str, cursor: str | None, limit: int) -> JobsOut:
    """A page of a project's jobs as the API says it."""
    with service.store.read() as conn:
        records, next_cursor = jobs.page(conn, project=project, cursor=cursor, limit=limit)
        is_watched = _is_watched(conn, service)
    items = [job_out(job, service, is_watched=is_watched) for job in records]
    return JobsOut(items=items, next_cursor=next_cursor)


@router.put(
    "/jobs/{job_id}",
    operation_id="register_job",
    summary="Register a run of a job",
    status_code=200,
    responses={
        201: {"description": "A new run.", "model": RegisteredOut},
        **refusals(404, 409, *OF_BODIES),
    },
)
def register_job(
    job_id: JobKey, job: JobIn, response: Response, service: ServiceDep
) -> RegisteredOut:
    """Idempotent: the same run_key gets the same epoch. A new run_key begins a new epoch."""
    registration = job.registration(plain(job_id))
    with service.store.write() as conn:
        now_s = service.now_s()
        registered = registering.register(
            conn, job_id, registration, now_s=now_s, most_active=service.max_jobs
        )
        # Leases are in the database's time, which may not be this machine's.
        at_s = service.database_time(conn)
        accepts = shards.known_to_all(conn, EXTENSIONS, now_s=at_s)
        plans = recordings.in_run(recordings.of_job(conn, job_id), registered.epoch)
    _changed(service, job_id)
    plan = told(plans, None)
    response.status_code = 201 if registered.created else 200
    return RegisteredOut(
        job_id=plain(job_id),
        epoch=registered.epoch,
        accepts=accepts,
        recording=None if plan is None else ToldPlanOut(**plan),
    )


@router.post(
    "/jobs/{job_id}/end",
    operation_id="end_job",
    summary="Say that a job has finished",
    responses=refusals(404, *OF_BODIES),
)
def end_job(job_id: JobKey, service: ServiceDep) -> JobOut:
    """A finished job is never called silent. Saying it twice changes nothing.

    What its other ranks are still sending is taken for ten minutes, or as long as closed windows
    are revised where that is longer; it raises no alert.
    """
    with service.store.write() as conn:
        jobs.end(conn, job_id, now_s=service.now_s())
        job = jobs.get(conn, job_id)
        is_watched = _is_watched(conn, service)
    _changed(service, job_id)
    return job_out(job, service, is_watched=is_watched)


@router.get(
    "/jobs",
    operation_id="list_jobs",
    summary="List jobs",
    responses=refusals(),
)
def list_jobs(
    service: ServiceDep, caller: CallerDep, cursor: Cursor = None, limit: Limit = 100
) -> JobsOut:
    """The project's jobs by id, a page at a time."""
    return jobs_out(service, caller.project, cursor, limit)


@router.get(
    "/jobs/{job_id}",
    operation_id="get_job",
    summary="See one job",
    responses=refusals(404),
)
def get_job(job_id: JobKey, service: ServiceDep) -> JobOut:
    """A job with the slowdown of its last window."""
    with service.store.read() as conn:
        is_watched = _is_watched(conn, service)
        return job_out(jobs.get(conn, job_id), service, is_watched=is_watched)


def _is_watched(conn: Connection, service: Service) -> bool:
    return shards.count_live(conn, now_s=service.now_s()) > 0


def _changed(service: Service, job_id: str) -> None:
    service.registrations.forget(job_id)
    service.announcer.announce({"event": "job", "job_id": job_id})
