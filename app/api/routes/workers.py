"""Workers: what is known of one of them, its course, and its operations against its peers'."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path
from pydantic import Field
from starlette.responses import Response

from app.api.closed_windows import key_of
from app.api.deps import FIGURE, JobKey, ServiceDep, refusals
from app.api.fields import Answer, ShownWindow, ThemeName
from app.api.routes.windows import json_response
from app.api.seen_worker import SeenWorker, seen_worker
from app.api.service import Service
from app.api.worker_groups import GroupOut, groups_of_worker
from app.api.worker_windows import worker_windows
from app.charts.figure import Figure
from app.charts.theme import THEMES, Theme
from app.charts.worker_course import worker_course
from app.charts.worker_ops import worker_ops
from app.charts.worker_story import findings_naming, place_of, worker_story
from app.engine.worker_ops import ops_by_type
from app.errors import Conflict, NotFound

router = APIRouter(tags=["workers"])

MAX_NEIGHBOURS = 16

WorkerId = Annotated[
    str,
    Path(pattern=r"^[0-9]{1,9}-[0-9]{1,9}$", description="dp rank - stage.", examples=["3-1"]),
]


class WorkerNotMeasured(NotFound):
    """The window has no figures of the worker."""

    code = "not_measured"


class NeighbourOut(Answer):
    """Another worker of the job on the same host."""

    dp_rank: int
    stage: int
    slowdown: float | None


class WorkerPageOut(Answer):
    """One worker in one window; figures that are not known are null."""

    window: str | None
    steps: list[int]
    dp_rank: int
    stage: int
    host: str | None
    rack: str | None = Field(description="Of its host, as its recorder says.")
    switch: str | None = Field(description="That its host is connected to, as its recorder says.")
    sentence: str
    sub: str
    verdict: Literal["ok", "low"] | None
    slowdown: float | None = Field(description="Of the job, if only this worker were slow.")
    place: int | None = Field(description="1 for the slowest worker of the job.")
    num_workers: int
    job_slowdown: float | None
    launch_delay_s: float | None = Field(description="Mean seconds a step.")
    others_waited_s: float | None = Field(
        description="Mean seconds a step that others waited as it launched late."
    )
    findings: list[dict[str, Any]] = Field(description="Those of the window that blame it.")
    operations_of: str | None = Field(
        description="The closed window whose operations can be compared; null where none can."
    )
    dropped: int | None = Field(
        description="Operations of the run that its recorders have dropped; null where none says."
    )
    groups: list[GroupOut] = Field(
        description="That its ranks are members of and recorded collectives in; eight at most."
    )
    on_its_host: list[NeighbourOut] = Field(description="The first 16 of the same job.")
    num_on_its_host: int


@router.get(
    "/jobs/{job_id}/workers/{worker}",
    operation_id="get_worker",
    summary="See one worker",
    responses=refusals(404, 409),
)
def get_worker(
    job_id: JobKey, worker: WorkerId, service: ServiceDep, window: ShownWindow = "latest"
) -> WorkerPageOut:
    """What it costs, what it is blamed for, and who else is on its host."""
    seen = seen_worker(service, job_id, worker, window)
    result, is_low = seen.result, seen.verdict == "low"
    sentence, sub = worker_story(result, seen.dp_rank, seen.stage, seen.host)
    slowdown = None if is_low else seen.figure("worker_slowdown")
    return WorkerPageOut(
        window=result["window"]["id"] if result else None,
        steps=result.get("steps", []),
        dp_rank=seen.dp_rank,
        stage=seen.stage,
        host=seen.host,
        rack=seen.placement.rack,
        switch=seen.placement.switch,
        sentence=sentence,
        sub=sub,
        verdict=seen.verdict,
        slowdown=slowdown,
        place=None if slowdown is None else _place(seen),
        num_workers=seen.num_workers,
        job_slowdown=None if is_low else result.get("slowdown"),
        launch_delay_s=seen.figure("launch_delay", "by_worker"),
        others_waited_s=seen.figure("launch_delay", "others_waited"),
        findings=_findings(seen),
        operations_of=_operations_of(service, job_id, window),
        dropped=seen.dropped,
        groups=groups_of_worker(result, seen.dp_rank, seen.stage),
        on_its_host=[_neighbour(seen, *each) for each in seen.beside[:MAX_NEIGHBOURS]],
        num_on_its_host=len(seen.beside),
    )


@router.get(
    "/jobs/{job_id}/workers/{worker}/charts/{chart}",
    operation_id="get_worker_chart",
    summary="See a worker's slowdown over steps and windows, or its operations against its peers'",
    response_class=Response,
    responses={**FIGURE, **refusals(404, 409)},
)
def get_worker_chart(
    job_id: JobKey,
    worker: WorkerId,
    chart: Literal["course", "ops"],
    service: ServiceDep,
    window: ShownWindow = "latest",
    theme: ThemeName = "light",
) -> Response:
    """`course` has the last windows up to the shown one, the newest of them step by step.

    `ops` are of the window, or the last closed one: operations are kept when a window closes.
    """
    seen = seen_worker(service, job_id, worker, window)
    draw = _course if chart == "course" else _ops
    return json_response(draw(service, job_id, seen, window, THEMES[theme]))


def _course(service: Service, job_id: str, seen: SeenWorker, window: str, theme: Theme) -> Figure:
    if not seen.result.get("worker_slowdown"):
        raise WorkerNotMeasured(f"window {window!r} has no figures of its workers")
    with service.store.read() as conn:
        course = worker_windows(conn, job_id, dict(seen.result), seen.dp_rank, seen.stage)
    return worker_course(course, seen.name, theme=theme)


def _ops(service: Service, job_id: str, seen: SeenWorker, window: str, theme: Theme) -> Figure:
    replay = service.replays.get(job_id, window.rpartition("..")[2])
    with service.replays.at_work.taken():
        found = ops_by_type(replay, seen.dp_rank, seen.stage)
    return worker_ops(found, seen.name, theme=theme)


def _place(seen: SeenWorker) -> int:
    return place_of(seen.result["worker_slowdown"], seen.dp_rank, seen.stage)[0]


def _findings(seen: SeenWorker) -> list[dict[str, Any]]:
    found = seen.result.get("findings") or []
    return [dict(each) for each in findings_naming(found, seen.dp_rank, seen.stage, seen.host)]


def _neighbour(seen: SeenWorker, dp_rank: int, stage: int) -> NeighbourOut:
    slowdowns = None if seen.verdict == "low" else seen.result.get("worker_slowdown")
    slowdown = slowdowns[dp_rank][stage] if slowdowns else None
    return NeighbourOut(dp_rank=dp_rank, stage=stage, slowdown=slowdown)


def _operations_of(service: Service, job_id: str, window: str) -> str | None:
    with service.store.read() as conn:
        try:
            return key_of(conn, job_id, window.rpartition("..")[2]).window_id
        except Conflict:
            return None
