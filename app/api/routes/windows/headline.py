"""The headline: the first sentence of a job's page."""

from contextlib import suppress

from pydantic import Field

from app.alerts.wording import lasted_s, recovery_sentence
from app.api.http.fields import AsOfField, BehindField, ResponseModel, ShownWindow, SinceStep
from app.api.routes.dependencies import ApiRouter, JobKey, ServiceDep
from app.api.routes.windows.charts import recent_step_s
from app.api.routes.windows.windows import RECENT, shown_result
from app.api.service.job_state import (
    JobState,
    job_state,
    silent_workers,
    silent_workers_text,
    state_of_window,
    state_since_s,
)
from app.api.service.service import Service
from app.charts.job.headline import Headline, JobFacts, headline
from app.errors import WindowNotFound
from app.result.window_result import WindowResult
from app.store import jobs
from app.store.alerting import alerts
from app.store.as_of import Processed
from app.store.database import Connection
from app.store.jobs import JobRecord
from app.trace.exits import end_sentence

router = ApiRouter("charts")


class HeadlineOut(ResponseModel):
    """State and main sentences of a job's page."""

    state: JobState
    as_of: AsOfField
    behind_s: BehindField
    sentence: str
    sub: str
    won_back_gpu_hours_per_day: float | None = Field(
        description="GPU-hours a day that the advised fix wins, simulated; null where none is."
    )


@router.get("/jobs/{job_id}/headline", summary="Get the headline of a job's page")
def get_headline(
    job_id: JobKey, service: ServiceDep, window: ShownWindow = RECENT, since_step: SinceStep = None
) -> HeadlineOut:
    """The job's cost and main finding: now, or in a past window."""
    result: WindowResult | None = None
    with suppress(WindowNotFound):
        result = shown_result(service, job_id, window, since_step=since_step)
    with service.store.read() as conn:
        job, processed = jobs.get(conn, job_id), service.processed(conn)
        is_now, alert_slowdown = window == RECENT, service.alert_slowdown
        if is_now:
            state = job_state(job, processed, alert_slowdown)
        elif result is None:
            state = "not-analysed"
        else:
            state = state_of_window(result.slowdown, result.fidelity.verdict, alert_slowdown)
        facts = _job_facts(conn, job, state, service, processed)
        recovery = _recovery(conn, job, service) if is_now and state == "healthy" else None
    shown = headline(state, result, facts)
    if recovery is not None:
        shown = Headline(shown.state, recovery, f"Now: {shown.sentence} {shown.sub}".strip())
    fix = result.advice if result and facts.num_gpus else None
    won_back = None if fix is None else fix.gpu_hours_per_day
    progress = processed.of(job_id, job.last_data_s)
    return HeadlineOut.of_record(shown, progress, won_back_gpu_hours_per_day=won_back)


# People who open the page of a healthy job after an alert want to know what had happened.
_RECOVERED_FOR_S = 6 * 3600.0


def _recovery(conn: Connection, job: JobRecord, service: Service) -> str | None:
    """What happened to the job before it was well again, if that is not long ago."""
    recovery = alerts.last_recovery(conn, job.job_id, since_s=service.now_s() - _RECOVERED_FOR_S)
    if recovery is None:
        return None
    began, ended = recovery
    seconds = lasted_s(began.detail, ended.detail, began.at_s, ended.at_s)
    return recovery_sentence(began.detail, ended.detail, seconds) or None


def _job_facts(
    conn: Connection, job: JobRecord, state: JobState, service: Service, processed: Processed
) -> JobFacts:
    return JobFacts(
        num_steps=job.recent.num_steps if job.recent else 0,
        window_steps=service.public_settings.window_steps,
        last_step=job.last_step,
        now_s=service.now_s(),
        since_s=state_since_s(job, state, processed),
        silent_ranks=job.silent_ranks or (),
        silent_who=silent_workers_text(conn, job),
        num_others=job.parallelism.num_workers - len({*silent_workers(job)}),
        step_s=recent_step_s(conn, job.job_id, job.epoch),
        num_gpus=job.num_gpus if job.ended_s is None and job.stalled_since_s is None else 0,
        ended_by=end_sentence(job.end_cause) if job.end_cause else None,
        is_refused=processed.of(job.job_id, job.last_data_s).is_refused,
    )
