"""Windows: what the analysis found in some successive steps."""

from datetime import datetime
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query
from starlette.responses import Response

from app.api.deps import JobKey, Responses, ServiceDep, refusals
from app.api.fields import Answer, Cursor, Limit, WindowId, timestamp
from app.api.service import Service
from app.engine.replays import prepare
from app.engine.report import analyse_replay
from app.engine.result import as_json
from app.store import hosts, windows
from app.store.windows import Verdict, WindowSummary
from app.trace.named_steps import chosen
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
    window: WindowId,
    service: ServiceDep,
    per_step: Annotated[bool, Query(description="Whether to add the figures by step.")] = False,
    steps: Annotated[
        str | None,
        Query(
            max_length=1000,
            description="Analyse these steps of a closed window alone, such as 101-110,115.",
            examples=["101-110"],
        ),
    ] = None,
) -> Response:
    """The same object that `paceline analyze --json` writes.

    With `steps`, `latest` is the newest closed window.
    """
    if steps is not None:
        return json_response(_of_steps(service, job_id, window, steps, per_step=per_step))
    with service.store.read() as conn:
        result = windows.get(conn, job_id, window, per_step=per_step)
    return json_response(result)


@router.get(
    "/jobs/{job_id}/windows/{window}/workers",
    operation_id="get_window_workers",
    summary="See every worker's slowdown in one window",
    responses=refusals(404),
)
def get_window_workers(job_id: JobKey, window: WindowId, service: ServiceDep) -> WorkersOut:
    """Exact slowdown S_w, its estimate from dp rank and stage, and where each worker runs."""
    with service.store.read() as conn:
        result = windows.get(conn, job_id, window, per_step=False)
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


def _of_steps(
    service: Service, job_id: str, window: str, named: str, *, per_step: bool
) -> dict[str, Any]:
    """The figures of some steps, worked out anew: ideals are those of these steps alone."""
    with service.replays.at_work.taken():
        whole = service.replays.get(job_id, window).window
        report = analyse_replay(prepare(whole.only(chosen(named, whole.steps))))
        result = as_json(report)
    if not per_step:
        del result["per_step"]
    return result


def json_response(content: Any) -> Response:
    """Large figures as JSON, fast; what is no number becomes null."""
    return Response(msgspec.json.encode(content), media_type="application/json")
