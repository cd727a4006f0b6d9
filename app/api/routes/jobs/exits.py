"""How the process of each rank ended, as recorders report it; the end of the job follows."""

from typing import Annotated

from fastapi import APIRouter
from pydantic import Field, StringConstraints

from app.api.http.fields import RequestModel, ResponseModel
from app.api.routes.alerts.silences import end_silences_with_run
from app.api.routes.dependencies import BODY_REFUSALS, JobKey, ServiceDep, refusals
from app.api.service.job_state import JobState, job_state
from app.store import jobs
from app.store.ending import exits
from app.trace.exits import Outcome, RankExit
from app.trace.job import job_of

router = APIRouter(tags=["jobs"])

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
    "/jobs/{job_id}/exits",
    operation_id="report_exit",
    summary="Report how a rank's process ended",
    responses=refusals(404, 409, *BODY_REFUSALS),
)
def report_exit(job_id: JobKey, told: ExitIn, service: ServiceDep) -> ExitOut:
    """Recorders send this by themselves. A rank's later report replaces its earlier one.

    Once all workers have reported, the job has ended: finished, crashed or preempted. If some have
    and nothing more comes for 20 seconds, the others are not waited for. 409 for an older run.
    """
    now_s = service.now_s()
    found = RankExit(
        rank=told.rank,
        dp_rank=told.dp_rank,
        stage=told.stage,
        host=_storable(told.host),
        outcome=told.outcome,
        at_s=now_s,
        error_type=_storable(told.error_type),
        message=_storable(told.message),
        signal=told.signal,
        exit_code=told.exit_code,
    )
    with service.store.write() as conn:
        exits.add(conn, job_id, told.epoch, found)
        job = jobs.get(conn, job_id)
        if job.ended_s is not None:
            end_silences_with_run(conn, service, job_id)
        state = job_state(job, service.processed(conn), service.thresholds)
    service.registrations.forget(job_id)
    service.announcer.announce({"event": "job", "job_id": job_id})
    return ExitOut(job_id=job_of(job_id), epoch=told.epoch, job_state=state)


def _storable(text: str | None) -> str | None:
    """The text as every database takes it, without control characters; None if empty."""
    if text is None:
        return None
    plain = text.encode("utf-8", "replace").decode()
    kept = "".join(c if c.isprintable() or c == "\n" else " " for c in plain)[:KEPT_MESSAGE]
    return kept.strip() or None
