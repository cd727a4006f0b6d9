"""The ribbon: the whole job as bins of windows, from which a page selects its range.

`job_history` reads its bins and events, `step_events` the events of charts over time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from fastapi import APIRouter
from pydantic import AliasPath, Field

from app import formatting
from app.api.http.fields import ResponseModel, UnixTime, timestamp_or_none
from app.api.routes.dependencies import JobKey, ServiceDep, refusals
from app.api.routes.windows import ribbon_events
from app.api.routes.windows.ribbon_events import (
    EventKind,
    RibbonBin,
    RibbonEvent,
    ribbon_bins,
    ribbon_gaps,
)
from app.api.service.annotation_places import placed_annotations
from app.api.service.results import epoch_of
from app.api.service.service import Service
from app.charts.base.step_axis import StepEvent
from app.errors import WindowNotFound
from app.formatting import unix_time
from app.ingest.assembly.steps import LEFT_OUT_REASONS
from app.result.join_causes import leading
from app.result.window_result import Verdict, WindowResult
from app.store import windows
from app.store.alerting import alerts

# Newest windows, runs, alerts and skipped steps that are read.
MAX_WINDOWS = 2000
MAX_RUNS = 8
MAX_ALERTS = 50
MAX_SKIPPED = 500

_LAST_STEP = 2**63 - 1  # the largest step of the database's type
_SHORT_TEXTS = {
    "onset": "slow",
    "recovery": "recovered",
    "alert-firing": "alert",
    "alert-resolved": "resolved",
}


@dataclass(frozen=True, slots=True)
class JobHistory:
    """Bins of the newest windows, the number of older ones, and events in the bins.

    `newest` has the newest result with figures of each of the newest runs, by epoch.
    """

    bins: Sequence[RibbonBin]
    older: int
    events: Sequence[RibbonEvent]
    newest: Mapping[int, WindowResult]


def job_history(service: Service, job_id: str) -> JobHistory:
    """History of a job, from its first stored step to its last.

    Raises:
        JobNotFound: the job never registered.
    """
    with service.store.read() as conn:
        found, older = windows.newest_windows(conn, job_id, limit=MAX_WINDOWS)
        if not found:
            return JobHistory([], 0, [], {})
        since = found[0].epoch, found[0].first_step
        times = windows.step_time_sums(conn, job_id, since=since)
        # An evaluation is no fault.
        left_out = LEFT_OUT_REASONS.values()
        skipped = windows.skipped_steps(
            conn, job_id, since=since, limit=MAX_SKIPPED, besides=left_out
        )
        beginnings = windows.run_beginnings(conn, job_id, since=since[0])
        firings = alerts.firings_of_job(conn, job_id, limit=MAX_ALERTS)
        placed = placed_annotations(conn, job_id, found)
    shown = ribbon_bins(found, times)
    newest = _newest_results(service, job_id, shown)
    events = ribbon_events.find_events(
        shown,
        newest=newest,
        beginnings=beginnings,
        alerts=firings,
        skipped=skipped,
        annotations=placed,
    )
    events = _with_step_times(service, job_id, events)
    num_shown = sum(len(each.windows) for each in shown)
    return JobHistory(shown, older + len(found) - num_shown, events, newest)


# Their time is that of the event itself, not of its step.
_TIMED_KINDS = ("restart", "alert-firing", "alert-resolved", "annotation")


def _with_step_times(
    service: Service, job_id: str, events: Sequence[RibbonEvent]
) -> list[RibbonEvent]:
    """The events, those at a step with the time at which it started, None where not known."""
    of_steps = [each for each in events if each.kind not in _TIMED_KINDS]
    with service.store.read() as conn:
        at = {
            (epoch, step): at_s
            for epoch in {each.epoch for each in of_steps}
            for step, at_s in windows.step_starts(
                conn, job_id, epoch, [each.step for each in of_steps if each.epoch == epoch]
            ).items()
        }
    return [
        each if each.kind in _TIMED_KINDS else replace(each, at_s=at.get((each.epoch, each.step)))
        for each in events
    ]


def step_events(service: Service, job_id: str, epoch: int) -> list[StepEvent]:
    """Events of one run, with texts short enough for a chart.

    Read for each chart over time, so without windows, which may be thousands.
    """
    with service.store.read() as conn:
        newest = windows.newest_measured(conn, job_id, epoch)
        firings = alerts.firings_of_job(conn, job_id, limit=MAX_ALERTS)
        placed = placed_annotations(conn, job_id)
    if newest is None:
        return []
    whole_run = RibbonBin((replace(newest, first_step=0, last_step=_LAST_STEP),), None)
    result = service.results.get(service.store, job_id, newest.window_id)
    found = ribbon_events.find_events(
        [whole_run],
        newest={epoch: result},
        beginnings={},
        alerts=firings,
        skipped=(),
        annotations=placed,
    )
    return [StepEvent(event.step, _short_text(event)) for event in found]


def _short_text(event: RibbonEvent) -> str:
    if event.kind == "annotation":
        return formatting.chart_label(event.text)
    return _SHORT_TEXTS[event.kind]


def _newest_results(
    service: Service, job_id: str, shown: Sequence[RibbonBin]
) -> dict[int, WindowResult]:
    newest_first = [w for each in reversed(shown) for w in reversed(each.windows)]
    measured = [each for each in newest_first if each.slowdown is not None]
    # Of an open window with few steps only before the first closed one of its run.
    measured.sort(key=lambda each: (-each.epoch, each.state == "open"))
    found: dict[int, WindowResult] = {}
    for window in measured:
        if window.epoch not in found:
            if len(found) == MAX_RUNS:
                break
            found[window.epoch] = service.results.get(service.store, job_id, window.window_id)
    return found


router = APIRouter(tags=["windows"])


class RibbonBinOut(ResponseModel):
    """Successive windows of one run; `from` and `to` are the ids of the first and the last one."""

    from_: str = Field(validation_alias=AliasPath("first", "window_id"), serialization_alias="from")
    to: str = Field(validation_alias=AliasPath("last", "window_id"))
    first_step: int = Field(validation_alias=AliasPath("first", "first_step"))
    last_step: int = Field(validation_alias=AliasPath("last", "last_step"))
    num_steps: int
    epoch: int = Field(validation_alias=AliasPath("first", "epoch"))
    slowdown: float | None = Field(
        description="Slowdown over all steps of the bin; null if unknown."
    )
    verdict: Verdict | None
    is_open: bool
    first_at: UnixTime | None = Field(
        validation_alias="first_at_s",
        description="When its first analysed step started; null where not known.",
    )
    last_at: UnixTime | None = Field(
        validation_alias="last_at_s",
        description="When its last analysed step started; null where not known.",
    )


class RibbonGapOut(ResponseModel):
    """Missing steps between two bins of one run."""

    after_bin: int
    num_steps: int


class RibbonEventOut(ResponseModel):
    """An event at a step."""

    step: int
    epoch: int
    at: UnixTime | None = Field(
        validation_alias="at_s",
        description="Time of the event; of an event at a step, when the step started, null where "
        "not known.",
    )
    kind: EventKind
    text: str
    detail: str
    bin: int = Field(description="Position of the event's bin in `bins`.")


class WindowRangeOut(ResponseModel):
    """First and last window of a range."""

    from_: str = Field(serialization_alias="from")
    to: str


class SinceOnsetOut(WindowRangeOut):
    """Windows since an onset, and its step."""

    step: int
    at: datetime | None = Field(description="When the step started; null where not known.")


class RibbonOut(ResponseModel):
    """A job's newest windows, oldest first; `older` windows are not shown."""

    bins: list[RibbonBinOut]
    older: int
    gaps: list[RibbonGapOut]
    events: list[RibbonEventOut]
    since_onset: SinceOnsetOut | None = Field(
        description="Windows since the onset of the costliest current cause, and the step of the "
        "onset; null if unknown."
    )


@router.get(
    "/jobs/{job_id}/ribbon",
    operation_id="get_ribbon",
    summary="Get an overview of a job's windows and events",
    responses=refusals(404),
)
def get_ribbon(job_id: JobKey, service: ServiceDep) -> RibbonOut:
    """The job's windows in at most 240 bins, and the events at their steps."""
    history = job_history(service, job_id)
    return RibbonOut(
        bins=[RibbonBinOut.model_validate(shown) for shown in history.bins],
        older=history.older,
        gaps=[RibbonGapOut.model_validate(gap) for gap in ribbon_gaps(history.bins)],
        events=[RibbonEventOut.model_validate(event) for event in history.events],
        since_onset=_since_onset(service, job_id, history.bins) if history.bins else None,
    )


def _since_onset(service: Service, job_id: str, shown: Sequence[RibbonBin]) -> SinceOnsetOut | None:
    try:
        recent = service.results.recent(service.store, job_id)
    except WindowNotFound:
        return None  # of the current run there is none yet
    finding = leading(recent.findings)
    if finding is None or finding.onset_step is None:
        return None
    onset, epoch = finding.onset_step, epoch_of(recent)
    of_run = [w for each in shown for w in each.windows if w.epoch == epoch]
    closed = [each for each in of_run if each.state != "open"] or of_run
    if not closed:
        return None  # older than what is shown
    first = next((w for w in closed if w.last_step >= onset), closed[-1])
    at = timestamp_or_none(unix_time(finding.onset_at))
    return SinceOnsetOut(from_=first.window_id, to=closed[-1].window_id, step=onset, at=at)
