"""The end of a job, as recorders report it; archived and deleted jobs; owner and tags.

The end of a job follows from how the process of each of its ranks ended.

Only a job that has ended can be archived or deleted. A deleted job can be restored for a day; then
retention removes its data. A new run of an archived or deleted job lists it again.
"""

from collections.abc import Callable
from typing import Annotated

from fastapi import Query
from pydantic import Field, StringConstraints
from pydantic.config import JsonDict

from app.api.http.fields import Label, NonEmptyText, RequestModel, ResponseModel
from app.api.http.principal import Principal
from app.api.routes.alerts.silences import end_silences_with_run
from app.api.routes.audit import changed_fields, write_audit
from app.api.routes.dependencies import ApiRouter, CallerDep, JobKey, ServiceDep, refusals
from app.api.routes.jobs.jobs import JobOut, job_out
from app.api.service.job_state import JobState, job_state, silent_for_s
from app.api.service.service import Service
from app.errors import JobRunning
from app.store import exits, jobs, runs
from app.store.database import Connection
from app.trace.exits import Outcome, RankExit
from app.trace.job import job_of

router = ApiRouter("jobs")

MAX_RANK = 2**31 - 1
MAX_MESSAGE = 2000
KEPT_MESSAGE = 500

Number = Annotated[int, Field(ge=0, le=MAX_RANK)]
ShortText = Annotated[str, StringConstraints(max_length=256)]


class ExitIn(RequestModel):
    """How one rank's process ended."""

    epoch: Annotated[int, Field(ge=1, le=2**53)]
    rank: Number
    dp_rank: Number
    stage: Number
    host: ShortText | None = None
    outcome: Outcome = Field(
        description="`finished`; `failed` by an exception or an exit status; `terminated` by "
        "SIGTERM or SIGINT; `killed` by another signal; `ended` without a word, where nobody knows "
        "how: that is no crash beside ranks that finished."
    )
    error_type: ShortText | None = Field(None, examples=["torch.OutOfMemoryError"])
    message: Annotated[str, StringConstraints(max_length=MAX_MESSAGE)] | None = Field(
        None, description="The exception's text. 500 characters are kept."
    )
    signal: Annotated[int, Field(ge=1, le=127)] | None = None
    exit_code: Annotated[int, Field(ge=0, le=255)] | None = None


class ExitOut(ResponseModel):
    """The job's state after the report."""

    job_id: str
    epoch: int
    job_state: JobState


@router.post(
    "/jobs/{job_id}/exits", summary="Report how a rank's process ended", responses=refusals(409)
)
def report_exit(job_id: JobKey, reported: ExitIn, service: ServiceDep) -> ExitOut:
    """Recorders send this by themselves. A rank's later report replaces its earlier one.

    Once all workers have reported, the job has ended: finished, crashed or preempted. If some have
    and nothing more comes for 20 seconds, the others are not waited for. 409 for an older run.
    """
    now_s = service.now_s()
    texts = {name: _storable(getattr(reported, name)) for name in ("host", "error_type", "message")}
    rank_exit = RankExit(**reported.model_dump(exclude={"epoch"}) | texts, at_s=now_s)
    with service.store.write() as conn:
        exits.add(conn, job_id, reported.epoch, rank_exit)
        job = jobs.get(conn, job_id)
        if job.ended_s is not None:
            end_silences_with_run(conn, service, job_id)
        state = job_state(job, service.processed(conn), service.alert_slowdown)
    service.job_changed(job_id)
    return ExitOut(job_id=job_of(job_id), epoch=reported.epoch, job_state=state)


def _storable(text: str | None) -> str | None:
    """The text as every database takes it, without control characters; None if empty."""
    if text is None:
        return None
    plain = text.encode("utf-8", "replace").decode()
    shown = (char if char.isprintable() or char == "\n" else " " for char in plain)
    return "".join(shown)[:KEPT_MESSAGE].strip() or None


# Of a job whose state is not known, nothing has come for so long.
_GONE_AFTER_S = 3600.0

EndQuery = Annotated[
    bool,
    Query(description="Whether to end the job first if it is stalled: none of its workers sends."),
]


class LabelsIn(RequestModel):
    """Labels to set; null takes one back, so that the registered value applies again."""

    labels: dict[Label, NonEmptyText | None] = Field(
        max_length=jobs.MAX_LABELS,
        description="`owner` is the job's owner: a team, a person, an address. All others are "
        "tags. They win over the labels that the job registered.",
        examples=[{"owner": "team-vision", "priority": "high"}],
    )


@router.patch("/jobs/{job_id}", summary="Set a job's owner and tags", responses=refusals(409))
def edit_job(job_id: JobKey, given: LabelsIn, service: ServiceDep, caller: CallerDep) -> JobOut:
    """Labels that are not given stay. They are searched, and labels of the job's alerts."""
    changes: JsonDict = {}  # filled by the edit

    def edit(conn: Connection) -> bool:
        before, after = jobs.edit_labels(conn, job_id, given.labels)
        changes.update(changed_fields(before, dict.fromkeys(before) | after))
        return bool(changes)

    return _changed(service, caller, job_id, "edit", edit, changes=changes)


@router.post("/jobs/{job_id}/archive", summary="Archive a finished job", responses=refusals(409))
def archive_job(
    job_id: JobKey, service: ServiceDep, caller: CallerDep, end: EndQuery = False
) -> JobOut:
    """The job leaves the fleet's list and its counts; nothing of it is removed. Idempotent.

    409 while it runs. Its next run lists it again.
    """

    def archive(conn: Connection) -> bool:
        _end_if_wanted(conn, service, job_id, end=end)
        return jobs.archive(conn, job_id, now_s=service.now_s())

    return _changed(service, caller, job_id, "archive", archive)


@router.post("/jobs/{job_id}/unarchive", summary="List an archived job again")
def unarchive_job(job_id: JobKey, service: ServiceDep, caller: CallerDep) -> JobOut:
    """Idempotent."""
    return _changed(service, caller, job_id, "unarchive", lambda conn: jobs.unarchive(conn, job_id))


@router.delete("/jobs/{job_id}", summary="Delete a finished job", responses=refusals(409))
def delete_job(
    job_id: JobKey, service: ServiceDep, caller: CallerDep, end: EndQuery = False
) -> JobOut:
    """Needs the scope admin. The job leaves every list and figure at once. Idempotent.

    It can be restored until `removal_at`, 24 hours later; then its runs, windows, operations,
    alerts, notifications and recording plans are removed. 409 while it runs. A new run before the
    removal restores it.
    """

    def delete(conn: Connection) -> bool:
        _end_if_wanted(conn, service, job_id, end=end)
        return jobs.delete(conn, job_id, now_s=service.database_time(conn))

    return _changed(service, caller, job_id, "delete", delete)


@router.post("/jobs/{job_id}/restore", summary="Restore a deleted job")
def restore_job(job_id: JobKey, service: ServiceDep, caller: CallerDep) -> JobOut:
    """Needs the scope admin. 503 once its removal has begun. Idempotent."""
    return _changed(service, caller, job_id, "restore", lambda conn: jobs.restore(conn, job_id))


def _changed(
    service: Service,
    caller: Principal,
    job_id: str,
    verb: str,
    change: Callable[[Connection], bool],
    **detail: object,
) -> JobOut:
    """The job after the change, which is audited with its details if it has changed anything."""
    with service.store.write() as conn:
        if change(conn):
            at_s = service.now_s()
            write_audit(conn, caller, f"job.{verb}", job_of(job_id), now_s=at_s, **detail)
        changed = job_out(jobs.get(conn, job_id), service, service.processed(conn))
    service.job_changed(job_id)
    return changed


def _end_if_wanted(conn: Connection, service: Service, job_id: str, *, end: bool) -> None:
    """End a stalled job if `end`; raises JobNotFound, or JobRunning if it has not ended."""
    job = jobs.get(conn, job_id)
    if job.ended_s is not None:
        return
    now_s = service.now_s()
    state = job_state(job, service.processed(conn), service.alert_slowdown)
    is_gone = (silent_for_s(job, now_s) or 0.0) > _GONE_AFTER_S
    can_end = state == "stalled" or (state == "unknown" and is_gone)
    if not (end and can_end):
        raise JobRunning(job_id, can_end=can_end)
    runs.end(conn, job_id, now_s=now_s)
