"""Critical paths: the operations that decided how long a step took."""

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field

from app.api.deps import JobKey, ServiceDep, refusals
from app.api.fields import Answer, StepNumber, WindowId
from app.engine import critical_path
from app.engine.run import RunKind
from app.engine.timeline.choice import slowest_step

router = APIRouter(tags=["windows"])


class LinkOut(Answer):
    """One operation of the chain, in the order of time."""

    optype: str
    dp_rank: int
    stage: int
    rank: int
    seq_id: int
    microbatch: int | None
    chunk: int | None
    start_s: float = Field(description="Since the step began.")
    own_s: float = Field(
        description="How long it kept the chain busy: 0 for one that only arrived last. Negative "
        "where hosts' clocks disagree."
    )
    gap_s: float = Field(
        description="From the end of the link before to its start; 0 but in a recorded run."
    )


class WorkerShareOut(Answer):
    """How much of the chain was on one worker, its gaps included."""

    dp_rank: int
    stage: int
    rank: int
    share: float


class SharesOut(Answer):
    """Shares of the step: those by op type and `waiting` are 1 together, those by worker too."""

    by_optype: dict[str, float]
    waiting: float
    by_worker: list[WorkerShareOut]


class CriticalPathOut(Answer):
    """The chain; all `own_s` and `gap_s` together are `length_s`."""

    window: str
    step: int
    run: RunKind
    length_s: float
    shares: SharesOut
    links: list[LinkOut]


@router.get(
    "/jobs/{job_id}/windows/{window}/critical-path",
    operation_id="get_window_critical_path",
    summary="See which operations decided how long a step took",
    response_model=CriticalPathOut,
    responses=refusals(404, 409),
)
def get_window_critical_path(
    job_id: JobKey,
    window: WindowId,
    service: ServiceDep,
    step: Annotated[StepNumber, Query(description="Left out: the one that took longest.")] = None,
    run: Annotated[RunKind, Query(description="As recorded, or as replayed.")] = "recorded",
) -> dict[str, Any]:
    """From the step's last operation back to its beginning, each the one that came last."""
    replay = service.replays.get(job_id, window)
    with service.replays.at_work.taken():
        chosen = slowest_step(replay, run) if step is None else step
        found = critical_path.critical_path(replay, chosen, run)
    return {"window": replay.window.id, **critical_path.as_json(found)}
