"""The headline: the one sentence that opens a job's page."""

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter
from pydantic import Field

from app.api.deps import JobKey, ServiceDep, refusals
from app.api.fields import Answer, ShownWindow
from app.api.job_now import silent_place, silent_workers, state_of
from app.api.job_state import JobState, since_s, window_state
from app.api.service import Service
from app.api.shown_steps import recent_step_s
from app.api.window_range import shown_result
from app.charts.headline import Seen, headline
from app.charts.remedy import won_back_gpu_hours
from app.errors import WindowNotFound
from app.store import jobs
from app.store.engine import Connection
from app.store.jobs import JobRecord

router = APIRouter(tags=["charts"])


class HeadlineOut(Answer):
    """The one sentence that opens a job's page."""

    state: JobState
    sentence: str
    sub: str
    won_back_gpu_hours_per_day: float | None = Field(
        description="Without what costs most now; null where that is not known, or nothing runs."
    )


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
    result = _result_or_none(service, job_id, window)
    with service.store.read() as conn:
        job = jobs.get(conn, job_id)
        is_now = window == "latest"
        state = state_of(conn, job, service) if is_now else _state_then(result, service)
        seen = _seen(conn, job, state, service)
    told = headline(state, result, seen)
    leading = next(iter((result or {}).get("findings") or ()), None)
    won_back = None if leading is None else won_back_gpu_hours(leading, seen.num_gpus)
    return HeadlineOut(
        state=told.state,
        sentence=told.sentence,
        sub=told.sub,
        won_back_gpu_hours_per_day=won_back,
    )


def _result_or_none(service: Service, job_id: str, window: str) -> Mapping[str, Any] | None:
    try:
        return shown_result(service, job_id, window)
    except WindowNotFound:
        return None


def _seen(conn: Connection, job: JobRecord, state: JobState, service: Service) -> Seen:
    is_running = job.ended_s is None and job.stalled_since_s is None
    return Seen(
        num_steps=job.latest.num_steps if job.latest else 0,
        window_steps=service.window_steps,
        last_step=job.last_step,
        now_s=service.now_s(),
        since_s=since_s(job, state),
        silent_ranks=job.silent_ranks or (),
        silent_place=silent_place(conn, job),
        num_others=job.parallelism.num_workers - len({*silent_workers(job)}),
        step_s=recent_step_s(conn, job.job_id, job.epoch),
        num_gpus=job.num_gpus if is_running else 0,
    )


def _state_then(result: Mapping[str, Any] | None, service: Service) -> JobState:
    if result is None:
        return "not-analysed"
    return window_state(result["slowdown"], result["fidelity"]["verdict"], service.thresholds)
