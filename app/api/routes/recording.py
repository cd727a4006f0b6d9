"""Recording: which of its steps a job records, decided here and told to its workers."""

from typing import Annotated

from fastapi import APIRouter
from pydantic import Field

from app.api.audited import note
from app.api.changes import changed
from app.api.deps import OF_BODIES, CallerDep, JobKey, ServiceDep, refusals
from app.api.fields import Request
from app.api.recording_out import RecordingOut
from app.api.recording_plans import first_step_for_all, newest_plan, plan_out
from app.errors import Conflict, InvalidRequest
from app.store import jobs, recordings
from app.store.engine import Connection
from app.store.jobs import JobRecord
from app.store.recordings import Sample
from app.trace.names import plain

router = APIRouter(tags=["jobs"])

MAX_EVERY = 1_000_000

Number = Annotated[int, Field(ge=1, le=MAX_EVERY)]
Step = Annotated[int, Field(ge=0, le=2**53)]


class RecordingIn(Request):
    """Record the first `steps` of every `every` steps, by step number, so all ranks agree."""

    enabled: bool = Field(True, description="Whether any step is recorded at all.")
    every: Number = 1
    steps: Number = Field(1, description="At most `every`; as many are every step.")
    from_step: Step | None = Field(
        None, description="Left out: the first one that every rank hears of in time."
    )

    def sample(self) -> Sample:
        """What is asked for, in the fewest numbers."""
        if self.steps > self.every:
            raise InvalidRequest(
                f"steps is {self.steps} of every {self.every} steps: at most {self.every}"
            )
        if self.steps == self.every or not self.enabled:
            return Sample(self.enabled, 1, 1)
        return Sample(True, self.every, self.steps)


@router.get(
    "/jobs/{job_id}/recording",
    operation_id="get_recording",
    summary="See which steps a job records",
    responses=refusals(404),
)
def get_recording(job_id: JobKey, service: ServiceDep) -> RecordingOut:
    """What its workers are told, in every answer to what they push."""
    with service.store.read() as conn:
        return RecordingOut.of(jobs.get(conn, job_id))


@router.put(
    "/jobs/{job_id}/recording",
    operation_id="set_recording",
    summary="Choose which steps a job records",
    responses=refusals(404, 409, *OF_BODIES),
)
def set_recording(
    job_id: JobKey, asked: RecordingIn, service: ServiceDep, caller: CallerDep
) -> RecordingOut:
    """Takes the scope admin. Workers hear of it within seconds, without a restart.

    All ranks change at the same step. Later runs of the job go by it from their first step on.
    """
    sample = asked.sample()
    with service.store.write() as conn:
        recordings.lock(conn, job_id)
        job = jobs.get(conn, job_id)
        now_s = service.now_s()
        from_step = _from_step(conn, job, asked.from_step, now_s)
        newest = newest_plan(job)
        if asked.from_step is None and sample == newest.sample and newest.from_step <= from_step:
            return RecordingOut.of(job)
        plan = recordings.add(
            conn, job_id, job.epoch, sample, from_step=from_step, now_s=now_s, by=caller.actor
        )
        changes = changed(plan_out(newest), plan_out(plan))
        note(conn, caller, "recording.set", plain(job_id), now_s=now_s, changes=changes)
        job = jobs.get(conn, job_id)
    service.registrations.forget(job_id)
    service.announcer.announce({"event": "job", "job_id": job_id})
    return RecordingOut.of(job)


def _from_step(conn: Connection, job: JobRecord, asked: int | None, now_s: float) -> int:
    if asked is None:
        return first_step_for_all(conn, job, now_s)
    if job.last_step is not None and asked <= job.last_step:
        raise Conflict(
            f"from_step is {asked}, and the job has come to step {job.last_step}: name a later "
            "one, or leave it out for the first that every rank hears of in time"
        )
    return asked
