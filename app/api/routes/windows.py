"""Windows: what the analysis found in some successive steps."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query
from starlette.responses import Response

from app.api.deps import JobKey, Responses, ServiceDep, refusals
from app.api.fields import Answer, ChosenSteps, Cursor, Limit, WindowsId, timestamp
from app.api.window_range import shown_result
from app.store import hosts, windows
from app.store.windows import Verdict, WindowSummary
from app.trace.window import WindowState

router = APIRouter(tags=["windows"])


class WindowSummaryOut(Answer):
    """A window in one line; figures that are not known are null."""

    window_id: str
    epoch: int
    first_step: int
    last_step: int
    revision: int
    state: WindowState
    num_steps: int
    slowdown: float | None
    verdict: Verdict | None
    updated_at: datetime

    @classmethod
    def of(cls, summary: WindowSummary) -> "WindowSummaryOut":
        """The summary as the API says it."""
        return cls(
            window_id=summary.window_id,
            epoch=summary.epoch,
            first_step=summary.first_step,
            last_step=summary.last_step,
            revision=summary.revision,
            state=summary.state,
            num_steps=summary.num_steps,
            slowdown=summary.slowdown,
            verdict=summary.verdict,
            updated_at=timestamp(summary.updated_s),
        )


class WindowsOut(Answer):
    """A page of windows, newest first."""

    items: list[WindowSummaryOut]
    next_cursor: str | None


class WorkersOut(Answer):
    """Slowdown of every worker, by dp rank and stage; null when nothing was measured."""

    window: str
    dp_size: int
    pp_size: int
    worker_slowdown: list[list[float]] | None
    worker_slowdown_estimate: list[list[float]] | None
    hosts: list[list[str | None]]


# By worker or by dp rank: megabytes of a large job.
BY_RANK = (
    *("rank", "dp_rank", "stage", "host", "local_rank"),
    *("waited_for_s", "waited_s", "late_share", "own_delay_s", "per_step"),
)
_ARRAYS = ("worker_slowdown", "worker_slowdown_estimate", "dp_rank_slowdown")

_SCHEMA = {"schema": {"$ref": "#/components/schemas/WindowResult"}}
_WINDOW: Responses = {200: {"description": "The result.", "content": {"application/json": _SCHEMA}}}


@router.get(
    "/jobs/{job_id}/windows",
    operation_id="list_windows",
    summary="List a job's windows",
    responses=refusals(404),
)
def list_windows(
    job_id: JobKey, service: ServiceDep, cursor: Cursor = None, limit: Limit = 50
) -> WindowsOut:
    """Windows of all epochs, newest first, a page at a time."""
    with service.store.read() as conn:
        found, next_cursor = windows.page(conn, job_id, cursor=cursor, limit=limit)
    return WindowsOut(
        items=[WindowSummaryOut.of(summary) for summary in found], next_cursor=next_cursor
    )


@router.get(
    "/jobs/{job_id}/windows/{window}",
    operation_id="get_window",
    summary="See one window's result",
    response_class=Response,
    responses={**_WINDOW, **refusals(404, 409)},
)
def get_window(
    job_id: JobKey,
    window: WindowsId,
    service: ServiceDep,
    per_step: Annotated[bool, Query(description="Whether to add the figures by step.")] = False,
    arrays: Annotated[
        bool, Query(description="Whether to add the figures by worker and by dp rank.")
    ] = True,
    steps: ChosenSteps = None,
) -> Response:
    """The same object that `paceline analyze --json` writes.

    Of several windows it says what one window with all their steps would. With `steps`, `latest`
    is the newest closed window.
    """
    result = shown_result(service, job_id, window, steps, per_step=per_step)
    return json_response(result if arrays else _without_arrays(result))


@router.get(
    "/jobs/{job_id}/windows/{window}/workers",
    operation_id="get_window_workers",
    summary="See every worker's slowdown in one window",
    responses=refusals(404, 409),
)
def get_window_workers(
    job_id: JobKey, window: WindowsId, service: ServiceDep, steps: ChosenSteps = None
) -> WorkersOut:
    """Exact slowdown S_w, its estimate from dp rank and stage, and where each worker runs."""
    result = shown_result(service, job_id, window, steps)
    with service.store.read() as conn:
        names = hosts.load(conn, job_id, result["window"]["epoch"])
    dp_size, pp_size = result["job"]["dp_size"], result["job"]["pp_size"]
    return WorkersOut(
        window=result["window"]["id"],
        dp_size=dp_size,
        pp_size=pp_size,
        worker_slowdown=result["worker_slowdown"],
        worker_slowdown_estimate=result["worker_slowdown_estimate"],
        hosts=[[names.get((dp, stage)) for stage in range(pp_size)] for dp in range(dp_size)],
    )


def _without_arrays(result: Mapping[str, Any]) -> dict[str, Any]:
    """The result without what grows with the number of workers."""
    kept = {name: value for name, value in result.items() if name not in _ARRAYS}
    delay = kept["launch_delay"]
    kept["launch_delay"] = {k: v for k, v in delay.items() if k == "by_optype"}
    if arrivals := kept.get("arrivals"):
        kept["arrivals"] = {k: v for k, v in arrivals.items() if k not in BY_RANK}
    return kept


def json_response(content: Any) -> Response:
    """Large figures as JSON, fast; what is no number becomes null."""
    return Response(msgspec.json.encode(content), media_type="application/json")
