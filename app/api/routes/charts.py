"""Charts: whole Plotly figures, with a sentence and a table for who cannot see them."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from starlette.responses import Response

from app.api.deps import FIGURE, JobKey, ServiceDep, refusals
from app.api.fields import (
    ChosenSteps,
    EpochNumber,
    Limit,
    ShownWindow,
    StepNumber,
    ThemeName,
    WindowsId,
)
from app.api.happened import step_events
from app.api.job_now import silence_of, silent_workers
from app.api.length_points import length_points
from app.api.routes.windows import json_response
from app.api.service import Service
from app.api.shown_steps import (
    DRAWN_STEPS,
    ShownSteps,
    axis_of,
    shown_steps,
    with_steps,
    with_waits,
)
from app.api.window_range import RANGE, shown_result
from app.charts.figure import Figure
from app.charts.lengths import lengths
from app.charts.steps import StepPoint
from app.charts.steps import steps as steps_chart
from app.charts.theme import THEMES, Theme
from app.charts.window_charts import WINDOW_CHARTS, Setting
from app.charts.workers import Sort
from app.errors import NotFound
from app.store import hosts, jobs, spans, steps, windows
from app.store.jobs import JobRecord
from app.trace.names import plain

router = APIRouter(tags=["charts"])

ChartName = Literal[
    "workers", "optypes", "stages", "worker-steps", "dp-steps", "waited-for", "lengths"
]


class ChartNotMeasured(NotFound):
    """The window has not been measured far enough to draw this."""

    code = "not_measured"


@router.get(
    "/jobs/{job_id}/windows/{window}/charts/{chart}",
    operation_id="get_window_chart",
    summary="See a chart of one window, or of several",
    response_class=Response,
    responses={**FIGURE, **refusals(404, 409)},
)
def get_window_chart(
    job_id: JobKey,
    window: WindowsId,
    chart: ChartName,
    service: ServiceDep,
    theme: ThemeName = "light",
    sort: Annotated[Sort, Query(description="Order of the workers' columns.")] = "rank",
    steps: ChosenSteps = None,
) -> Response:
    """404 with code `not_measured` while there is nothing to draw.

    `lengths` is drawn from the operations of the newest closed window, as long as they are kept.
    """
    if chart == "lengths":
        return json_response(_lengths(service, job_id, window, steps, THEMES[theme]))
    kind = WINDOW_CHARTS[chart]
    by_step = kind.per_step is not None and steps is not None
    result = shown_result(service, job_id, window, steps, per_step=by_step)
    window_id, epoch = result["window"]["id"], result["window"]["epoch"]
    if not kind.can_draw(result):
        raise ChartNotMeasured(f"window {window_id!r} has no figures for this chart")
    with service.store.read() as conn:
        known_hosts = hosts.load(conn, job_id, epoch) if kind.names_hosts else None
        silent = silent_workers(jobs.get(conn, job_id)) if window == "latest" else []
        axis = None
        if kind.per_step is not None:
            shown = shown_steps(conn, job_id, epoch, _ends(result))
            axis = shown.axis
            if kind.per_step == "waited_for_s":
                result = with_waits(conn, job_id, result, shown)
            else:
                result = with_steps(conn, job_id, result, shown, kind.per_step)
            if not result["steps"]:
                raise ChartNotMeasured(f"window {window_id!r} has no figures by step")
    events = [] if axis is None else step_events(service, job_id, epoch)
    setting = Setting(THEMES[theme], known_hosts, axis, sort, events, silent)
    return json_response(kind.draw(result, setting))


@router.get(
    "/jobs/{job_id}/charts/steps",
    operation_id="get_steps_chart",
    summary="See the chart of a job's step times",
    response_class=Response,
    responses={**FIGURE, **refusals(404)},
)
def get_steps_chart(
    job_id: JobKey,
    service: ServiceDep,
    theme: ThemeName = "light",
    epoch: EpochNumber = None,
    first: StepNumber = None,
    last: StepNumber = None,
    limit: Limit = DRAWN_STEPS,
    window: Annotated[
        ShownWindow | None, Query(description="The steps of this window or range, and around it.")
    ] = None,
    right: Annotated[
        Literal["none", "bars"], Query(description="What the chart under it has at its right.")
    ] = "none",
) -> Response:
    """The same steps that the step series gives for the same query, or those of a window."""
    with service.store.read() as conn:
        job = jobs.get(conn, job_id)
        silence = silence_of(conn, job, service)
    if window is not None:
        shown, is_to_the_end = _of_window(service, job, window)
    else:
        with service.store.read() as conn:
            rows = steps.series(conn, job_id, epoch=epoch, first=first, last=last, limit=limit)
        shown = ShownSteps(rows, axis_of(rows))
        is_to_the_end = last is None and epoch in (None, job.epoch)
    points = [
        StepPoint(row.step, row.recorded_s, row.simulated_s, row.ideal_s, row.skipped_reason)
        for row in shown.rows
    ]
    if not any(point.is_measured for point in points):
        raise ChartNotMeasured(f"job {plain(job_id)!r} has no complete step there")
    figure = steps_chart(
        points,
        at=shown.axis,
        theme=THEMES[theme],
        silent_since=silence if is_to_the_end else None,
        has_bars=right == "bars",
        events=step_events(service, job_id, shown.rows[0].epoch),
        is_part=shown.is_part,
    )
    return json_response(figure)


def _of_window(service: Service, job: JobRecord, window: str) -> tuple[ShownSteps, bool]:
    """The steps drawn for a window or a range, and whether they go on to the job's last one."""
    epoch, within = _within(service, job.job_id, window)
    with service.store.read() as conn:
        shown = shown_steps(conn, job.job_id, epoch, within)
        newest = steps.series(conn, job.job_id, epoch=job.epoch, limit=1)
    return shown, bool(newest and shown.rows and newest[-1] == shown.rows[-1])


def _within(service: Service, job_id: str, window: str) -> tuple[int, tuple[int, int]]:
    """The run, and the first and the last step of a range or of one window."""
    with service.store.read() as conn:
        if RANGE in window:
            span = spans.between(conn, job_id, *window.split(RANGE))
            return span.epoch, (span.first_steps[0], span.last_step)
        one = windows.summary(conn, job_id, window)
        return one.epoch, (one.first_step, one.last_step)


def _ends(result: Mapping[str, Any]) -> tuple[int, int]:
    return result["steps"][0], result["steps"][-1]


def _lengths(service: Service, job_id: str, window: str, steps: str | None, theme: Theme) -> Figure:
    found = length_points(service, job_id, window, steps)
    if found is None:
        raise ChartNotMeasured(f"window {window!r} has no micro-batches to compare by length")
    return lengths(found, theme=theme)
