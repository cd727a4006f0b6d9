"""Comparison of two windows, runs or jobs."""

from collections.abc import Callable
from typing import Annotated, Literal

from fastapi import Query
from pydantic import Field
from starlette.responses import Response

from app.api.http.fields import RANGE_PATTERN, FindingOut, ResponseModel, ThemeName
from app.api.http.principal import Principal
from app.api.routes.dependencies import FIGURE_RESPONSE, ApiRouter, CallerDep, ServiceDep, refusals
from app.api.routes.windows.charts import ChartNotMeasured
from app.api.routes.windows.windows import json_response, shown_result
from app.api.service.replays import epoch_of
from app.api.service.service import Service
from app.charts.base.figure import PlotlyFigure
from app.charts.base.theme import THEMES
from app.charts.compare.bars import compare_optypes, compare_stages
from app.charts.compare.steps import compare_steps
from app.charts.compare.summary import Side, compare_headline, compared_causes, step_time_change
from app.result.figures import gpu_time_wasted
from app.result.window_result import num_steps
from app.store import hosts, jobs

router = ApiRouter("charts")

SideText = Annotated[
    str,
    Query(
        pattern=rf"^[A-Za-z0-9][A-Za-z0-9._-]{{0,95}}:{RANGE_PATTERN[1:]}",
        description="Job id and window as JOB:WINDOW. The window is `recent` (the steps that the "
        "job is judged by now), `latest`, an id such as `3-64` (epoch and first step), or a range "
        "of two ids such as `3-0..3-64`.",
        examples=["llm-70b:recent"],
    ),
]
CompareChartName = Literal["steps", "optypes", "stages"]
_COMPARE_CHARTS: dict[CompareChartName, Callable[..., PlotlyFigure]] = {
    "steps": compare_steps,
    "optypes": compare_optypes,
    "stages": compare_stages,
}


class ComparedWorkerOut(ResponseModel):
    """The slowest worker, by its exact slowdown S_w."""

    dp_rank: int
    stage: int
    host: str | None
    slowdown: float


class ComparedSideOut(ResponseModel):
    """One side of the comparison; unknown figures are null, with the reason in `not_measured`."""

    job_id: str
    name: str
    window: str
    epoch: int
    first_step: int | None
    last_step: int | None
    num_steps: int
    state: str
    shape: dict[str, int]
    gpus: int = Field(validation_alias="num_gpus")
    verdict: str | None
    discrepancy: float | None
    slowdown: float | None
    gpu_time_wasted: float | None
    lost_gpu_hours_per_day: float | None
    recorded_s: float | None = Field(description="Mean recorded step time, in seconds.")
    simulated_s: float | None
    ideal_s: float | None
    m_w: float | None
    m_s: float | None
    worst: ComparedWorkerOut | None
    not_measured: str | None


class ComparedCauseOut(ResponseModel):
    """A cause on one or both sides, with findings as in the window's result."""

    change: Literal["new", "gone", "same"]
    finding: FindingOut
    before: FindingOut | None = Field(description="Side a's finding, if both sides have the cause.")


class CompareOut(ResponseModel):
    """b compared with a."""

    sentence: str
    sub: str
    change_s: float | None = Field(
        description="Relative change of the mean recorded step time from a to b: 0.1 if b is "
        "10 % slower; null if the jobs' shapes differ."
    )
    a: ComparedSideOut
    b: ComparedSideOut
    causes: list[ComparedCauseOut]


@router.get("/compare", summary="Compare two windows, runs or jobs", responses=refusals(404))
def compare(a: SideText, b: SideText, service: ServiceDep, caller: CallerDep) -> CompareOut:
    """Compares b with a: a summary, the figures of both sides, and new, gone and common causes."""
    before, after = (_side(service, caller, text) for text in (a, b))
    causes = compared_causes(before, after)
    sentence, sub = compare_headline(before, after, causes)
    return CompareOut(
        sentence=sentence,
        sub=sub,
        change_s=step_time_change(before, after),
        a=_side_out(service, caller, before),
        b=_side_out(service, caller, after),
        causes=causes,
    )


@router.chart(
    "/compare/charts/{chart}",
    "Get a chart that compares two windows",
    FIGURE_RESPONSE | refusals(404),
)
def get_compare_chart(
    chart: CompareChartName,
    a: SideText,
    b: SideText,
    service: ServiceDep,
    caller: CallerDep,
    theme: ThemeName = "light",
) -> Response:
    """404 with code `not_measured` while the figures of one side are missing."""
    before, after = (_side(service, caller, text) for text in (a, b))
    for side in (before, after):
        if (why := side.why_not_measured) is not None:
            raise ChartNotMeasured(f"job {side.job_id!r}: {why}")
    return json_response(_COMPARE_CHARTS[chart](before, after, theme=THEMES[theme]))


def _side(service: Service, caller: Principal, text: str) -> Side:
    job_id, _, window = text.partition(":")
    key = caller.key(job_id)
    result = shown_result(service, key, window)
    with service.store.read() as conn:
        run = jobs.registration(conn, key, epoch_of(result))
    return Side(job_id, run.name, run.num_gpus, result)


def _side_out(service: Service, caller: Principal, side: Side) -> ComparedSideOut:
    result = side.result
    wasted = None if side.slowdown is None else gpu_time_wasted(side.slowdown)
    return ComparedSideOut.of_record(
        side,
        result,
        result.fidelity,
        window=str(result.window.id),
        epoch=epoch_of(result),
        first_step=min(result.steps, default=None),
        last_step=max(result.steps, default=None),
        num_steps=num_steps(result),
        state=result.window.state,
        gpu_time_wasted=wasted,
        lost_gpu_hours_per_day=None if wasted is None else 24 * side.num_gpus * wasted,
        recorded_s=side.mean_s("recorded"),
        simulated_s=side.mean_s("simulated"),
        ideal_s=side.mean_s("ideal"),
        worst=_slowest_worker(service, caller, side),
        not_measured=side.why_not_measured,
    )


def _slowest_worker(service: Service, caller: Principal, side: Side) -> ComparedWorkerOut | None:
    """The slowest worker, with its host in that run."""
    by_worker = side.result.worker_slowdown
    if not by_worker:
        return None
    slowdown, dp_rank, stage = max(
        (slowdown, dp_rank, stage)
        for dp_rank, stages in enumerate(by_worker)
        for stage, slowdown in enumerate(stages)
        if slowdown is not None
    )
    with service.store.read() as conn:
        names = hosts.load(conn, caller.key(side.job_id), epoch_of(side.result))
    host = names.get((dp_rank, stage))
    return ComparedWorkerOut(dp_rank=dp_rank, stage=stage, host=host, slowdown=slowdown)
