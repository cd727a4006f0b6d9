"""The fleet: the list of all jobs, and charts of their losses in the last days."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

from fastapi import Query
from pydantic import Field
from starlette.responses import Response

from app import formatting
from app.api.http import fields
from app.api.routes.alerts.alerts import num_notifying
from app.api.routes.dependencies import FIGURE_RESPONSE, ApiRouter, CallerDep, ServiceDep
from app.api.routes.fleet.fleet_jobs import (
    DAY_S,
    Direction,
    FleetFilter,
    FleetJob,
    FleetSummaryOut,
    Order,
    fleet_jobs,
    fleet_summary,
    job_missing_data_text,
    midnight_s,
    page_of_jobs,
    sort_jobs,
)
from app.api.routes.jobs.jobs import LifecycleQuery, ParallelismOut
from app.api.routes.windows.windows import RecentStepsOut, json_response
from app.api.service.job_state import JobState
from app.api.service.service import Service
from app.charts.base.figure import PlotlyFigure
from app.charts.base.theme import THEMES, Theme
from app.charts.fleet.gpu_hours import FleetDay, fleet_causes, fleet_optypes, fleet_planned
from app.charts.fleet.jobs import JobLoss, fleet_sizes, fleet_waste, measured_jobs
from app.result.brief import FindingBrief
from app.result.causes import CAUSES
from app.result.finding import ObservationKind, Persistence
from app.result.join import leading
from app.result.window_result import Verdict
from app.store import fleet, hosts, jobs
from app.store.database import Connection
from app.store.fleet import RecentWindow
from app.store.jobs import Lifecycle
from app.trace.job import Parallelism

router = ApiRouter("fleet")

MAX_SILENT_RANKS = 4  # listed
NEW_ALERT_S = 3600.0


class FleetCauseOut(fields.ResponseModel):
    """A cause in a job's newest window."""

    cause: str
    cost: float | None = Field(
        description="Share of the job's GPU time that the cause costs, from 0 to 1."
    )
    confidence: float


class ObservationOut(fields.ResponseModel):
    """A fact without a cause."""

    kind: ObservationKind
    share: float | None = Field(description="Of the GPU time.")
    sentence: str


class FleetJobOut(fields.ResponseModel):
    """One job of the list; unknown figures are null."""

    job_id: fields.JobName
    name: str
    state: JobState
    as_of: fields.AsOfField
    behind_s: fields.BehindField
    lifecycle: Lifecycle
    parallelism: ParallelismOut
    gpus: int = Field(validation_alias="num_gpus")
    framework: str | None
    labels: dict[str, str]
    slowdown: float | None = Field(
        description="Slowdown in the recent steps: step time divided by step time without "
        "stragglers; null if unknown or of low fidelity."
    )
    verdict: Verdict | None
    discrepancy: float | None = Field(
        description="Relative difference between simulated and recorded step time."
    )
    sparkline: list[float | None] = Field(
        description="Slowdowns of the run's last 48 windows, oldest first; null for a window "
        "without figures."
    )
    onset_bin: int | None = Field(
        description="Position in `sparkline` at which the costliest cause began; null if unknown."
    )
    is_diagnosed: bool = Field(
        description="Whether `causes` is known; false without a diagnosis or without current data."
    )
    causes: list[FleetCauseOut] = Field(description="The three costliest causes.")
    num_causes: int
    observation: ObservationOut | None = Field(
        None, description="The largest fact without a cause, from 3 % of the GPU time on."
    )
    culprits: list[fields.CulpritOut] = Field(
        description="The first three culprits of the costliest cause."
    )
    num_culprits: int
    persistence: Persistence | None
    since_step: int | None
    since_at: fields.UnixTime | None = Field(
        validation_alias="since_s",
        description="When the costliest cause began, or since when the job is stalled, silent or "
        "unknown; null where not known.",
    )
    lasted_s: float | None = Field(
        description="Seconds since `since_at`, up to the newest step with figures or to now."
    )
    lost_gpu_hours_per_day: float | None = Field(
        validation_alias="lost_per_day",
        description="Loss per day at the current rate, in GPU-hours.",
    )
    last_step: int | None
    last_data_at: fields.UnixTime | None = Field(validation_alias="last_data_s")
    silent_ranks: list[int] = Field(description="The first four silent ranks.")
    num_silent_ranks: int
    num_silent_workers: int
    silence: str | None = Field(
        description="Sentence on missing data, of silent, stalled and unknown jobs; otherwise null."
    )
    not_analysed: str | None = Field(
        description="Reason why the job has no window yet; null if it has one."
    )
    recent_steps: RecentStepsOut | None = Field(
        validation_alias="recent",
        description="The steps that state, slowdown, causes and loss are of.",
    )
    latest_window: str | None


class FleetOut(fields.ResponseModel):
    """The fleet's figures and a page of jobs; `total` is the number of matching jobs."""

    summary: FleetSummaryOut
    items: list[FleetJobOut]
    next_cursor: str | None
    total: int


@router.get(
    "/fleet",
    summary="List all jobs with the fleet's figures",
    response_class=Response,
    responses={200: {"model": FleetOut}},
)
def get_fleet(
    service: ServiceDep,
    caller: CallerDep,
    q: Annotated[
        str,
        Query(
            max_length=128,
            pattern=fields.PRINTABLE,
            description="Search text: part of a job's id, name, labels (`owner=team-a`), "
            "framework, causes or culprits, or the beginning of a host name.",
        ),
    ] = "",
    state: Annotated[JobState | None, Query(description="Only jobs in this state.")] = None,
    lifecycle: LifecycleQuery = "active",
    cause: Annotated[
        str | None,
        Query(pattern=rf"^({'|'.join(CAUSES)})$", description="Only jobs with this cause."),
    ] = None,
    order: Annotated[
        Order, Query(description="Sort key; jobs with an unknown value come last.")
    ] = "lost",
    direction: Annotated[
        Direction | None,
        Query(
            alias="dir",
            description="Sort direction; default: descending, but "
            "ascending for `name` and `state`.",
        ),
    ] = None,
    cursor: fields.Cursor = None,
    limit: Annotated[
        int, Query(ge=1, le=200, description="Maximum number of jobs per page.")
    ] = 100,
) -> Response:
    """By default, jobs with the highest loss come first and jobs without figures last.

    Before all others come stalled jobs, then those with silent ranks, each by number of GPUs.

    The summary covers all active jobs, whatever is listed. Today's loss is cached and may be some
    seconds old.
    """
    now_s, project = service.now_s(), caller.project
    with service.store.read() as conn:
        active = listed = _jobs(conn, service, project, now_s, "active")
        if lifecycle != "active":
            listed = _jobs(conn, service, project, now_s, lifecycle)
        on_host = hosts.jobs_on(conn, project, q) if q else ()
        wanted = FleetFilter(q, frozenset(on_host), state, cause)
        ordered = sort_jobs(filter(wanted.matches, listed), order, direction)
        shown, next_cursor = page_of_jobs(ordered, order, direction, cursor=cursor, limit=limit)
        recent = fleet.last_windows(conn, [job.line.job_id for job in shown])
        items = [
            _job_out(conn, service, job, recent[job.line.job_id], now_s, lifecycle) for job in shown
        ]
        summary = _summary_out(conn, service, project, active, now_s)
    page = FleetOut(summary=summary, items=items, next_cursor=next_cursor, total=len(ordered))
    # Returned as a response: FastAPI would validate it again, which doubles the time.
    return Response(page.model_dump_json(), media_type="application/json")


def _jobs(
    conn: Connection, service: Service, project: str, now_s: float, lifecycle: Lifecycle
) -> list[FleetJob]:
    return fleet_jobs(
        fleet.lines(conn, project, lifecycle),
        now_s=now_s,
        alert_slowdown=service.alert_slowdown,
        processed=service.processed(conn),
    )


def _summary_out(
    conn: Connection, service: Service, project: str, active: Sequence[FleetJob], now_s: float
) -> FleetSummaryOut:
    today_s = midnight_s(now_s)
    lost_today = service.answers.get(
        ("lost today", project, today_s), lambda: fleet.loss_since(conn, project, today_s)
    )
    return fleet_summary(
        active,
        lost_today,
        now_s=now_s,
        alert_slowdown=service.alert_slowdown,
        alerts_firing=num_notifying(conn, service, project),
        alerts_new_last_hour=fleet.num_fired_since(conn, project, now_s - NEW_ALERT_S),
        **jobs.count_by_lifecycle(conn, project),
    )


def _job_out(
    conn: Connection,
    service: Service,
    job: FleetJob,
    recent: Sequence[RecentWindow],
    now_s: float,
    lifecycle: Lifecycle,
) -> FleetJobOut:
    line, findings, judged = job.line, job.findings, job.line.recent
    first = leading(findings)
    return FleetJobOut.of_record(
        job,
        line,
        job.as_of,
        lifecycle=lifecycle,
        parallelism=Parallelism(**{name: getattr(line, name) for name in Parallelism.__slots__}),
        verdict=judged.verdict if judged else None,
        discrepancy=line.brief.discrepancy if line.brief else None,
        sparkline=[window.slowdown for window in recent],
        onset_bin=_onset_bin(findings, recent),
        is_diagnosed=findings is not None,
        causes=findings or (),
        num_causes=line.brief.num_findings or 0 if findings and line.brief else 0,
        observation=line.brief.observation if findings is not None and line.brief else None,
        culprits=first.culprits if first else (),
        num_culprits=first.num_culprits if first else 0,
        persistence=first.persistence if first else None,
        silent_ranks=(line.silent_ranks or ())[:MAX_SILENT_RANKS],
        num_silent_ranks=len(line.silent_ranks or ()),
        num_silent_workers=len({*(line.silent_workers or ())}),
        silence=job_missing_data_text(job, now_s),
        not_analysed=_not_analysed(conn, service, job),
        latest_window=line.latest.window_id if line.latest else None,
    )


def _onset_bin(
    findings: Sequence[FindingBrief] | None, recent: Sequence[RecentWindow]
) -> int | None:
    first = leading(findings)
    if first is None or (step := first.onset_step) is None:
        return None
    holds = [window.first_step <= step <= window.last_step for window in recent]
    return holds.index(True) if True in holds else None


def _not_analysed(conn: Connection, service: Service, job: FleetJob) -> str | None:
    line = job.line
    if line.latest is not None:
        return None
    if line.last_data_s is None:
        return "no data has arrived"
    window_steps = formatting.count(service.public_settings.window_steps)
    skipped = fleet.last_skip_reason(conn, line.job_id, line.epoch)
    return skipped or f"0 of {window_steps} complete steps"


FleetChart = Literal["waste", "causes", "optypes", "sizes", "planned"]


@dataclass(frozen=True, slots=True)
class LossQuery:
    """Parameters of a fleet chart: project, days up to now, and theme."""

    project: str
    days: int
    now_s: float
    limit: float
    theme: Theme

    @property
    def since_s(self) -> float:
        """Unix time of the midnight (UTC) at which the first day starts."""
        return midnight_s(self.now_s) - (self.days - 1) * DAY_S


FigureOrNone = PlotlyFigure | None  # None where there is nothing to draw


@router.chart(
    "/fleet/charts/{chart}",
    "Get a chart of the fleet's losses",
    FIGURE_RESPONSE | {204: {"description": "No figures in these days."}},
)
def get_fleet_chart(
    chart: FleetChart,
    service: ServiceDep,
    caller: CallerDep,
    theme: fields.ThemeName = "light",
    days: Annotated[
        int, Query(ge=1, le=366, description="Number of days (UTC), the current one included.")
    ] = 30,
) -> Response:
    """Covers closed windows with reliable figures of the given days.

    204 if there are none; not 404, which browsers log as an error.
    """
    now_s, limit = service.now_s(), service.alert_slowdown
    asked = LossQuery(caller.project, days, now_s, limit, THEMES[theme])

    def draw() -> FigureOrNone:
        with service.store.read() as conn:
            return _FLEET_CHARTS[chart](conn, asked)

    figure = service.answers.get((chart, asked.project, asked.since_s, theme), draw)
    return Response(status_code=204) if figure is None else json_response(figure)


def _chart_by_job(
    draw: Callable[..., PlotlyFigure], conn: Connection, asked: LossQuery
) -> FigureOrNone:
    losses = measured_jobs(
        JobLoss(name, num_gpus, lost.gpu_s / 3600, lost.gpu_s_recorded / 3600)
        for name, num_gpus, lost in fleet.loss_by_job(conn, asked.project, asked.since_s)
    )
    return draw(losses, asked.limit, theme=asked.theme) if losses else None


def _causes_chart(conn: Connection, asked: LossQuery) -> FigureOrNone:
    total = fleet.loss_since(conn, asked.project, asked.since_s).gpu_s / 3600
    hours = _in_hours(fleet.loss_by_name(conn, asked.project, "cause", asked.since_s))
    return fleet_causes(hours, total, theme=asked.theme) if total > 0 else None


def _optypes_chart(conn: Connection, asked: LossQuery) -> FigureOrNone:
    hours = _in_hours(fleet.loss_by_name(conn, asked.project, "optype", asked.since_s))
    return fleet_optypes(hours, theme=asked.theme) if any(hours.values()) else None


def _planned_chart(conn: Connection, asked: LossQuery) -> FigureOrNone:
    edges_s = [asked.since_s + day * DAY_S for day in range(asked.days + 1)]
    sums = fleet.loss_by_interval(conn, asked.project, edges_s)
    days = [
        FleetDay(fields.timestamp(began_s).date(), lost.gpu_s_recorded / 3600, lost.gpu_s / 3600)
        for began_s, lost in zip(edges_s[:-1], sums, strict=True)
    ]
    return fleet_planned(days, theme=asked.theme) if any(day.hours for day in days) else None


def _in_hours(gpu_s: Mapping[str, float]) -> dict[str, float]:
    return {name: lost / 3600 for name, lost in gpu_s.items()}


_FLEET_CHARTS: dict[FleetChart, Callable[[Connection, LossQuery], FigureOrNone]] = {
    "waste": partial(_chart_by_job, fleet_waste),
    "causes": _causes_chart,
    "optypes": _optypes_chart,
    "sizes": partial(_chart_by_job, fleet_sizes),
    "planned": _planned_chart,
}
