"""Charts of windows and steps: Plotly figures with a sentence and a table for screen readers.

`ShownSteps` are the steps of a chart over time, with their figures.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import Query
from msgspec.structs import replace
from starlette.responses import Response

from app.api.http.fields import (
    ChosenSteps,
    EpochNumber,
    Limit,
    ShownWindow,
    StepNumber,
    ThemeName,
    WindowsId,
)
from app.api.routes.dependencies import ApiRouter, JobKey, ServiceDep
from app.api.routes.windows.ribbon import step_events
from app.api.routes.windows.windows import (
    RANGE_SEPARATOR,
    RECENT,
    json_response,
    last_window,
    shown_result,
)
from app.api.service.job_state import job_state, missing_data_text, silent_workers
from app.api.service.replays import epoch_of
from app.api.service.service import Service
from app.charts.base.figure import PlotlyFigure
from app.charts.base.step_axis import StepAxis, thinned_axis
from app.charts.base.theme import THEMES, Theme
from app.charts.job.sequence_lengths import MicroBatchPairs, lengths
from app.charts.job.step_times import StepPoint
from app.charts.job.step_times import step_times as steps_chart
from app.charts.job.window_charts import WINDOW_CHARTS, ChartOptions, PerStep
from app.charts.worker.heatmap import Sort
from app.diagnosis.evidence.sequence_lengths import PAIR_STAGE, length_pairs
from app.errors import NotFound
from app.result.arrivals import ArrivalsByStep
from app.result.window_result import FiguresByStep, Resolution, WindowResult, resolution_of
from app.store import hosts, jobs, windows
from app.store.database import Connection
from app.store.jobs import JobRecord
from app.store.windows import StepRow
from app.trace.job import job_of
from app.trace.window import parse_step_ranges

# At least as many steps are drawn, if there are as many, to show the context.
MAX_DRAWN_STEPS = 200
MAX_READ_STEPS = 20_000

# Workers (or dp ranks) times steps that are read for one chart.
MAX_CELLS = 200_000

_NO_FIGURES = FiguresByStep(
    optype_slowdown={}, dp_rank_slowdown=(), stage_slowdown=(), worker_slowdown=()
)

# Last steps that give the expected time of the next one.
_RECENT_STEPS = 8


@dataclass(frozen=True, slots=True)
class ShownSteps:
    """Steps of a chart over time, skipped ones included, and the columns of measured ones."""

    rows: Sequence[StepRow]
    axis: StepAxis
    # Whether the first requested steps are left out, because there are too many.
    is_part: bool = False


def shown_steps(
    conn: Connection, job_id: str, epoch: int, within: tuple[int, int] | None
) -> ShownSteps:
    """The last steps of a run, or a range of steps with some around it.

    A range within the last steps is shown with all of these, so that it gives the same picture as
    following the job.
    """
    rows = windows.step_series(conn, job_id, epoch=epoch, limit=MAX_DRAWN_STEPS)
    if within is None or not rows or within[0] >= rows[0].step:
        return ShownSteps(rows, step_axis(rows))
    rows = _steps_around(conn, job_id, epoch, *within)
    is_part = len(rows) == MAX_READ_STEPS and rows[0].step > within[0]
    return ShownSteps(rows, step_axis(rows), is_part)


def step_axis(rows: Sequence[StepRow]) -> StepAxis:
    """The axis over the measured steps; columns are merged where they are too many."""
    axis = thinned_axis(
        [(row.step, row.recorded_s) for row in rows if row.recorded_s is not None],
        {row.step: row.last_step for row in rows if row.last_step is not None},
    )
    return axis.with_clock({row.step: row.started_s for row in rows})


def with_steps(
    conn: Connection, job_id: str, result: WindowResult, shown: ShownSteps, name: PerStep
) -> WindowResult:
    """The result with one figure by step, for the steps of the axis.

    Of a large job, only the newest steps are read. The result's own figures win; it may be of some
    steps only.
    """
    job = result.job
    width = job.dp_size * (job.pp_size if name == "worker_slowdown" else 1)
    drawn, first_steps = _drawn_steps(shown, width)
    parts = windows.figures_by_step(conn, job_id, epoch_of(result), name, first_steps)
    by_step = {
        step: figures
        for numbers, of_steps in parts
        for step, figures in zip(numbers, of_steps, strict=True)
        if step in drawn
    }
    if result.per_step:
        by_step |= dict(zip(result.steps, getattr(result.per_step, name), strict=True))
    joined = tuple(sorted(by_step))
    per_step = replace(_NO_FIGURES, **{name: tuple(by_step[step] for step in joined)})
    return replace(result, steps=joined, per_step=per_step)


def with_waits(
    conn: Connection, job_id: str, result: WindowResult, shown: ShownSteps
) -> WindowResult:
    """The result with the waits caused by each rank, for the steps of the axis."""
    arrivals = result.arrivals
    if arrivals is None:
        return result
    column = {rank: at for at, rank in enumerate(arrivals.rank)}
    drawn, first_steps = _drawn_steps(shown, len(column))
    by_step: dict[int, tuple[float | None, ...]] = {}
    epoch = epoch_of(result)
    for numbers, ranks, of_steps in windows.waited_for_by_step(conn, job_id, epoch, first_steps):
        for step, values in zip(numbers, of_steps, strict=True):
            if step in drawn:
                row: list[float | None] = [None] * len(column)
                for rank, value in zip(ranks, values, strict=True):
                    if rank in column:
                        row[column[rank]] = value
                by_step[step] = tuple(row)
    if own := arrivals.per_step:
        by_step |= dict(zip(result.steps, own.waited_for_s, strict=True))
    joined = tuple(sorted(by_step))
    per_step = ArrivalsByStep(waited_for_s=tuple(by_step[step] for step in joined))
    return replace(result, steps=joined, arrivals=replace(arrivals, per_step=per_step))


def recent_step_s(conn: Connection, job_id: str, epoch: int) -> float | None:
    """Mean time of the last steps of the run, or of the run before if it has none yet."""
    for run in (epoch, epoch - 1):
        rows = windows.step_series(conn, job_id, epoch=run, limit=_RECENT_STEPS)
        times_s = [row.recorded_s for row in rows if row.recorded_s is not None]
        if times_s:
            return sum(times_s) / len(times_s)
    return None


def _drawn_steps(shown: ShownSteps, width: int) -> tuple[set[int], list[int]]:
    """The drawn steps, `width` columns each, and the first steps of their windows."""
    drawn = set(shown.axis.steps[-max(1, MAX_CELLS // width) :])
    first_steps = {
        int(row.window_id.split("-")[1])
        for row in shown.rows
        if row.step in drawn and row.recorded_s is not None
    }
    return drawn, sorted(first_steps)


def _steps_around(
    conn: Connection, job_id: str, epoch: int, first: int, last: int
) -> list[StepRow]:
    rows = windows.step_series(
        conn, job_id, epoch=epoch, first=first, last=last, limit=MAX_READ_STEPS
    )
    beside = max(0, MAX_DRAWN_STEPS - len(rows)) // 2
    if not beside:
        return rows
    before = windows.step_series(conn, job_id, epoch=epoch, last=first - 1, limit=beside)
    after = windows.step_series(
        conn, job_id, epoch=epoch, first=last + 1, last=last + beside, limit=beside
    )
    return [*before, *rows, *after]


router = ApiRouter("charts")

ChartName = Literal[
    "waterfall", "workers", "optypes", "stages", "worker-steps", "dp-steps", "waited-for", "lengths"
]


class ChartNotMeasured(NotFound):
    """The window lacks the figures of this chart."""

    code = "not_measured"


class FiguresNoLongerStored(NotFound):
    """The window is old: what this chart shows of it has been thinned."""

    code = "no_longer_stored"


@router.chart(
    "/jobs/{job_id}/windows/{window}/charts/{chart}", "Get a chart of one window or of several"
)
def get_window_chart(
    job_id: JobKey,
    window: WindowsId,
    chart: ChartName,
    service: ServiceDep,
    theme: ThemeName = "light",
    sort: Annotated[
        Sort, Query(description="Order of the workers' columns; `rack`: hosts by rack instead.")
    ] = "rank",
    steps: ChosenSteps = None,
) -> Response:
    """404 with code `not_measured` while the chart's figures are missing.

    Of old windows, figures by step are `no_longer_stored`. `lengths` needs the operations of the
    newest closed window, until retention deletes them.
    """
    if chart == "lengths":
        return json_response(_lengths(service, job_id, window, steps, THEMES[theme]))
    kind = WINDOW_CHARTS[chart]
    by_step = kind.per_step is not None and steps is not None
    result = shown_result(service, job_id, window, steps, per_step=by_step)
    window_id, epoch = str(result.window.id), epoch_of(result)
    resolution = resolution_of(result)
    if not kind.can_draw(result):
        raise ChartNotMeasured(f"window {window_id!r} has no figures for this chart")
    with service.store.read() as conn:
        known_hosts = hosts.load(conn, job_id, epoch) if kind.names_hosts else None
        silent = silent_workers(jobs.get(conn, job_id)) if window in (RECENT, "latest") else []
        placed = hosts.placements(conn, job_id, epoch) if sort == "rack" else {}
        axis = None
        if kind.per_step is not None:
            shown = shown_steps(conn, job_id, epoch, _ends(result))
            axis = shown.axis
            if kind.per_step == "waited_for_s":
                result = with_waits(conn, job_id, result, shown)
            else:
                result = with_steps(conn, job_id, result, shown, kind.per_step)
            if not result.steps:
                raise _no_steps(window_id, resolution)
    events = [] if axis is None else step_events(service, job_id, epoch)
    racks = {worker: placement.rack for worker, placement in placed.items()}
    setting = ChartOptions(THEMES[theme], known_hosts, axis, sort, events, silent, racks)
    return json_response(kind.draw(result, setting))


@router.chart("/jobs/{job_id}/charts/steps", "Get the chart of a job's step times")
def get_steps_chart(
    job_id: JobKey,
    service: ServiceDep,
    theme: ThemeName = "light",
    epoch: EpochNumber = None,
    first: StepNumber = None,
    last: StepNumber = None,
    limit: Limit = MAX_DRAWN_STEPS,
    window: Annotated[
        ShownWindow | None,
        Query(description="Show the steps of this window or range of windows, and some around it."),
    ] = None,
    right: Annotated[
        Literal["none", "bars"],
        Query(
            description="Space to leave at the right: `bars` to align with a chart below that has "
            "bars there."
        ),
    ] = "none",
) -> Response:
    """The same steps as GET /jobs/{job_id}/steps with the same query, or the steps of a window."""
    with service.store.read() as conn:
        job = jobs.get(conn, job_id)
        state = job_state(job, service.processed(conn), service.alert_slowdown)
    silence = missing_data_text(job, state, service.now_s())
    if window is not None:
        shown, is_to_the_end = _of_window(service, job, window)
    else:
        with service.store.read() as conn:
            rows = windows.step_series(
                conn, job_id, epoch=epoch, first=first, last=last, limit=limit
            )
        shown = ShownSteps(rows, step_axis(rows))
        is_to_the_end = last is None and epoch in (None, job.epoch)
    points = [
        StepPoint(
            row.step,
            row.recorded_s,
            row.simulated_s,
            row.ideal_s,
            row.skipped_reason,
            row.num_steps or 1,
        )
        for row in shown.rows
    ]
    if not any(point.is_measured for point in points):
        raise ChartNotMeasured(f"job {job_of(job_id)!r} has no complete step there")
    figure = steps_chart(
        points,
        at=shown.axis,
        theme=THEMES[theme],
        silent_since=silence if is_to_the_end else None,
        has_bars=right == "bars",
        events=step_events(service, job_id, shown.rows[0].epoch),
        is_part=shown.is_part,
    )
    return json_response(figure)


def _no_steps(window_id: str, resolution: Resolution) -> NotFound:
    if resolution == "step":
        return ChartNotMeasured(f"window {window_id!r} has no figures by step")
    return FiguresNoLongerStored(
        f"the figures by step of window {window_id!r} are no longer stored "
        "(PACELINE_THIN_STEPS_DAYS): its other charts have the means over all of its steps"
    )


def _of_window(service: Service, job: JobRecord, window: str) -> tuple[ShownSteps, bool]:
    """Steps drawn for a window or a range, and whether they extend to the job's last step."""
    epoch, within = _within(service, job.job_id, window)
    with service.store.read() as conn:
        shown = shown_steps(conn, job.job_id, epoch, within)
        newest = windows.step_series(conn, job.job_id, epoch=job.epoch, limit=1)
    return shown, bool(newest and shown.rows and newest[-1] == shown.rows[-1])


def _within(service: Service, job_id: str, window: str) -> tuple[int, tuple[int, int]]:
    """Epoch, first and last step of the recent steps, of a range or of one window."""
    if window == RECENT:
        result = shown_result(service, job_id, window)
        return epoch_of(result), _ends(result) if result.steps else (0, 0)
    with service.store.read() as conn:
        if RANGE_SEPARATOR in window:
            span = windows.window_range(conn, job_id, *window.split(RANGE_SEPARATOR))
            return span.epoch, (span.first_steps[0], span.last_step)
        one = windows.summary(conn, job_id, window)
        return one.epoch, (one.first_step, one.last_step)


def _ends(result: WindowResult) -> tuple[int, int]:
    return result.steps[0], result.steps[-1]


def _lengths(
    service: Service, job_id: str, window: str, steps: str | None, theme: Theme
) -> PlotlyFigure:
    """Points of one window, of the last one of a range, or of some steps."""
    replay = service.replays.get(job_id, last_window(window))
    numbers = None if steps is None else parse_step_ranges(steps, replay.steps)
    pairs = length_pairs(replay, numbers)
    if pairs is None:
        raise ChartNotMeasured(f"window {window!r} has no micro-batches to compare by length")
    return lengths(MicroBatchPairs(pairs.x, pairs.y, pairs.is_lengths, PAIR_STAGE), theme=theme)
