"""Windows and steps: results of one window, of a range of windows, or of chosen steps."""

from collections.abc import Collection
from typing import Annotated, Any

import msgspec
from fastapi import Query
from msgspec import structs
from msgspec.structs import replace
from pydantic import Field
from starlette.responses import Response

from app.api.http import fields
from app.api.routes.dependencies import ApiRouter, JobKey, PageOut, Responses, ServiceDep
from app.api.service.annotation_places import placed_annotations, with_annotations
from app.api.service.replays import epoch_of
from app.api.service.service import Service
from app.diagnosis.job_history import History
from app.formatting import utc_timestamp
from app.monitor import analysed
from app.result.clock_times import in_clock_words
from app.result.join import joint_result
from app.result.recent import result_since
from app.result.record import Record
from app.result.stored import split_by_step
from app.result.window_result import Verdict, WindowResult
from app.store import hosts, windows
from app.store.joint_windows import read_range
from app.store.windows import StepRow
from app.trace.window import WindowState, parse_step_ranges

# Separates the first and the last window of a range.
RANGE_SEPARATOR = ".."
# The steps that the job is judged by now: app.store.joint_windows.
RECENT = "recent"


def shown_result(
    service: Service,
    job_id: str,
    window: str,
    steps: str | None = None,
    *,
    per_step: bool = False,
    since_step: int | None = None,
) -> WindowResult:
    """The result of `recent`, `latest`, a window, a range, or some steps of a window.

    With `since_step` the steps before it are left out of the first window (`result_since`). The
    sentences of findings have the clock times of their onsets.

    Raises:
        JobNotFound: the job never registered.
        WindowNotFound: it has no such window.
        InvalidRequest: the range or the steps are not valid.
        Conflict: steps of a window whose operations are not stored.
    """
    if steps is not None:
        result = _result_of_steps(service, job_id, window, steps, per_step=per_step)
    elif RANGE_SEPARATOR in window:
        result = _result_of_range(service, job_id, window, since_step, per_step=per_step)
    elif window == RECENT:
        result = service.results.recent(service.store, job_id, per_step=per_step)
    else:
        result = service.results.get(service.store, job_id, window, per_step=per_step)
        if since_step is not None:
            # One window, its findings with the costs of the steps that are left.
            since = result_since(result, since_step)
            result = replace(joint_result([since]), window=since.window)
    return in_clock_words(_with_stored_times(service, job_id, result), service.now_s())


def _with_stored_times(service: Service, job_id: str, result: WindowResult) -> WindowResult:
    """The result with onsets from before the history's steps, which the store still knows."""
    findings = result.findings or ()
    unknown = {
        finding.onset_step
        for finding in findings
        if finding.onset_step is not None and finding.onset_at is None
    }
    if not unknown:
        return result
    with service.store.read() as conn:
        starts_s = windows.step_starts(conn, job_id, epoch_of(result), unknown)
    at: dict[int | None, str | None] = {
        step: utc_timestamp(start_s) for step, start_s in starts_s.items()
    }
    timed = tuple(
        replace(finding, onset_at=finding.onset_at or at.get(finding.onset_step))
        for finding in findings
    )
    return replace(result, findings=timed)


def last_window(window: str) -> str:
    """The window whose operations are read: the last of a range or of the recent steps."""
    return "latest" if window == RECENT else window.split(RANGE_SEPARATOR)[-1]


def _result_of_steps(
    service: Service, job_id: str, window: str, named: str, *, per_step: bool
) -> WindowResult:
    """Figures and causes of some steps, analysed with ideals from these steps only.

    The analysis does not know the steps before.
    """
    closed = service.replays.get(job_id, last_window(window)).window
    numbers = parse_step_ranges(named, closed.steps)

    def analyse() -> WindowResult:
        return analysed(closed.only(numbers), History())[1]

    result = service.results.get_or_compute((job_id, closed.id, closed.revision, numbers), analyse)
    return result if per_step else split_by_step(result)[0]


def _result_of_range(
    service: Service, job_id: str, named: str, since_step: int | None, *, per_step: bool
) -> WindowResult:
    with service.store.read() as conn:
        span = windows.window_range(conn, job_id, *named.split(RANGE_SEPARATOR))

    def read() -> WindowResult:
        with service.store.read() as conn:
            return read_range(conn, job_id, span, per_step=per_step, since_step=since_step)

    key = (job_id, named, span.num_windows, span.revisions, per_step, since_step)
    return service.results.get_or_compute(key, read)


router = ApiRouter("windows")


class WindowSummaryOut(fields.ResponseModel):
    """Summary of a window; unknown figures are null."""

    window_id: str
    epoch: int
    first_step: int
    last_step: int
    revision: int
    state: WindowState
    num_steps: int
    slowdown: float | None
    verdict: Verdict | None
    updated_at: fields.UnixTime = Field(validation_alias="updated_s")


class RecentStepsOut(fields.ResponseModel):
    """The steps that a job is judged by now: slowdown, state, causes and losses are theirs."""

    first_step: int
    last_step: int
    num_steps: int
    is_open: bool = Field(
        description="Whether no window has closed yet: these are the first steps."
    )


class WindowsOut(PageOut[WindowSummaryOut]):
    """A page of windows, newest first."""


class WorkersOut(fields.ResponseModel):
    """Slowdown of every worker as arrays [dp rank][stage]; null if unknown."""

    window: str
    dp_size: int
    pp_size: int
    worker_slowdown: tuple[tuple[float | None, ...], ...] | None
    worker_slowdown_estimate: tuple[tuple[float | None, ...], ...] | None
    hosts: list[list[str | None]]


# By worker or by dp rank: megabytes for a large job.
BY_RANK = (
    *("rank", "dp_rank", "stage", "host", "local_rank"),
    *("waited_for_s", "waited_s", "late_share", "own_delay_s", "per_step"),
)
_BY_WORKER = ("worker_slowdown", "worker_slowdown_estimate", "dp_rank_slowdown")

_SCHEMA = {"schema": {"$ref": "#/components/schemas/WindowResult"}}
_WINDOW: Responses = {200: {"description": "The result.", "content": {"application/json": _SCHEMA}}}


@router.get("/jobs/{job_id}/windows", summary="List a job's windows")
def list_windows(
    job_id: JobKey, service: ServiceDep, cursor: fields.Cursor = None, limit: fields.Limit = 50
) -> WindowsOut:
    """Windows of all epochs, newest first, a page at a time."""
    with service.store.read() as conn:
        return WindowsOut.of_page(windows.page(conn, job_id, cursor=cursor, limit=limit))


@router.get(
    "/jobs/{job_id}/windows/{window}",
    summary="Get the result of a window or of several",
    response_class=Response,
    responses=_WINDOW,
)
def get_window(
    job_id: JobKey,
    window: fields.WindowsId,
    service: ServiceDep,
    per_step: Annotated[
        bool, Query(description="Whether to include figures by step (`per_step`).")
    ] = False,
    arrays: Annotated[
        bool, Query(description="Whether to include figures by worker and by dp rank.")
    ] = True,
    steps: fields.ChosenSteps = None,
    since_step: fields.SinceStep = None,
) -> Response:
    """The same object as the output of `paceline analyze --json`.

    A range of windows is analysed as one window with all their steps. With `steps`, `latest` is the
    newest closed window. `since_step` has no effect on figures by step (`per_step`).
    """
    since = None if per_step else since_step
    result = shown_result(service, job_id, window, steps, per_step=per_step, since_step=since)
    with service.store.read() as conn:
        result = with_annotations(result, placed_annotations(conn, job_id))
    return json_response(result if arrays else _without_arrays(result))


@router.get(
    "/jobs/{job_id}/windows/{window}/workers", summary="Get every worker's slowdown in a window"
)
def get_window_workers(
    job_id: JobKey, window: fields.WindowsId, service: ServiceDep, steps: fields.ChosenSteps = None
) -> WorkersOut:
    """Each worker's exact slowdown, its estimate from dp rank and stage, and its host.

    A worker's slowdown S_w is the job's slowdown if only this worker were as slow as it is.
    """
    result = shown_result(service, job_id, window, steps)
    with service.store.read() as conn:
        names = hosts.load(conn, job_id, epoch_of(result))
    dp_size, pp_size = result.job.dp_size, result.job.pp_size
    return WorkersOut(
        window=str(result.window.id),
        dp_size=dp_size,
        pp_size=pp_size,
        worker_slowdown=result.worker_slowdown,
        worker_slowdown_estimate=result.worker_slowdown_estimate,
        hosts=[[names.get((dp, stage)) for stage in range(pp_size)] for dp in range(dp_size)],
    )


def _without_arrays(result: WindowResult) -> dict[str, Any]:
    """The result without arrays by worker."""
    parts = {"launch_delay": _without(result.launch_delay, ("by_worker", "others_waited"))}
    if result.arrivals:
        parts["arrivals"] = _without(result.arrivals, BY_RANK)
    return _without(result, _BY_WORKER) | parts


def _without(record: Record, names: Collection[str]) -> dict[str, Any]:
    """The fields of a record for JSON, without these and without absent ones."""
    return {
        field.name: value
        for field in structs.fields(record)
        if field.name not in names and (value := getattr(record, field.name)) != field.default
    }


def json_response(content: Any) -> Response:
    """Fast JSON for large results; NaN and infinity become null."""
    return Response(msgspec.json.encode(content), media_type="application/json")


steps_router = ApiRouter("steps")


class StepOut(fields.ResponseModel):
    """Times of one step; null with a `skipped_reason` if the step was skipped."""

    epoch: int
    step: int
    recorded_s: float | None
    simulated_s: float | None
    ideal_s: float | None
    slowdown: float | None
    window: str = Field(validation_alias="window_id")
    skipped_reason: str | None = Field(examples=["ranks 3 and 7 did not report"])
    started_at: fields.UnixTime | None = Field(
        validation_alias="started_s",
        description="When the step started, by the workers' clocks; null where not known.",
    )
    last_step: int = Field(
        description="The last step that the times are means of; the step itself while it is stored "
        "by itself (PACELINE_THIN_STEPS_DAYS)."
    )
    num_steps: int = Field(description="How many steps with figures the times are means of.")

    @classmethod
    def of(cls, row: StepRow) -> "StepOut":
        """From the stored step."""
        last_step = row.step if row.last_step is None else row.last_step
        num_steps = 1 if row.num_steps is None else row.num_steps
        return cls.of_record(row, last_step=last_step, num_steps=num_steps)


class StepsOut(fields.ResponseModel):
    """A job's step series, ascending."""

    items: list[StepOut]


@steps_router.get("/jobs/{job_id}/steps", summary="List a job's step times")
def list_steps(
    job_id: JobKey,
    service: ServiceDep,
    epoch: fields.EpochNumber = None,
    first: fields.StepNumber = None,
    last: fields.StepNumber = None,
    limit: fields.Limit = 200,
) -> StepsOut:
    """The last `limit` steps between `first` and `last`; default epoch: the current one.

    Of old steps, one item has the means over several.
    """
    with service.store.read() as conn:
        rows = windows.step_series(conn, job_id, epoch=epoch, first=first, last=last, limit=limit)
    return StepsOut(items=[StepOut.of(row) for row in rows])
