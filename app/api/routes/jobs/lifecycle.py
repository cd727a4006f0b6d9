"""Archived and deleted jobs, and labels that people set: owner and tags.

Only a job that has ended can be archived or deleted. A deleted job can be restored for a day; then
retention removes its data. A new run of an archived or deleted job lists it again.
"""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from app.api.http.fields import Label, NonEmptyText, RequestModel
from app.api.http.principal import Principal
from app.api.routes.audit import changed_fields, write_audit
from app.api.routes.dependencies import BODY_REFUSALS, CallerDep, JobKey, ServiceDep, refusals
from app.api.routes.jobs.jobs import JobOut, job_out
from app.api.service.job_state import job_state, silent_for_s
from app.api.service.service import Service
from app.errors import JobRunning
from app.store import jobs, runs
from app.store.database import Connection
from app.trace.job import job_of

router = APIRouter(tags=["jobs"])

# States of jobs without an end whose workers have all stopped sending.
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


@router.patch(
    "/jobs/{job_id}",
    operation_id="edit_job",
    summary="Set a job's owner and tags",
    responses=refusals(404, 409, *BODY_REFUSALS),
)
def edit_job(job_id: JobKey, given: LabelsIn, service: ServiceDep, caller: CallerDep) -> JobOut:
    """Labels that are not given stay. They are searched, and labels of the job's alerts."""
    with service.store.write() as conn:
        before, after = jobs.edit_labels(conn, job_id, given.labels)
        changes = changed_fields(before, dict.fromkeys(before) | after)
        if changes:
            _audit(conn, caller, job_id, "edit", service, changes=changes)
        found = _job_out(conn, service, job_id)
    _announce(service, job_id)
    return found


@router.post(
    "/jobs/{job_id}/archive",
    operation_id="archive_job",
    summary="Archive a finished job",
    responses=refusals(404, 409, *BODY_REFUSALS),
)
def archive_job(
    job_id: JobKey, service: ServiceDep, caller: CallerDep, end: EndQuery = False
) -> JobOut:
    """The job leaves the fleet's list and its counts; nothing of it is removed. Idempotent.

    409 while it runs. Its next run lists it again.
    """
    with service.store.write() as conn:
        _end_if_wanted(conn, service, job_id, end=end)
        if jobs.archive(conn, job_id, now_s=service.now_s()):
            _audit(conn, caller, job_id, "archive", service)
        found = _job_out(conn, service, job_id)
    _announce(service, job_id)
    return found


@router.post(
    "/jobs/{job_id}/unarchive",
    operation_id="unarchive_job",
    summary="List an archived job again",
    responses=refusals(404, *BODY_REFUSALS),
)
def unarchive_job(job_id: JobKey, service: ServiceDep, caller: CallerDep) -> JobOut:
    """Idempotent."""
    with service.store.write() as conn:
        if jobs.unarchive(conn, job_id):
            _audit(conn, caller, job_id, "unarchive", service)
        found = _job_out(conn, service, job_id)
    _announce(service, job_id)
    return found


@router.delete(
    "/jobs/{job_id}",
    operation_id="delete_job",
    summary="Delete a finished job",
    responses=refusals(404, 409, *BODY_REFUSALS),
)
def delete_job(
    job_id: JobKey, service: ServiceDep, caller: CallerDep, end: EndQuery = False
) -> JobOut:
    """Needs the scope admin. The job leaves every list and figure at once. Idempotent.

    It can be restored until `removal_at`, 24 hours later; then its runs, windows, operations,
    alerts, notifications and recording plans are removed. 409 while it runs. A new run before the
    removal restores it.
    """
    with service.store.write() as conn:
        _end_if_wanted(conn, service, job_id, end=end)
        if jobs.delete(conn, job_id, now_s=service.database_time(conn)):
            _audit(conn, caller, job_id, "delete", service)
        found = _job_out(conn, service, job_id)
    _announce(service, job_id)
    return found


@router.post(
    "/jobs/{job_id}/restore",
    operation_id="restore_job",
    summary="Restore a deleted job",
    responses=refusals(404, *BODY_REFUSALS),
)
def restore_job(job_id: JobKey, service: ServiceDep, caller: CallerDep) -> JobOut:
    """Needs the scope admin. 503 once its removal has begun. Idempotent."""
    with service.store.write() as conn:
        if jobs.restore(conn, job_id):
            _audit(conn, caller, job_id, "restore", service)
        found = _job_out(conn, service, job_id)
    _announce(service, job_id)
    return found


def _end_if_wanted(conn: Connection, service: Service, job_id: str, *, end: bool) -> None:
    """End a stalled job if `end`.

    Raises:
        JobNotFound: it never registered.
        JobRunning: it has not ended.
    """
    job = jobs.get(conn, job_id)
    if job.ended_s is not None:
        return
    now_s = service.now_s()
    state = job_state(job, service.processed(conn), service.thresholds)
    is_gone = (silent_for_s(job, now_s) or 0.0) > _GONE_AFTER_S
    can_end = state == "stalled" or (state == "unknown" and is_gone)
    if not (end and can_end):
        raise JobRunning(job_id, can_end=can_end)
    runs.end(conn, job_id, now_s=now_s)


def _audit(
    conn: Connection, caller: Principal, job_id: str, verb: str, service: Service, **detail: object
) -> None:
    now_s = service.now_s()
    write_audit(conn, caller, f"job.{verb}", job_of(job_id), now_s=now_s, **detail)


def _job_out(conn: Connection, service: Service, job_id: str) -> JobOut:
    return job_out(jobs.get(conn, job_id), service, service.processed(conn))


def _announce(service: Service, job_id: str) -> None:
    service.registrations.forget(job_id)
    service.announcer.announce({"event": "job", "job_id": job_id})
