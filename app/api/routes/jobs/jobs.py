"""Jobs: register them with their operation types, end them, and read their state."""

from typing import Annotated, Literal

from fastapi import Query, Response
from pydantic import Field

from app.api.http import fields
from app.api.routes.alerts.silences import end_silences_with_run
from app.api.routes.dependencies import ApiRouter, CallerDep, JobKey, PageOut, ServiceDep, refusals
from app.api.routes.jobs.recording import RecordingOut, WorkerPlanOut, plan_for_workers
from app.api.routes.windows.windows import RecentStepsOut, WindowSummaryOut
from app.api.service.job_state import JobState, job_state, silent_workers
from app.api.service.service import Service
from app.errors import InvalidRequest
from app.ingest.wire.body import EXTENSIONS
from app.result.figures import gpu_time_wasted
from app.store import exits, jobs, recordings, runs, shards
from app.store.as_of import Processed
from app.store.jobs import JobRecord, Lifecycle
from app.store.runs import Registration
from app.trace import ops
from app.trace.exits import EndCause, end_sentence
from app.trace.job import CANARY_PROJECT, MAX_STAGES, Parallelism, job_of, project_of
from app.trace.ops import MAX_USER_TYPES

TypeName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=ops.MAX_TYPE_NAME,
        pattern=r"^[a-z0-9][a-z0-9-]*$",
        description="Name of lower-case letters, digits and hyphens.",
    ),
]


class OpTypeIn(fields.RequestModel):
    """A custom operation type, with its peers and its stream."""

    name: TypeName
    kind: Literal["compute", "p2p", "collective"]
    axis: Literal["none", "tp", "pp", "dp", "ep"] | None = Field(
        None,
        description="Peers of the operation: `pp` the stages, `dp` the dp ranks, `ep` the dp "
        "ranks of the same expert block; `none` and `tp`: no recorded peers. "
        "Required for kind `collective`.",
    )
    stream: TypeName | None = Field(
        None,
        description="Stream; operations of one stream run one after the other. Default: "
        "`compute` for kind `compute`, otherwise a stream of its own.",
    )
    pairs_with: TypeName | None = Field(
        None, description="Name of the receiving type; only for a p2p type that sends."
    )
    towards: Literal["next", "previous"] | None = Field(
        None, description="Receiving stage; only for a p2p type that sends."
    )


class OpTypeOut(fields.ResponseModel):
    """A custom operation type; `pairs_with` and `towards` are null except for a send."""

    name: str
    kind: str
    axis: str
    stream: str
    pairs_with: str | None = None
    towards: str | None = None


router = ApiRouter("jobs")

LifecycleQuery = Annotated[
    Lifecycle,
    Query(description="Which jobs: active ones, archived ones, or deleted ones not yet removed."),
]

MAX_WORKERS = 131_072
MAX_GPUS = 10_000_000
MAX_SILENT_RANKS = 100  # listed

Size = Annotated[int, Field(ge=1, le=MAX_WORKERS)]


class ParallelismIn(fields.RequestModel):
    """Sizes of the parallel axes."""

    dp_size: Size
    pp_size: Annotated[int, Field(ge=1, le=MAX_STAGES)]
    tp_size: Size = 1
    vpp_size: Annotated[int, Field(ge=1, le=1024)] = 1
    dsp_size: Size = 1
    ep_size: Size = Field(
        1,
        description="Number of successive dp ranks in an expert-parallel block; must divide "
        "dp_size.",
    )

    def checked(self) -> Parallelism:
        """The sizes, if a job of that many workers is supported."""
        sizes = Parallelism(**self.model_dump())
        if sizes.num_workers > MAX_WORKERS or sizes.world_size > MAX_GPUS:
            raise InvalidRequest(
                f"{sizes.num_workers} workers on {sizes.world_size} GPUs are too many: "
                f"at most {MAX_WORKERS} on {MAX_GPUS}"
            )
        return sizes


class JobIn(fields.RequestModel):
    """Registration of a run; all ranks of the run send the same one."""

    name: fields.Text | None = Field(None, description="Display name; default: the job id.")
    parallelism: ParallelismIn
    gpus: int | None = Field(
        None, ge=1, le=MAX_GPUS, description="Number of GPUs; default: the world size."
    )
    framework: fields.Label | None = Field(None, examples=["megatron-lm"])
    labels: dict[fields.Label, fields.Text] = Field(default_factory=dict, max_length=32)
    op_types: list[OpTypeIn] = Field(
        default_factory=list,
        max_length=MAX_USER_TYPES,
        description="Custom operation types of the job, in addition to the built-in ones.",
        examples=[[{"name": "moe-all-to-all", "kind": "collective", "axis": "ep"}]],
    )
    run_key: fields.NonEmptyText = Field(
        description="Key of the run: the same on all ranks, and a new one after each restart.",
        examples=["launch-4711-0"],
    )

    def registration(self, job_id: str) -> Registration:
        """The registration for the store."""
        parallelism = self.parallelism.checked()
        return Registration(
            name=self.name or job_id,
            parallelism=parallelism,
            num_gpus=self.gpus or parallelism.world_size,
            framework=self.framework,
            labels=dict(self.labels),
            run_key=self.run_key,
            op_types=ops.parse_op_types(
                [described.model_dump(exclude_none=True) for described in self.op_types]
            ),
        )


class RegisteredOut(fields.ResponseModel):
    """The run's epoch, the accepted format extensions, and the recording plan."""

    job_id: str
    epoch: int
    accepts: list[str] = Field(
        description="Extensions of wire format 1 that batches may use (docs/wire-format.md).",
        examples=[list(EXTENSIONS)],
    )
    recording: WorkerPlanOut | None = Field(
        description="Recording plan; null: record every step until the answer to a batch "
        "contains a plan."
    )


class ParallelismOut(fields.ResponseModel):
    """Sizes of the parallel axes, and the number of ranks."""

    dp_size: int
    pp_size: int
    tp_size: int
    vpp_size: int
    dsp_size: int
    ep_size: int
    world_size: int


class ConflictOut(fields.ResponseModel):
    """A batch number that arrived again with other content."""

    rank: int
    batch_seq: int


class GroupOpsOut(fields.ResponseModel):
    """Counts of the current run's collectives inside process groups."""

    accepted: int
    duplicate: int = Field(description="Collectives in batches that had been received before.")
    late: int = Field(
        description="Collectives that arrived when their window could no longer be updated."
    )
    refused: int = Field(
        description="Collectives above the limit per rank and step, or above the memory limit."
    )


class IngestOut(fields.ResponseModel):
    """Counts of the current run's operations that were read from the queue."""

    accepted: int
    duplicate: int
    conflict: int
    late: int
    dead: int
    lost_batches: int = Field(
        description="Batches that never arrived although later ones of the same worker did."
    )
    last_conflict: ConflictOut | None
    in_groups: GroupOpsOut | None = Field(
        description="Counts of collectives inside process groups; null if none arrived."
    )


class WorkerDropsOut(fields.WorkerOut):
    """Operations that a worker's recorders dropped."""

    dropped: int


class DropsOut(fields.ResponseModel):
    """Operations of the current run that recorders dropped and never sent."""

    total: int
    num_workers: int = Field(description="Number of workers that dropped operations.")
    worst: list[WorkerDropsOut] = Field(
        description="The eight workers with the most dropped operations."
    )


class JobEndOut(fields.ResponseModel):
    """The rank whose end ended the job, as its recorder reported it; texts are the training's."""

    sentence: str
    outcome: str
    rank: int | None
    dp_rank: int
    stage: int
    host: str | None
    error_type: str | None
    message: str | None
    signal: int | None
    exit_code: int | None
    num_reported: int = Field(description="Number of ranks that reported such an end.")

    @classmethod
    def of(cls, cause: EndCause) -> "JobEndOut":
        """From the stored cause."""
        rank = None if cause.rank < 0 else cause.rank
        return cls.of_record(cause, sentence=f"{end_sentence(cause)}.", rank=rank)


class JobOut(fields.ResponseModel):
    """A job and its state; unknown figures are null."""

    job_id: fields.JobName
    name: str
    parallelism: ParallelismOut
    gpus: int = Field(validation_alias="num_gpus")
    framework: str | None
    labels: dict[str, str] = Field(
        description="Labels that the run registered, with `edited_labels` over them. `owner` is "
        "the job's owner."
    )
    edited_labels: dict[str, str] = Field(
        description="Labels set with `PATCH /api/v1/jobs/{job_id}`."
    )
    lifecycle: Lifecycle
    archived_at: fields.UnixTime | None = Field(validation_alias="archived_s")
    deleted_at: fields.UnixTime | None = Field(validation_alias="deleted_s")
    removal_at: fields.UnixTime | None = Field(
        validation_alias="removal_s",
        description="When the data of a deleted job is removed; until then it can be restored.",
    )
    op_types: list[OpTypeOut]
    epoch: int
    state: JobState
    as_of: fields.AsOfField
    behind_s: fields.BehindField
    registered_at: fields.UnixTime = Field(validation_alias="registered_s")
    ended_at: fields.UnixTime | None = Field(validation_alias="ended_s")
    end: JobEndOut | None = Field(
        description="What ended a job that crashed or was preempted; otherwise null."
    )
    last_data_at: fields.UnixTime | None = Field(validation_alias="last_data_s")
    last_step: int | None
    silent_ranks: list[int] = Field(
        description="The first 100 silent ranks: no data from them, while other ranks send data."
    )
    num_silent_ranks: int
    silent_workers: list[fields.WorkerOut] = Field(
        description="Workers of `silent_ranks`, in the same order."
    )
    num_silent_workers: int = Field(
        description="Number of silent workers; lower than `num_silent_ranks` if several ranks "
        "belong to one worker."
    )
    silent_since: fields.UnixTime | None = Field(validation_alias="silent_since_s")
    stalled_since: fields.UnixTime | None = Field(
        validation_alias="stalled_since_s",
        description="Time since which no rank has sent data; null while data arrives.",
    )
    ingest: IngestOut | None = Field(
        validation_alias="counts",
        description="Counts of received operations; null before the first one.",
    )
    drops: DropsOut | None = Field(
        description="Dropped operations; null if no recorder has reported any count."
    )
    recording: RecordingOut
    window_steps: int
    slowdown: float | None
    gpu_time_wasted: float | None
    recent_steps: RecentStepsOut | None = Field(
        validation_alias="recent",
        description="The steps that state, slowdown and loss are of; null before the first "
        "figures.",
    )
    latest_window: WindowSummaryOut | None = Field(
        validation_alias="latest",
        description="The newest closed window with figures; before the first one the open window.",
    )


class JobsOut(PageOut[JobOut]):
    """A page of jobs, by id."""


def job_out(job: JobRecord, service: Service, processed: Processed) -> JobOut:
    """The job for an answer."""
    silent_ranks, workers = job.silent_ranks or (), silent_workers(job)
    slowdown = job.recent.slowdown if job.recent else None
    return JobOut.of_record(
        job,
        processed.of(job.job_id, job.last_data_s),
        op_types=[OpTypeOut(**own) for own in ops.describe_op_types(job.op_types)],
        state=job_state(job, processed, service.alert_slowdown),
        end=None if job.end_cause is None else JobEndOut.of(job.end_cause),
        silent_ranks=silent_ranks[:MAX_SILENT_RANKS],
        num_silent_ranks=len(silent_ranks),
        silent_workers=[fields.WorkerOut.of(worker) for worker in workers[:MAX_SILENT_RANKS]],
        num_silent_workers=len({*workers}),
        recording=RecordingOut.of(job),
        window_steps=service.public_settings.window_steps,
        slowdown=slowdown,
        gpu_time_wasted=None if slowdown is None else gpu_time_wasted(slowdown),
    )


def jobs_out(
    service: Service, project: str, cursor: str | None, limit: int, lifecycle: Lifecycle = "active"
) -> JobsOut:
    """A page of a project's jobs for an answer."""
    with service.store.read() as conn:
        records, next_cursor = jobs.page(
            conn, project=project, lifecycle=lifecycle, cursor=cursor, limit=limit
        )
        processed = service.processed(conn)
    items = [job_out(job, service, processed) for job in records]
    return JobsOut(items=items, next_cursor=next_cursor)


@router.put(
    "/jobs/{job_id}",
    summary="Register a run of a job",
    status_code=200,
    responses={
        201: {"description": "A new run was registered.", "model": RegisteredOut},
        **refusals(409),
    },
)
def register_job(
    job_id: JobKey, job: JobIn, response: Response, service: ServiceDep
) -> RegisteredOut:
    """Idempotent: a run_key gets the same epoch each time. A new run_key begins a new epoch.

    A new run of an archived or deleted job lists the job again. 503 while a deleted job's data is
    being removed.
    """
    registration = job.registration(job_of(job_id))
    with service.store.write() as conn:
        now_s = service.now_s()
        # The service's own check counts in no quota.
        most = None if project_of(job_id) == CANARY_PROJECT else service.public_settings.max_jobs
        registered = runs.register(conn, job_id, registration, now_s=now_s, max_active_jobs=most)
        if registered.created:
            end_silences_with_run(conn, service, job_id)
        else:
            exits.begins_again(conn, job_id, registered.epoch)
        # Leases use the database's clock, which may differ from this machine's.
        at_s = service.database_time(conn)
        accepts = shards.extensions_known_to_all(conn, EXTENSIONS, now_s=at_s)
        plans = recordings.plans_of_run(recordings.of_job(conn, job_id), registered.epoch)
    service.job_changed(job_id)
    plan = plan_for_workers(plans, None) if plans else None
    response.status_code = 201 if registered.created else 200
    return RegisteredOut.of_record(
        registered, job_id=job_of(job_id), accepts=accepts, recording=plan
    )


@router.post("/jobs/{job_id}/end", summary="Mark a job as finished")
def end_job(job_id: JobKey, service: ServiceDep) -> JobOut:
    """A finished job never counts as silent. Idempotent.

    Batches of its other ranks are accepted for ten more minutes, or for as long as closed windows
    can be updated if that is longer; they raise no alert.
    """
    with service.store.write() as conn:
        runs.end(conn, job_id, now_s=service.now_s())
        end_silences_with_run(conn, service, job_id)
        job = jobs.get(conn, job_id)
        processed = service.processed(conn)
    service.job_changed(job_id)
    return job_out(job, service, processed)


@router.get("/jobs", summary="List jobs")
def list_jobs(
    service: ServiceDep,
    caller: CallerDep,
    lifecycle: LifecycleQuery = "active",
    cursor: fields.Cursor = None,
    limit: fields.Limit = 100,
) -> JobsOut:
    """The project's jobs by id, a page at a time; by default without archived and deleted ones."""
    return jobs_out(service, caller.project, cursor, limit, lifecycle)


@router.get("/jobs/{job_id}", summary="Get a job")
def get_job(job_id: JobKey, service: ServiceDep) -> JobOut:
    """The job's registration, state, and slowdown in its newest window."""
    with service.store.read() as conn:
        return job_out(jobs.get(conn, job_id), service, service.processed(conn))
