"""The fleet: all jobs at a glance, those that lose most first."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.responses import Response

from app import words
from app.api.deps import CallerDep, ServiceDep, refusals
from app.api.fields import Answer, Cursor, timestamp_or_none
from app.api.fleet import Standing, silence, standings
from app.api.fleet_order import Direction, Order, Wanted, in_order, page
from app.api.fleet_summary import midnight_s, summary
from app.api.job_state import JobState
from app.api.routes.jobs import ParallelismOut
from app.api.service import Service
from app.diagnosis.finding import CAUSES, Persistence
from app.store import fleet, loss_sums, run_hosts, shards
from app.store.engine import Connection
from app.store.fleet import Seen
from app.store.windows import Verdict
from app.trace.job import Parallelism
from app.trace.names import plain

router = APIRouter(tags=["fleet"])

MAX_SILENT_RANKS = 4  # told by number
ALERT_NEW_S = 3600.0

_PRINTABLE = r"^[^\x00-\x1f\x7f]*$"


class CauseOut(Answer):
    """A cause that was found in a job's newest window."""

    cause: str
    cost: float | None = Field(description="Share of the job's GPU time.")
    confidence: float


class CulpritOut(Answer):
    """Who is to blame; what does not apply is null."""

    dp_rank: int | None = None
    stage: int | None = None
    host: str | None = None
    rank: int | None = Field(None, description="Global.")
    local_rank: int | None = Field(None, description="Number of the GPU on its host.")


class FleetJobOut(Answer):
    """A job's line; unknown is null."""

    job_id: str
    name: str
    state: JobState
    parallelism: ParallelismOut
    gpus: int
    framework: str | None
    labels: dict[str, str]
    slowdown: float | None = Field(description="The newest; of low fidelity it is withheld.")
    verdict: Verdict | None
    discrepancy: float | None = Field(description="Of simulated and recorded step time.")
    sparkline: list[float | None] = Field(
        description="Slowdowns of the run's last 48 windows, oldest first."
    )
    onset_bin: int | None = Field(description="Where in `sparkline` the costliest cause began.")
    is_diagnosed: bool = Field(
        description="False where causes are withheld, old or not looked for."
    )
    causes: list[CauseOut] = Field(description="The costliest three.")
    num_causes: int
    culprits: list[CulpritOut] = Field(description="The first three of the costliest cause.")
    num_culprits: int
    persistence: Persistence | None
    since_step: int | None
    since_at: datetime | None
    lost_gpu_hours_per_day: float | None = Field(description="As it goes on now.")
    last_step: int | None
    last_data_at: datetime | None
    silent_ranks: list[int] = Field(description="The first four.")
    num_silent_ranks: int
    num_silent_workers: int
    silence: str | None = Field(description="What is not heard of it, in words.")
    not_analysed: str | None = Field(description="Why there are no figures.")
    latest_window: str | None


class FleetSummaryOut(Answer):
    """Figures of all the project's jobs; hours are GPU-hours, today's since midnight UTC."""

    jobs: int
    running: int
    gpus: int = Field(description="Of jobs that have not finished.")
    gpus_measured: int = Field(description="Of those with figures of now.")
    gpu_hours_lost_today: float = Field(description="By closed windows, as in the charts.")
    gpu_hours_today: float = Field(description="That closed windows span.")
    gpu_hours_stalled_today: float = Field(
        description="For which jobs that are stalled now have been so; no window has them."
    )
    lost_per_hour: float = Field(description="GPU-hours that are being lost an hour.")
    by_state: dict[str, int]
    by_cause: dict[str, int]
    alerts_firing: int
    alerts_new_last_hour: int
    sentence: str
    sub: str


class FleetOut(Answer):
    """The fleet's figures and a page of its jobs; `total` is how many fit."""

    summary: FleetSummaryOut
    items: list[FleetJobOut]
    next_cursor: str | None
    total: int


@router.get(
    "/fleet",
    operation_id="get_fleet",
    summary="See all jobs at a glance",
    response_class=Response,
    responses={200: {"model": FleetOut}, **refusals()},
)
def get_fleet(
    service: ServiceDep,
    caller: CallerDep,
    q: Annotated[
        str,
        Query(
            max_length=128,
            pattern=_PRINTABLE,
            description="Text in a job's id or name, owner label, framework, causes or culprits, "
            "or the beginning of one of its hosts' names.",
        ),
    ] = "",
    state: Annotated[JobState | None, Query(description="Only jobs in this state.")] = None,
    cause: Annotated[
        str | None, Query(pattern=rf"^({'|'.join(CAUSES)})$", description="Only jobs with this.")
    ] = None,
    order: Annotated[Order, Query(description="By what; unknown ones come last.")] = "lost",
    direction: Annotated[
        Direction | None, Query(alias="dir", description="Usually the most first.")
    ] = None,
    cursor: Cursor = None,
    limit: Annotated[int, Query(ge=1, le=200, description="Most items on a page.")] = 100,
) -> Response:
    """Jobs that lose most come first, those without a figure last; figures are of all jobs.

    What was lost today is added up now and then, and may be some seconds old.
    """
    now_s, project = service.now_s(), caller.project
    with service.store.read() as conn:
        all_jobs = _standings(conn, service, project, now_s)
        on_host = run_hosts.jobs_on(conn, project, q) if q else ()
        wanted = Wanted(q, frozenset(on_host), state, cause)
        ordered = in_order(filter(wanted.fits, all_jobs), order, direction)
        shown, next_cursor = page(ordered, order, direction, cursor=cursor, limit=limit)
        items = _items(conn, service, shown, now_s)
        told = _summary(conn, service, project, all_jobs, now_s)
    found = FleetOut(summary=told, items=items, next_cursor=next_cursor, total=len(ordered))
    # Checked once, when it was made: FastAPI would do so again, which takes as long as all else.
    return Response(found.model_dump_json(), media_type="application/json")


def _standings(conn: Connection, service: Service, project: str, now_s: float) -> list[Standing]:
    return standings(
        fleet.lines(conn, project),
        now_s=now_s,
        thresholds=service.thresholds,
        is_watched=shards.count_live(conn, now_s=now_s) > 0,
    )


def _summary(
    conn: Connection, service: Service, project: str, all_jobs: Sequence[Standing], now_s: float
) -> FleetSummaryOut:
    today_s = midnight_s(now_s)
    lost_today = service.kept.get(
        ("lost today", project, today_s), lambda: loss_sums.since(conn, project, today_s)
    )
    told = summary(all_jobs, lost_today, now_s=now_s, thresholds=service.thresholds)
    return FleetSummaryOut(
        **asdict(told),
        alerts_firing=fleet.num_firing(conn, project),
        alerts_new_last_hour=fleet.num_fired_since(conn, project, now_s - ALERT_NEW_S),
    )


def _items(
    conn: Connection, service: Service, shown: Sequence[Standing], now_s: float
) -> list[FleetJobOut]:
    seen = fleet.last_windows(conn, [each.line.job_id for each in shown])
    return [
        _item(each, seen[each.line.job_id], now_s, _not_analysed(conn, service, each))
        for each in shown
    ]


def _item(
    each: Standing, seen: Sequence[Seen], now_s: float, not_analysed: str | None
) -> FleetJobOut:
    line, findings = each.line, each.findings
    return FleetJobOut(
        job_id=plain(line.job_id),
        name=line.name,
        state=each.state,
        parallelism=_parallelism(each),
        gpus=line.num_gpus,
        framework=line.framework,
        labels=line.labels,
        slowdown=each.slowdown,
        verdict=line.latest.verdict if line.latest else None,
        discrepancy=line.brief["discrepancy"] if line.brief else None,
        sparkline=[window.slowdown for window in seen],
        onset_bin=_onset_bin(findings, seen),
        is_diagnosed=findings is not None,
        **_blame(findings),
        num_causes=line.brief["num_findings"] if findings and line.brief else 0,
        since_step=each.since_step,
        since_at=timestamp_or_none(each.since_s),
        lost_gpu_hours_per_day=each.lost_per_day,
        last_step=line.last_step,
        last_data_at=timestamp_or_none(line.last_data_s),
        silent_ranks=list((line.silent_ranks or ())[:MAX_SILENT_RANKS]),
        num_silent_ranks=len(line.silent_ranks or ()),
        num_silent_workers=len({*(line.silent_workers or ())}),
        silence=silence(each, now_s),
        not_analysed=not_analysed,
        latest_window=line.latest.window_id if line.latest else None,
    )


def _blame(findings: Sequence[dict[str, Any]] | None) -> dict[str, Any]:
    if not findings:
        return {"causes": [], "culprits": [], "num_culprits": 0, "persistence": None}
    first = findings[0]
    names = tuple(CauseOut.model_fields)
    return {
        "causes": [CauseOut(**{name: each[name] for name in names}) for each in findings],
        "culprits": [CulpritOut(**culprit) for culprit in first["culprits"]],
        "num_culprits": first["num_culprits"],
        "persistence": first["persistence"],
    }


def _onset_bin(findings: Sequence[dict[str, Any]] | None, seen: Sequence[Seen]) -> int | None:
    step = findings[0]["onset_step"] if findings else None
    if step is None:
        return None
    places = (at for at, window in enumerate(seen) if window.first_step <= step <= window.last_step)
    return next(places, None)


def _not_analysed(conn: Connection, service: Service, each: Standing) -> str | None:
    line = each.line
    if line.latest is not None:
        return None
    if line.last_data_s is None:
        return "no data has arrived"
    skipped = fleet.why_skipped(conn, line.job_id, line.epoch)
    return skipped or f"0 of {words.whole(service.window_steps)} complete steps"


def _parallelism(each: Standing) -> ParallelismOut:
    names = Parallelism.__slots__
    sizes = Parallelism(**{name: getattr(each.line, name) for name in names})
    values = {name: getattr(sizes, name) for name in ParallelismOut.model_fields}
    return ParallelismOut(**values)
