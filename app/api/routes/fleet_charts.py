"""The fleet over time: charts of what jobs lost in the last days."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from starlette.responses import Response

from app.api.deps import FIGURE, CallerDep, ServiceDep, refusals
from app.api.fields import ThemeName
from app.api.fleet_summary import DAY_S, midnight_s
from app.api.routes.windows import json_response
from app.charts.figure import Figure
from app.charts.fleet_jobs import JobLoss, measured
from app.charts.fleet_planned import Day, fleet_planned
from app.charts.fleet_shares import fleet_causes, fleet_optypes
from app.charts.fleet_sizes import fleet_sizes
from app.charts.fleet_waste import fleet_waste
from app.charts.theme import THEMES, Theme
from app.store import loss_sums
from app.store.engine import Connection

router = APIRouter(tags=["fleet"])

FleetChart = Literal["waste", "causes", "optypes", "sizes", "planned"]


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be drawn: whose jobs, the days up to now, and in which colours."""

    project: str
    days: int
    now_s: float
    limit: float
    theme: Theme

    @property
    def since_s(self) -> float:
        """Unix time of the midnight (UTC) with which the first of the days began."""
        return midnight_s(self.now_s) - (self.days - 1) * DAY_S


Drawn = Figure | None  # None where there is nothing to draw


@router.get(
    "/fleet/charts/{chart}",
    operation_id="get_fleet_chart",
    summary="See a chart of the fleet over time",
    response_class=Response,
    responses={**FIGURE, 204: {"description": "Nothing to draw yet."}, **refusals()},
)
def get_fleet_chart(
    chart: FleetChart,
    service: ServiceDep,
    caller: CallerDep,
    theme: ThemeName = "light",
    days: Annotated[int, Query(ge=1, le=366, description="Days up to now, by UTC.")] = 30,
) -> Response:
    """Of closed windows whose figures can be trusted; 204 where there are none in these days.

    Not 404: a fleet that is new is nothing to complain of, and browsers do so for each refusal.
    """
    limit = service.thresholds.alert_slowdown
    asked = Asked(caller.project, days, service.now_s(), limit, THEMES[theme])

    def draw() -> Drawn:
        with service.store.read() as conn:
            return _CHARTS[chart](conn, asked)

    figure = service.kept.get((chart, asked.project, asked.since_s, theme), draw)
    return Response(status_code=204) if figure is None else json_response(figure)


def _waste(conn: Connection, asked: Asked) -> Drawn:
    jobs = _jobs(conn, asked)
    return fleet_waste(jobs, asked.limit, theme=asked.theme) if jobs else None


def _sizes(conn: Connection, asked: Asked) -> Drawn:
    jobs = _jobs(conn, asked)
    return fleet_sizes(jobs, asked.limit, theme=asked.theme) if jobs else None


def _jobs(conn: Connection, asked: Asked) -> list[JobLoss]:
    found = loss_sums.by_job(conn, asked.project, asked.since_s)
    return measured(
        JobLoss(name, num_gpus, lost.gpu_s / 3600, lost.gpu_s_recorded / 3600)
        for name, num_gpus, lost in found
    )


def _causes(conn: Connection, asked: Asked) -> Drawn:
    total = loss_sums.since(conn, asked.project, asked.since_s).gpu_s / 3600
    found = _hours(loss_sums.by_name(conn, asked.project, "cause", asked.since_s))
    return fleet_causes(found, total, theme=asked.theme) if total > 0 else None


def _optypes(conn: Connection, asked: Asked) -> Drawn:
    found = _hours(loss_sums.by_name(conn, asked.project, "optype", asked.since_s))
    return fleet_optypes(found, theme=asked.theme) if any(found.values()) else None


def _planned(conn: Connection, asked: Asked) -> Drawn:
    edges_s = [asked.since_s + day * DAY_S for day in range(asked.days + 1)]
    sums = loss_sums.by_stretch(conn, asked.project, edges_s)
    days = [
        Day(datetime.fromtimestamp(began_s, UTC).date(), each.gpu_s_recorded / 3600,
            each.gpu_s / 3600)
        for began_s, each in zip(edges_s[:-1], sums, strict=True)
    ]  # fmt: skip
    return fleet_planned(days, theme=asked.theme) if any(day.hours for day in days) else None


def _hours(gpu_s: Mapping[str, float]) -> dict[str, float]:
    return {name: lost / 3600 for name, lost in gpu_s.items()}


_CHARTS: dict[FleetChart, Callable[[Connection, Asked], Drawn]] = {
    "waste": _waste,
    "causes": _causes,
    "optypes": _optypes,
    "sizes": _sizes,
    "planned": _planned,
}
