"""Steps: how long each took, and how long it would have."""

from fastapi import APIRouter
from pydantic import Field

from app.api.deps import JobKey, ServiceDep, refusals
from app.api.fields import Answer, EpochNumber, Limit, StepNumber
from app.store import steps
from app.store.steps import StepRow

router = APIRouter(tags=["steps"])


class StepOut(Answer):
    """One step; without figures when it was skipped."""

    epoch: int
    step: int
    recorded_s: float | None
    simulated_s: float | None
    ideal_s: float | None
    slowdown: float | None
    window: str
    skipped_reason: str | None = Field(examples=["ranks 3 and 7 did not report"])

    @classmethod
    def of(cls, row: StepRow) -> "StepOut":
        """The step as the API says it."""
        return cls(
            epoch=row.epoch,
            step=row.step,
            recorded_s=row.recorded_s,
            simulated_s=row.simulated_s,
            ideal_s=row.ideal_s,
            slowdown=row.slowdown,
            window=row.window_id,
            skipped_reason=row.skipped_reason,
        )


class StepsOut(Answer):
    """A job's step series, ascending."""

    items: list[StepOut]


@router.get(
    "/jobs/{job_id}/steps",
    operation_id="list_steps",
    summary="See a job's step series",
    responses=refusals(404),
)
def list_steps(
    job_id: JobKey,
    service: ServiceDep,
    epoch: EpochNumber = None,
    first: StepNumber = None,
    last: StepNumber = None,
    limit: Limit = 200,
) -> StepsOut:
    """The last `limit` steps from `first` to `last`, of the present epoch unless told."""
    with service.store.read() as conn:
        rows = steps.series(conn, job_id, epoch=epoch, first=first, last=last, limit=limit)
    return StepsOut(items=[StepOut.of(row) for row in rows])
