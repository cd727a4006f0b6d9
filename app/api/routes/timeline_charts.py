"""Charts of one step of a closed window: its timeline, its critical path, its waits."""

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from app.api.asked_step import DpAsked, StepAsked
from app.api.deps import FIGURE, JobKey, ServiceDep, refusals
from app.api.fields import ThemeName, WindowId
from app.api.routes.windows import json_response
from app.charts.path_parts import path_parts
from app.charts.theme import THEMES
from app.charts.timeline import WIDTH_PX, timeline
from app.charts.waiting import waiting
from app.engine.timeline.lanes import waiting_share

router = APIRouter(tags=["charts"])

Moment = Annotated[float | None, Query(ge=0, le=1e9, allow_inf_nan=False)]


@router.get(
    "/jobs/{job_id}/windows/{window}/charts/timeline",
    operation_id="get_timeline_chart",
    summary="See one step, recorded above ideal",
    response_class=Response,
    responses={**FIGURE, **refusals(404, 409)},
)
def get_timeline_chart(
    job_id: JobKey,
    window: WindowId,
    service: ServiceDep,
    step: StepAsked = None,
    dp: DpAsked = None,
    from_s: Annotated[Moment, Query(alias="from", description="Seconds since it began.")] = None,
    to_s: Annotated[Moment, Query(alias="to", description="Seconds since it began.")] = None,
    width: Annotated[int, Query(ge=100, le=8000, description="Pixels of the plot.")] = WIDTH_PX,
    theme: ThemeName = "light",
) -> Response:
    """At most 3,000 bars: what is narrower than a pixel is one with its neighbours."""
    _, view = service.step_views.get(job_id, window, step, dp)
    figure = timeline(view, theme=THEMES[theme], from_s=from_s, to_s=to_s, width_px=width)
    return json_response(figure)


@router.get(
    "/jobs/{job_id}/windows/{window}/charts/path-parts",
    operation_id="get_path_parts_chart",
    summary="See what a step's critical path is made of",
    response_class=Response,
    responses={**FIGURE, **refusals(404, 409)},
)
def get_path_parts_chart(
    job_id: JobKey,
    window: WindowId,
    service: ServiceDep,
    step: StepAsked = None,
    theme: ThemeName = "light",
) -> Response:
    """Of the recorded run; all parts together are the path."""
    _, view = service.step_views.get(job_id, window, step, None)
    op_types = view.recorded.template.op_types
    return json_response(path_parts(view.path, op_types, theme=THEMES[theme]))


@router.get(
    "/jobs/{job_id}/windows/{window}/charts/waiting",
    operation_id="get_waiting_chart",
    summary="See how long each stage waits in a step",
    response_class=Response,
    responses={**FIGURE, **refusals(404, 409)},
)
def get_waiting_chart(
    job_id: JobKey,
    window: WindowId,
    service: ServiceDep,
    step: StepAsked = None,
    dp: DpAsked = None,
    theme: ThemeName = "light",
) -> Response:
    """The share of the recorded step in which a worker neither computes nor moves data."""
    _, view = service.step_views.get(job_id, window, step, dp)
    share = waiting_share(view.recorded, view.dp_rank)
    return json_response(waiting(share, view.recorded_s, view.dp_rank, theme=THEMES[theme]))
