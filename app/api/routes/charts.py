"""Charts: whole Plotly figures, with a sentence and a table for who cannot see them."""

from typing import Any, Literal

from fastapi import APIRouter
from starlette.responses import Response

from app.api.deps import JobKey, Responses, ServiceDep, refusals
from app.api.fields import (
    Answer,
    EpochNumber,
    Limit,
    ShownWindow,
    StepNumber,
    ThemeName,
    WindowId,
)
from app.api.job_state import JobState, job_state, silent_for_s, since_s, window_state
from app.api.routes.windows import json_response
from app.api.service import Service
from app.api.shown_steps import (
    DRAWN_STEPS,
    recent_step_s,
    recorded_steps,
    with_other_windows,
)
from app.charts import words
from app.charts.headline import Seen, headline
from app.charts.steps import StepPoint
from app.charts.steps import steps as steps_chart
from app.charts.theme import THEMES
from app.charts.window_charts import WINDOW_CHARTS
from app.errors import NotFound, WindowNotFound
from app.store import hosts, jobs, shards, steps, windows
from app.store.engine import Connection
from app.store.jobs import JobRecord
from app.trace.names import plain

router = APIRouter(tags=["charts"])

ChartName = Literal["workers", "optypes", "stages", "worker-steps"]


class ChartNotMeasured(NotFound):
    """The window has not been measured far enough to draw this."""

    code = "not_measured"


class HeadlineOut(Answer):
    """The one sentence that opens a job's page."""

    state: JobState
    sentence: str
    sub: str


_FIGURE: Responses = {
    200: {
        "description": "`data` and `layout` for Plotly; `meta` has a sentence and a table.",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Figure"}}},
    }
}


@router.get(
    "/jobs/{job_id}/windows/{window}/charts/{chart}",
    operation_id="get_window_chart",
    summary="See a chart of one window",
    response_class=Response,
    responses={**_FIGURE, **refusals(404)},
)
def get_window_chart(
    job_id: JobKey,
    window: WindowId,
    chart: ChartName,
    service: ServiceDep,
    theme: ThemeName = "light",
) -> Response:
    """404 with code `not_measured` while there is nothing to draw."""
    kind = WINDOW_CHARTS[chart]
    with service.store.read() as conn:
        result = windows.get(conn, job_id, window, per_step=kind.per_step)
        if not kind.can_draw(result):
            window_id = result["window"]["id"]
            raise ChartNotMeasured(f"window {window_id!r} has no figures for this chart")
        epoch = result["window"]["epoch"]
        known_hosts = hosts.load(conn, job_id, epoch)
        axis_steps = recorded_steps(conn, job_id, epoch) if kind.per_step else None
        if axis_steps and set(result["steps"]) <= set(axis_steps):
            result = with_other_windows(conn, job_id, result, axis_steps)
        else:
            axis_steps = None  # too long ago: the chart of step times above shows it alone, too
    return json_response(kind.draw(result, known_hosts, THEMES[theme], axis_steps))


@router.get(
    "/jobs/{job_id}/charts/steps",
    operation_id="get_steps_chart",
    summary="See the chart of a job's step times",
    response_class=Response,
    responses={**_FIGURE, **refusals(404)},
)
def get_steps_chart(
    job_id: JobKey,
    service: ServiceDep,
    theme: ThemeName = "light",
    epoch: EpochNumber = None,
    first: StepNumber = None,
    last: StepNumber = None,
    limit: Limit = DRAWN_STEPS,
) -> Response:
    """The same steps that the step series gives for the same query."""
    with service.store.read() as conn:
        job = jobs.get(conn, job_id)
        rows = steps.series(conn, job_id, epoch=epoch, first=first, last=last, limit=limit)
        silence = _silence(conn, job, service)
    points = [
        StepPoint(row.step, row.recorded_s, row.simulated_s, row.ideal_s, row.skipped_reason)
        for row in rows
    ]
    if not any(point.is_measured for point in points):
        raise ChartNotMeasured(f"job {plain(job_id)!r} has no complete step there")
    is_to_the_end = last is None and epoch in (None, job.epoch)
    shown_silence = silence if is_to_the_end else None
    return json_response(steps_chart(points, theme=THEMES[theme], silent_since=shown_silence))


@router.get(
    "/jobs/{job_id}/headline",
    operation_id="get_headline",
    summary="See what a job's page says first",
    responses=refusals(404),
)
def get_headline(
    job_id: JobKey, service: ServiceDep, window: ShownWindow = "latest"
) -> HeadlineOut:
    """What it costs, and what stands out: now, or in a window of the past."""
    with service.store.read() as conn:
        job = jobs.get(conn, job_id)
        try:
            result = windows.get(conn, job_id, window, per_step=False)
        except WindowNotFound:
            result = None
        is_now = window == "latest"
        state = _state(conn, job, service) if is_now else _state_then(result, service)
        seen = _seen(conn, job, state, result, service)
    told = headline(state, result, seen)
    return HeadlineOut(state=told.state, sentence=told.sentence, sub=told.sub)


def _seen(
    conn: Connection,
    job: JobRecord,
    state: JobState,
    result: dict[str, Any] | None,
    service: Service,
) -> Seen:
    epoch = result["window"]["epoch"] if result else job.epoch
    return Seen(
        num_steps=job.latest.num_steps if job.latest else 0,
        window_steps=service.window_steps,
        last_step=job.last_step,
        now_s=service.now_s(),
        since_s=since_s(job, state),
        silent_ranks=job.silent_ranks or (),
        num_others=job.parallelism.num_workers - len(job.silent_ranks or ()),
        step_s=recent_step_s(conn, job.job_id, job.epoch),
        hosts=hosts.load(conn, job.job_id, epoch),
    )


def _silence(conn: Connection, job: JobRecord, service: Service) -> str | None:
    """What the band after the last step says; None where the job goes on."""
    match _state(conn, job, service):
        case "silent":
            return f"{words.counted(len(job.silent_ranks or ()), 'rank')} silent"
        case "stalled" | "stale":
            return f"no data for {words.span(silent_for_s(job, service.now_s()) or 0.0)}"
    return None


def _state(conn: Connection, job: JobRecord, service: Service) -> JobState:
    now_s = service.now_s()
    is_watched = shards.count_live(conn, now_s=now_s) > 0
    return job_state(job, now_s=now_s, thresholds=service.thresholds, is_watched=is_watched)


def _state_then(result: dict[str, Any] | None, service: Service) -> JobState:
    if result is None:
        return "not-analysed"
    return window_state(result["slowdown"], result["fidelity"]["verdict"], service.thresholds)
