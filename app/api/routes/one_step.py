"""One step of a closed window, and each of its operations."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import Field

from app.api.asked_step import DpAsked, StepAsked
from app.api.deps import JobKey, ServiceDep, refusals
from app.api.fields import Answer, WindowId
from app.api.routes.timelines import MAX_SLICES
from app.charts.step_story import step_story
from app.engine.replays import WindowReplay
from app.engine.timeline.choice import choose, num_slices
from app.engine.timeline.lanes import waiting_share
from app.engine.timeline.operation import operation, telling
from app.engine.timeline.step_view import StepView

router = APIRouter(tags=["windows"])


class TellingOut(Answer):
    """Of the replica's operations on the critical path, the one furthest above its ideal."""

    stage: int
    optype: str
    seq_id: int


class StepOfWindowOut(Answer):
    """One step of one replica, and what else of its window can be seen."""

    window: str
    steps: list[int] = Field(description="All steps of the window that are replayed.")
    step: int
    dp_rank: int
    dp_size: int
    pp_size: int
    recorded_s: float
    ideal_s: float
    sentence: str
    sub: str
    dp_ranks_on_path: list[int] = Field(description="Longest on the critical path first.")
    waiting: list[float] = Field(description="By stage: share of the step.")
    telling: TellingOut | None
    timeline_query: str = Field(description="For the file of this step: all workers, or this dp.")
    viewer_url: str = Field(description="The trace viewer that the page opens.")


class WaitedForOut(Answer):
    """An operation on the same replica."""

    optype: str
    stage: int
    microbatch: int | None


class OperationOut(Answer):
    """One operation, its ideal and its peers'; durations in seconds."""

    window: str
    step: int
    run: Literal["recorded", "ideal"]
    dp_rank: int
    stage: int
    rank: int
    host: str | None
    optype: str
    seq_id: int
    microbatch: int | None
    chunk: int | None
    start_s: float = Field(description="Since the step began.")
    duration_s: float
    waited_s: float = Field(description="Of the duration, until the last of its peers had come.")
    own_s: float = Field(description="The rest: its computation or transfer.")
    ideal_s: float
    peers_s: float | None = Field(
        description="Median of own_s of its type on all other workers; null where there is none."
    )
    after: WaitedForOut | None = Field(description="What it waited for, null for a first one.")
    delay_s: float = Field(description="From the end of that to its start.")
    is_critical: bool = Field(description="Whether the recorded critical path goes through it.")


@router.get(
    "/jobs/{job_id}/windows/{window}/step",
    operation_id="get_window_step",
    summary="See what one step took, and why",
    responses=refusals(404, 409),
)
def get_window_step(
    job_id: JobKey,
    window: WindowId,
    service: ServiceDep,
    step: StepAsked = None,
    dp: DpAsked = None,
) -> StepOfWindowOut:
    """The sentences of the timeline's page; of a closed window."""
    replay, view = service.step_views.get(job_id, window, step, dp)
    told, sub = step_story(view, replay.window.hosts)
    link = telling(view)
    on_path = dict.fromkeys(dp_rank for dp_rank, _, _ in view.path.worker_shares)
    return StepOfWindowOut(
        window=replay.window.id,
        steps=list(replay.steps),
        step=view.step,
        dp_rank=view.dp_rank,
        dp_size=view.replayer.dp_size,
        pp_size=view.replayer.pp_size,
        recorded_s=view.recorded_s,
        ideal_s=view.ideal_s,
        sentence=told,
        sub=sub,
        dp_ranks_on_path=list(on_path)[:16],
        waiting=waiting_share(view.recorded, view.dp_rank),
        telling=link and TellingOut(stage=link.stage, optype=link.optype, seq_id=link.seq_id),
        timeline_query=_file_query(replay, view),
        viewer_url=service.viewer_url,
    )


@router.get(
    "/jobs/{job_id}/windows/{window}/operation",
    operation_id="get_window_operation",
    summary="See one operation against its ideal and its peers",
    responses=refusals(404, 409),
)
def get_window_operation(
    job_id: JobKey,
    window: WindowId,
    service: ServiceDep,
    stage: Annotated[int, Query(ge=0, le=2**31)],
    optype: Annotated[str, Query(max_length=64, pattern=r"^[a-z0-9-]+$")],
    seq_id: Annotated[int, Query(ge=0, le=2**53)],
    step: StepAsked = None,
    dp: DpAsked = None,
    run: Annotated[Literal["recorded", "ideal"], Query()] = "recorded",
) -> OperationOut:
    """422 where the stage has no such operation in the step."""
    replay, view = service.step_views.get(job_id, window, step, dp)
    found = operation(view, view.ideal if run == "ideal" else view.recorded, stage, optype, seq_id)
    after = found.after
    own: dict[str, Any] = {
        name: getattr(found, name) for name in found.__slots__ if name != "after"
    }
    return OperationOut(
        window=replay.window.id,
        step=view.step,
        run=run,
        dp_rank=view.dp_rank,
        stage=stage,
        rank=int(view.replayer.grid.rank[view.dp_rank, stage]),
        host=replay.window.hosts.get((view.dp_rank, stage)),
        after=after and WaitedForOut(**{name: getattr(after, name) for name in after.__slots__}),
        **own,
    )


def _file_query(replay: WindowReplay, view: StepView) -> str:
    """All workers where that is no larger than what is sent, else those of the replica."""
    steps = f"steps={view.step}"
    is_small = num_slices(replay, choose(replay, steps=str(view.step))) <= MAX_SLICES
    return steps if is_small else f"{steps}&workers={view.dp_rank}/*"
