"""Compare: two windows, runs or jobs side by side."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.responses import Response

from app.api.deps import FIGURE, CallerDep, ServiceDep, refusals
from app.api.fields import Answer, ThemeName
from app.api.principal import Principal
from app.api.routes.charts import ChartNotMeasured
from app.api.routes.windows import json_response
from app.api.service import Service
from app.api.window_range import shown_result
from app.charts.compare_findings import Compared, compared
from app.charts.compare_headline import change_s, compare_headline
from app.charts.compare_optypes import compare_optypes
from app.charts.compare_side import Side
from app.charts.compare_stages import compare_stages
from app.charts.compare_steps import compare_steps
from app.charts.figure import Figure
from app.charts.theme import THEMES
from app.engine.metrics import gpu_time_wasted
from app.store import hosts, jobs

router = APIRouter(tags=["charts"])

_WINDOW = r"(latest|[0-9]{1,9}-[0-9]{1,16}(\.\.[0-9]{1,9}-[0-9]{1,16})?)"
SideText = Annotated[
    str,
    Query(
        pattern=rf"^[A-Za-z0-9][A-Za-z0-9._-]{{0,95}}:{_WINDOW}$",
        description="Job and window: `latest`, epoch and first step, or the first and the last "
        "of several.",
        examples=["llm-70b:latest"],
    ),
]
ChartName = Literal["steps", "optypes", "stages"]
_CHARTS: dict[ChartName, Callable[..., Figure]] = {
    "steps": compare_steps,
    "optypes": compare_optypes,
    "stages": compare_stages,
}


class WorstOut(Answer):
    """The slowest worker by exact S_w."""

    dp_rank: int
    stage: int
    host: str | None
    slowdown: float


class SideOut(Answer):
    """One of the two; figures that are not known are null, and `not_measured` says why."""

    job_id: str
    name: str
    window: str
    epoch: int
    first_step: int | None
    last_step: int | None
    num_steps: int
    state: str
    shape: dict[str, int]
    gpus: int
    verdict: str | None
    discrepancy: float | None
    slowdown: float | None
    gpu_time_wasted: float | None
    lost_gpu_hours_per_day: float | None
    recorded_s: float | None = Field(description="Mean seconds a step; so are the next two.")
    simulated_s: float | None
    ideal_s: float | None
    m_w: float | None
    m_s: float | None
    worst: WorstOut | None
    not_measured: str | None


class CauseOut(Answer):
    """A cause on one side or both; findings are as in the window's result."""

    change: Literal["new", "gone", "same"]
    finding: dict[str, Any]
    before: dict[str, Any] | None = Field(description="What a says of one that both have.")


class CompareOut(Answer):
    """What b has, held against a."""

    sentence: str
    sub: str
    change_s: float | None = Field(
        description="How much longer a recorded step takes on b, as a share of a's; null where "
        "the jobs' shapes differ."
    )
    a: SideOut
    b: SideOut
    causes: list[CauseOut]


@router.get(
    "/compare",
    operation_id="compare",
    summary="Compare two windows, runs or jobs",
    responses=refusals(404),
)
def compare(a: SideText, b: SideText, service: ServiceDep, caller: CallerDep) -> CompareOut:
    """Of b, held against a: one sentence, the figures of both, and which causes came or went."""
    before, after = (_side(service, caller, text) for text in (a, b))
    found = compared(before, after)
    sentence, sub = compare_headline(before, after, found)
    return CompareOut(
        sentence=sentence,
        sub=sub,
        change_s=change_s(before, after),
        a=_side_out(service, caller, before),
        b=_side_out(service, caller, after),
        causes=[_cause_out(each) for each in found],
    )


@router.get(
    "/compare/charts/{chart}",
    operation_id="get_compare_chart",
    summary="See a chart of two windows",
    response_class=Response,
    responses={**FIGURE, **refusals(404)},
)
def get_compare_chart(
    chart: ChartName,
    a: SideText,
    b: SideText,
    service: ServiceDep,
    caller: CallerDep,
    theme: ThemeName = "light",
) -> Response:
    """404 with code `not_measured` while one side has nothing to draw."""
    before, after = (_side(service, caller, text) for text in (a, b))
    for side in (before, after):
        if (why := side.why_not_measured) is not None:
            raise ChartNotMeasured(f"job {side.job_id!r}: {why}")
    return json_response(_CHARTS[chart](before, after, theme=THEMES[theme]))


def _side(service: Service, caller: Principal, text: str) -> Side:
    job_id, _, window = text.partition(":")
    key = caller.key(job_id)
    result = shown_result(service, key, window)
    with service.store.read() as conn:
        run = jobs.run(conn, key, result["window"]["epoch"])
    return Side(job_id, run.name, run.num_gpus, result)


def _side_out(service: Service, caller: Principal, side: Side) -> SideOut:
    result, header = side.result, side.result["window"]
    wasted = None if side.slowdown is None else gpu_time_wasted(side.slowdown)
    fidelity = result.get("fidelity") or {}
    return SideOut(
        job_id=side.job_id,
        name=side.name,
        window=header["id"],
        epoch=header["epoch"],
        first_step=min(result["steps"], default=None),
        last_step=max(result["steps"], default=None),
        num_steps=len(result["steps"]),
        state=header["state"],
        shape=side.shape,
        gpus=side.num_gpus,
        verdict=fidelity.get("verdict"),
        discrepancy=fidelity.get("discrepancy"),
        slowdown=side.slowdown,
        gpu_time_wasted=wasted,
        lost_gpu_hours_per_day=None if wasted is None else 24 * side.num_gpus * wasted,
        recorded_s=side.mean_s("recorded"),
        simulated_s=side.mean_s("simulated"),
        ideal_s=side.mean_s("ideal"),
        m_w=result["m_w"],
        m_s=result["m_s"],
        worst=_worst(service, caller, side),
        not_measured=side.why_not_measured,
    )


def _worst(service: Service, caller: Principal, side: Side) -> WorstOut | None:
    """The slowest worker, with its host of that run."""
    by_worker = side.result["worker_slowdown"]
    if not by_worker:
        return None
    slowdown, dp_rank, stage = max(
        (slowdown, dp_rank, stage)
        for dp_rank, stages in enumerate(by_worker)
        for stage, slowdown in enumerate(stages)
    )
    with service.store.read() as conn:
        names = hosts.load(conn, caller.key(side.job_id), side.result["window"]["epoch"])
    host = names.get((dp_rank, stage))
    return WorstOut(dp_rank=dp_rank, stage=stage, host=host, slowdown=slowdown)


def _cause_out(cause: Compared) -> CauseOut:
    before = None if cause.before is None else dict(cause.before)
    return CauseOut(change=cause.change, finding=dict(cause.finding), before=before)
