"""Which steps a job records, as the API says it."""

from datetime import datetime

from pydantic import Field

from app.api.fields import Answer, timestamp_or_none
from app.api.recording_plans import (
    EVERYTHING,
    has_begun,
    newest_plan,
    plan_out,
    will_come_to,
)
from app.store.jobs import JobRecord


class PlanOut(Answer):
    """Which steps are recorded from a step on: s where s mod `every` is below `steps`."""

    version: int
    from_step: int
    enabled: bool
    every: int
    steps: int


class ToldPlanOut(PlanOut):
    """A plan as a worker hears it, with those that hold until it begins.

    Of all plans that have begun at a step, the one with the highest version says whether the step
    is recorded; before the first, every step is.
    """

    earlier: list[PlanOut] | None = Field(
        None, description="Only until the plan has begun: older ones, by version."
    )


class RecordingOut(PlanOut):
    """The newest plan; version 0 where nobody has made one, and every step is recorded."""

    has_begun: bool = Field(description="Whether no step before from_step is still to come.")
    last_step: int | None = Field(description="The newest step known of the run.")
    until_then: PlanOut | None = Field(description="What holds before from_step, if it is known.")
    set_at: datetime | None
    set_by: str | None

    @classmethod
    def of(cls, job: JobRecord) -> "RecordingOut":
        """What the job's current run is told."""
        plan = newest_plan(job)
        before = [each for each in job.plans[:-1] if each.from_step < plan.from_step]
        until_then = before[-1].sample if before else EVERYTHING
        return cls(
            **plan_out(plan),
            has_begun=has_begun(plan, will_come_to(until_then, job.last_step)),
            last_step=job.last_step,
            until_then=PlanOut(**plan_out(before[-1])) if before else None,
            set_at=timestamp_or_none(plan.set_s if plan.version else None),
            set_by=plan.set_by or None,
        )
