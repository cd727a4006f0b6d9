"""Timelines of closed windows: trace files, single steps, their charts, and critical paths."""

from typing import Annotated, Literal

from fastapi import Query
from pydantic import Field
from starlette.responses import Response

from app.api.http.fields import DpRankQuery, ResponseModel, StepQuery, ThemeName, WindowId
from app.api.routes.dependencies import ApiRouter, JobKey, Responses, ServiceDep, refusals
from app.api.routes.windows.traces import Download
from app.api.routes.windows.windows import json_response
from app.charts.base.theme import THEMES
from app.charts.timeline.bars import waiting_by_stage
from app.charts.timeline.critical_path import path_parts
from app.charts.timeline.timeline import WIDTH_PX, step_headline, timeline
from app.engine.replays import WindowReplay
from app.engine.timeline import critical_path
from app.engine.timeline.selection import num_slices, select, slowest_step
from app.engine.timeline.step_run import RunKind, waiting_share
from app.engine.timeline.step_view import StepView, find_operation, most_delayed_link
from app.engine.timeline.writer import trace_event_pieces
from app.errors import TooLarge
from app.formatting import utc_time
from app.store import windows
from app.trace.job import job_of

# Some 35 MB, written in a few seconds; viewers are slow with more.
MAX_SLICES = 1_000_000
GZIP = "application/gzip"

router = ApiRouter("windows")

NumberList = Annotated[str | None, Query(max_length=4096, pattern=r"^[0-9,\-]*$")]

_TIMELINE_FILE: Responses = {
    200: {
        "description": "Chrome trace events, gzip-compressed: open the file in a trace viewer.",
        "content": {GZIP: {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.get(
    "/jobs/{job_id}/windows/{window}/timeline",
    summary="Download a timeline of some steps and workers",
    response_class=Response,
    responses=_TIMELINE_FILE | refusals(413),
)
def get_window_timeline(
    job_id: JobKey,
    window: WindowId,
    service: ServiceDep,
    steps: Annotated[
        NumberList,
        Query(description="Step numbers and ranges, such as `3,5-9`; default: the slowest step."),
    ] = None,
    workers: Annotated[
        str | None,
        Query(
            max_length=4096,
            pattern=r"^[0-9,/*]*$",
            description="Workers as dp rank/stage, such as `0/1,3/*` (* means all stages or dp "
            "ranks); default: all workers.",
        ),
    ] = None,
    ranks: Annotated[
        NumberList, Query(description="Workers by global rank, as numbers and ranges: `0,8-11`.")
    ] = None,
    runs: Annotated[
        str | None,
        Query(
            max_length=64,
            description="Comma-separated runs: `recorded`, `simulated`, `ideal`; default: all "
            "three.",
        ),
    ] = None,
) -> Response:
    """The recorded, simulated and ideal runs on one clock, with one track per stream.

    At most 1,000,000 operations, each counted once per run.
    """
    replay = service.replays.get(job_id, window)
    choice = select(replay, steps=steps, workers=workers, ranks=ranks, runs=runs)
    wanted = num_slices(replay, choice)
    if wanted > MAX_SLICES:
        raise TooLarge(
            f"that timeline has {wanted:,} operations, and at most {MAX_SLICES:,} are sent: choose "
            "fewer with steps=3, workers=0/* (a dp rank) or 0/1 (a worker), or runs=recorded"
        )
    return Download(
        trace_event_pieces(replay, choice),
        name=f"{job_of(job_id)}-{replay.window.id}-timeline.json.gz",
        media_type=GZIP,
    )


class PathLinkOut(ResponseModel):
    """One operation of the critical path."""

    optype: str
    dp_rank: int
    stage: int
    rank: int
    seq_id: int
    microbatch: int | None
    chunk: int | None
    start_s: float = Field(description="Start of the operation, in seconds since the step began.")
    own_s: float = Field(
        description="Seconds that the operation adds to the critical path: 0 for one that "
        "only arrived last; negative if the hosts' clocks disagree."
    )
    gap_s: float = Field(
        description="Seconds between the end of the previous operation on the path and the "
        "start of this one; always 0 in a replayed run."
    )


class WorkerShareOut(ResponseModel):
    """One worker's share of the critical path, gaps included."""

    dp_rank: int
    stage: int
    rank: int
    share: float


class PathSharesOut(ResponseModel):
    """Shares of the step time. `by_optype` and `waiting` sum to 1; `by_worker` sums to 1."""

    by_optype: dict[str, float]
    waiting: float
    by_worker: list[WorkerShareOut]


class CriticalPathOut(ResponseModel):
    """The critical path; all `own_s` and `gap_s` sum to `length_s`."""

    window: str
    step: int
    run: RunKind
    length_s: float
    shares: PathSharesOut
    links: list[PathLinkOut]


@router.get(
    "/jobs/{job_id}/windows/{window}/critical-path", summary="Get the critical path of a step"
)
def get_window_critical_path(
    job_id: JobKey,
    window: WindowId,
    service: ServiceDep,
    step: StepQuery = None,
    run: Annotated[
        RunKind, Query(description="The run: as recorded, or as replayed.")
    ] = "recorded",
) -> CriticalPathOut:
    """The chain of operations that determines the step time.

    It goes from the step's last operation back to its start, always to the predecessor that ended
    last.
    """
    replay = service.replays.get(job_id, window)
    chosen = slowest_step(replay, run) if step is None else step
    path = critical_path.critical_path(replay, chosen, run)
    return CriticalPathOut(window=replay.window.id, **critical_path.as_json(path))


class KeyOperationOut(ResponseModel):
    """The replica's operation on the critical path that exceeds its ideal duration most."""

    stage: int
    optype: str
    seq_id: int


class StepOfWindowOut(ResponseModel):
    """One step of one dp rank, and the steps and dp ranks that the window offers."""

    window: str
    steps: list[int] = Field(description="All replayed steps of the window.")
    step: int
    dp_rank: int
    dp_size: int
    pp_size: int
    recorded_s: float
    ideal_s: float
    sentence: str
    sub: str
    dp_ranks_on_path: list[int] = Field(
        description="dp ranks on the critical path, by share of the path, descending."
    )
    waiting: list[float] = Field(description="Share of the step that each stage waits.")
    telling: KeyOperationOut | None
    timeline_query: str = Field(
        description="Query string of the timeline download for this step: all workers, or only "
        "this dp rank if all exceed the size limit."
    )
    viewer_url: str = Field(description="Address of the trace viewer that the page opens.")


class WaitedForOut(ResponseModel):
    """The preceding operation, on the same dp rank."""

    optype: str
    stage: int
    microbatch: int | None


class OperationOut(ResponseModel):
    """One operation, its ideal and its peers' durations, in seconds."""

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
    start_s: float = Field(description="Start of the operation, in seconds since the step began.")
    duration_s: float
    waited_s: float = Field(
        description="Seconds of the duration spent waiting for the last of the peers."
    )
    own_s: float = Field(description="Remaining seconds of the duration: computation or transfer.")
    ideal_s: float
    peers_s: float | None = Field(
        description="Median `own_s` of the same operation type on all other workers; null if "
        "there is none."
    )
    after: WaitedForOut | None = Field(
        description="The operation that it had to wait for; null for a first operation."
    )
    delay_s: float = Field(
        description="Seconds between the end of `after` and the start of this operation."
    )
    is_critical: bool = Field(description="Whether the operation is on the recorded critical path.")


@router.get("/jobs/{job_id}/windows/{window}/step", summary="Get the main figures of a step")
def get_window_step(
    job_id: JobKey,
    window: WindowId,
    service: ServiceDep,
    step: StepQuery = None,
    dp: DpRankQuery = None,
) -> StepOfWindowOut:
    """Step times, waiting and sentences of the timeline page. Closed windows only."""
    replay, view = service.step_views.get(job_id, window, step, dp)
    with service.store.read() as conn:
        starts_s = windows.step_starts(conn, job_id, replay.window.epoch, [view.step])
    at_s = starts_s.get(view.step)
    at = None if at_s is None else utc_time(at_s, service.now_s())
    sentence, sub = step_headline(view, replay.window.hosts, at)
    link = most_delayed_link(view)
    on_path = dict.fromkeys(dp_rank for dp_rank, _, _ in view.path.worker_shares)
    return StepOfWindowOut.of_record(
        view,
        view.replayer,
        window=replay.window.id,
        steps=list(replay.steps),
        sentence=sentence,
        sub=sub,
        dp_ranks_on_path=list(on_path)[:16],
        waiting=waiting_share(view.recorded, view.dp_rank),
        telling=link,
        timeline_query=_file_query(replay, view),
        viewer_url=service.viewer_url,
    )


@router.get(
    "/jobs/{job_id}/windows/{window}/operation",
    summary="Get an operation, compared with its ideal and its peers",
)
def get_window_operation(
    job_id: JobKey,
    window: WindowId,
    service: ServiceDep,
    stage: Annotated[int, Query(ge=0, le=2**31)],
    optype: Annotated[str, Query(max_length=64, pattern=r"^[a-z0-9-]+$")],
    seq_id: Annotated[int, Query(ge=0, le=2**53)],
    step: StepQuery = None,
    dp: DpRankQuery = None,
    run: Annotated[Literal["recorded", "ideal"], Query()] = "recorded",
) -> OperationOut:
    """422 if the stage has no such operation in the step."""
    replay, view = service.step_views.get(job_id, window, step, dp)
    shown = view.ideal if run == "ideal" else view.recorded
    return OperationOut.of_record(
        find_operation(view, shown, stage, optype, seq_id),
        window=replay.window.id,
        step=view.step,
        run=run,
        dp_rank=view.dp_rank,
        stage=stage,
        rank=int(view.replayer.grid.rank[view.dp_rank, stage]),
        host=replay.window.hosts.get((view.dp_rank, stage)),
    )


def _file_query(replay: WindowReplay, view: StepView) -> str:
    """All workers if the file stays within the limit, else those of the replica."""
    steps = f"steps={view.step}"
    is_small = num_slices(replay, select(replay, steps=str(view.step))) <= MAX_SLICES
    return steps if is_small else f"{steps}&workers={view.dp_rank}/*"


charts_router = ApiRouter("charts")

StepSeconds = Annotated[float | None, Query(ge=0, le=1e9, allow_inf_nan=False)]


@charts_router.chart(
    "/jobs/{job_id}/windows/{window}/charts/timeline", "Get the timeline chart of a step"
)
def get_timeline_chart(
    job_id: JobKey,
    window: WindowId,
    service: ServiceDep,
    step: StepQuery = None,
    dp: DpRankQuery = None,
    from_s: Annotated[
        StepSeconds,
        Query(
            alias="from", description="Start of the shown part, in seconds since the step began."
        ),
    ] = None,
    to_s: Annotated[
        StepSeconds,
        Query(alias="to", description="End of the shown part, in seconds since the step began."),
    ] = None,
    width: Annotated[
        int, Query(ge=100, le=8000, description="Width of the plot, in pixels.")
    ] = WIDTH_PX,
    theme: ThemeName = "light",
) -> Response:
    """The recorded run above the ideal one.

    At most 3,000 bars: operations narrower than a pixel are merged with their neighbours.
    """
    _, view = service.step_views.get(job_id, window, step, dp)
    figure = timeline(view, theme=THEMES[theme], from_s=from_s, to_s=to_s, width_px=width)
    return json_response(figure)


@charts_router.chart(
    "/jobs/{job_id}/windows/{window}/charts/path-parts", "Get the chart of a critical path's parts"
)
def get_path_parts_chart(
    job_id: JobKey,
    window: WindowId,
    service: ServiceDep,
    step: StepQuery = None,
    theme: ThemeName = "light",
) -> Response:
    """The recorded critical path by operation type and waiting; the parts sum to its length."""
    _, view = service.step_views.get(job_id, window, step, None)
    op_types = view.recorded.template.op_types
    return json_response(path_parts(view.path, op_types, theme=THEMES[theme]))


@charts_router.chart(
    "/jobs/{job_id}/windows/{window}/charts/waiting", "Get the chart of waiting by stage in a step"
)
def get_waiting_chart(
    job_id: JobKey,
    window: WindowId,
    service: ServiceDep,
    step: StepQuery = None,
    dp: DpRankQuery = None,
    theme: ThemeName = "light",
) -> Response:
    """Share of the recorded step in which a worker neither computes nor transfers data."""
    _, view = service.step_views.get(job_id, window, step, dp)
    share = waiting_share(view.recorded, view.dp_rank)
    return json_response(
        waiting_by_stage(share, view.recorded_s, view.dp_rank, theme=THEMES[theme])
    )
