"""Recording plans: which steps a job records, and from which step on all workers know it."""

from collections.abc import Sequence
from math import ceil
from statistics import median
from typing import Annotated

from pydantic import AliasPath, Field

from app.api.http.fields import RequestModel, ResponseModel, UnixTime
from app.api.routes.audit import changed_fields, write_audit
from app.api.routes.dependencies import ApiRouter, CallerDep, JobKey, ServiceDep, refusals
from app.errors import Conflict, InvalidRequest
from app.ingest.wire.body import LAST_STEP
from app.store import jobs, recordings, runs, windows
from app.store.database import Connection
from app.store.jobs import JobRecord
from app.store.recordings import RecordingPlan, StepSample
from app.trace.job import job_of

# Within this time every rank has received the plan: workers send every few seconds, this process
# caches jobs for two, and consumers may lag a little.
LEAD_S = 30.0
LEAD_STEPS = 100  # if the step time is unknown
MIN_LEAD_STEPS = 10
_RECENT_STEPS = 32

RECORD_ALL = StepSample()  # before a plan has been made
_NO_PLAN = RecordingPlan(0, 0, 0, RECORD_ALL, 0.0, "")


def newest_plan(job: JobRecord) -> RecordingPlan:
    """The newest plan; version 0 if there is none."""
    return job.plans[-1] if job.plans else _NO_PLAN


def next_known_step(sample: StepSample, last_step: int | None) -> int | None:
    """The next step that is recorded after this one; None if unknown.

    A job that records no step may have reached any.
    """
    if last_step is None:
        return None
    if not sample.enabled:
        return LAST_STEP
    after = last_step + 1
    return after if after % sample.every < sample.steps else after + -after % sample.every


def has_begun(plan: RecordingPlan, last_step: int | None) -> bool:
    """Whether a rank is known to have reached the plan's first step."""
    return plan.from_step == 0 or (last_step is not None and plan.from_step <= last_step)


def reference_step(job: JobRecord) -> int | None:
    """The newest known step, to judge later ones; None if it says nothing.

    A job that recorded no step may be at any step when it records again.
    """
    return job.last_step if all(plan.sample.enabled for plan in _current_plans(job)) else None


def first_common_step(conn: Connection, job: JobRecord, now_s: float) -> int:
    """A step that no rank reaches before it has received a plan made now.

    0 if no step of the run is known: its ranks apply the plan at once, and a few steps stay
    incomplete.
    """
    if job.last_step is None:
        return 0
    step_s = _step_s(conn, job)
    lead = LEAD_STEPS
    if step_s:
        lead = max(MIN_LEAD_STEPS, ceil((_unreported_s(job, now_s) + LEAD_S) / step_s))
    # Replaces an earlier plan of a later step, as it has a higher version.
    return job.last_step + 1 + lead


def _unreported_s(job: JobRecord, now_s: float) -> float:
    """Seconds for which the job may have run unseen, because its plan records less.

    A job that records nothing still reports every few seconds, until it stalls.
    """
    is_seen = all(plan.sample == RECORD_ALL for plan in _current_plans(job))
    if job.last_data_s is None or is_seen or job.stalled_since_s is not None:
        return 0.0
    return max(0.0, now_s - job.last_data_s)


def _current_plans(job: JobRecord) -> list[RecordingPlan]:
    """The plan in force, as far as known, and all later ones."""
    begun = [plan for plan in job.plans if has_begun(plan, job.last_step)]
    to_come = [plan for plan in job.plans if not has_begun(plan, job.last_step)]
    return [*begun[-1:], *to_come]


def _step_s(conn: Connection, job: JobRecord) -> float | None:
    """Median step time of the run in seconds; None if no step is known."""
    rows = windows.step_series(conn, job.job_id, epoch=job.epoch, limit=_RECENT_STEPS)
    times = [row.recorded_s for row in rows if row.recorded_s is not None]
    return median(times) if times else None


class PlanOut(ResponseModel):
    """A recording plan: from `from_step` on, record each step s with s mod `every` < `steps`."""

    version: int
    from_step: int
    enabled: bool = Field(validation_alias=AliasPath("sample", "enabled"))
    every: int = Field(validation_alias=AliasPath("sample", "every"))
    steps: int = Field(validation_alias=AliasPath("sample", "steps"))


class WorkerPlanOut(PlanOut):
    """The newest recording plan, and the older plans in force until it begins.

    At each step, the plan with the highest version among those that have begun decides whether the
    step is recorded. Before the first plan, every step is recorded.
    """

    earlier: list[PlanOut] | None = Field(
        None, description="Older plans by version; only present until the newest plan begins."
    )


def plan_for_workers(plans: Sequence[RecordingPlan], last_step: int | None) -> WorkerPlanOut:
    """The newest of a run's plans; until it has begun, with the `earlier` ones.

    A rank that sent nothing for a while may have missed those that hold until then.
    """
    *earlier, newest = plans
    plan_out = WorkerPlanOut.model_validate(newest)
    if earlier and not has_begun(newest, last_step):
        plan_out.earlier = [PlanOut.model_validate(plan) for plan in earlier]
    return plan_out


class RecordingOut(PlanOut):
    """The newest recording plan; version 0 means that there is none, and every step is recorded."""

    has_begun: bool = Field(description="Whether the job has reached `from_step`.")
    last_step: int | None = Field(description="The newest step known of the current run.")
    until_then: PlanOut | None = Field(
        description="The plan in force before `from_step`; null "
        "if every step is recorded until then."
    )
    set_at: UnixTime | None
    set_by: str | None

    @classmethod
    def of(cls, job: JobRecord) -> "RecordingOut":
        """The plan of the job's current run."""
        plan = newest_plan(job)
        before = [older for older in job.plans[:-1] if older.from_step < plan.from_step]
        until_then = before[-1].sample if before else RECORD_ALL
        return cls.of_record(
            plan,
            has_begun=has_begun(plan, next_known_step(until_then, job.last_step)),
            last_step=job.last_step,
            until_then=before[-1] if before else None,
            set_at=plan.set_s if plan.version else None,
            set_by=plan.set_by or None,
        )


router = ApiRouter("jobs")

MAX_EVERY = 1_000_000

Number = Annotated[int, Field(ge=1, le=MAX_EVERY)]
Step = Annotated[int, Field(ge=0, le=2**53)]


class RecordingIn(RequestModel):
    """Record the first `steps` of each `every` steps, by step number, on all ranks."""

    enabled: bool = Field(True, description="False to record no steps.")
    every: Number = 1
    steps: Number = Field(
        1,
        description="Number of recorded steps in each `every` steps; equal "
        "to `every`: record every step.",
    )
    from_step: Step | None = Field(
        None,
        description="First step of the plan; default: the first step that no rank reaches "
        "before it has received the plan.",
    )

    def sample(self) -> StepSample:
        """The requested sample, reduced to the smallest numbers."""
        if self.steps > self.every:
            raise InvalidRequest(
                f"steps is {self.steps} of every {self.every} steps: at most {self.every}"
            )
        if self.steps == self.every or not self.enabled:
            return StepSample(self.enabled, 1, 1)
        return StepSample(True, self.every, self.steps)


@router.get("/jobs/{job_id}/recording", summary="Get a job's recording plan")
def get_recording(job_id: JobKey, service: ServiceDep) -> RecordingOut:
    """The plan that each answer to a batch also contains."""
    with service.store.read() as conn:
        return RecordingOut.of(jobs.get(conn, job_id))


@router.put(
    "/jobs/{job_id}/recording", summary="Set a job's recording plan", responses=refusals(409)
)
def set_recording(
    job_id: JobKey, asked: RecordingIn, service: ServiceDep, caller: CallerDep
) -> RecordingOut:
    """Needs the scope admin. Workers receive it within seconds, without a restart.

    All ranks change at the same step. Later runs of the job use it from their first step on.
    """
    sample = asked.sample()
    with service.store.write() as conn:
        runs.current_epoch(conn, job_id, for_update=True)
        job = jobs.get(conn, job_id)
        now_s = service.now_s()
        from_step = _from_step(conn, job, asked.from_step, now_s)
        newest = newest_plan(job)
        if asked.from_step is None and sample == newest.sample and newest.from_step <= from_step:
            return RecordingOut.of(job)
        plan = recordings.add(
            conn, job_id, job.epoch, sample, from_step=from_step, now_s=now_s, by=caller.actor
        )
        changes = changed_fields(*(dict(PlanOut.model_validate(known)) for known in (newest, plan)))
        write_audit(conn, caller, "recording.set", job_of(job_id), now_s=now_s, changes=changes)
        job = jobs.get(conn, job_id)
    service.job_changed(job_id)
    return RecordingOut.of(job)


def _from_step(conn: Connection, job: JobRecord, asked: int | None, now_s: float) -> int:
    if asked is None:
        return first_common_step(conn, job, now_s)
    if job.last_step is not None and asked <= job.last_step:
        raise Conflict(
            f"from_step is {asked}, and the job has come to step {job.last_step}: name a later "
            "one, or leave it out for the first that every rank hears of in time"
        )
    return asked
