"""The ribbon: the whole job as bins of windows, from which a page selects its range.

`step_events` are the events of charts over time. A range can also be given by clock times: of the
windows that hold the steps that started within them.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from typing import Annotated

from fastapi import Query
from pydantic import AliasPath, Field

from app import formatting
from app.api.http.fields import (
    EpochNumber,
    ResponseModel,
    UnixTime,
    parse_moment,
    timestamp,
    timestamp_or_none,
)
from app.api.routes.dependencies import ApiRouter, JobKey, ServiceDep
from app.api.routes.windows import ribbon_events
from app.api.routes.windows.ribbon_events import EventKind, RibbonBin, RibbonEvent, ribbon_bins
from app.api.service.annotation_places import placed_annotations
from app.api.service.replays import epoch_of
from app.api.service.service import Service
from app.charts.base.step_axis import StepEvent
from app.errors import InvalidRequest, NotFound, WindowNotFound
from app.formatting import unix_time
from app.ingest.assembly.steps import LEFT_OUT_REASONS
from app.result.join import leading
from app.result.window_result import Verdict, WindowResult
from app.store import jobs, windows
from app.store.alerting import alerts
from app.trace.job import job_of

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


def _with_step_times(
    service: Service, job_id: str, events: Sequence[RibbonEvent]
) -> list[RibbonEvent]:
    """The events; those without a time of their own get that of their step, None if unknown."""
    of_steps = [event for event in events if event.at_s is None]
    with service.store.read() as conn:
        at = {
            (epoch, step): at_s
            for epoch in {event.epoch for event in of_steps}
            for step, at_s in windows.step_starts(
                conn, job_id, epoch, [event.step for event in of_steps if event.epoch == epoch]
            ).items()
        }
    return [
        replace(event, at_s=at.get((event.epoch, event.step))) if event.at_s is None else event
        for event in events
    ]


def step_events(service: Service, job_id: str, epoch: int) -> list[StepEvent]:
    """Events of one run, with texts short enough for a chart.

    Read for every chart over time, so without windows, which may be thousands.
    """
    with service.store.read() as conn:
        newest = windows.newest_measured(conn, job_id, epoch)
        firings = alerts.firings_of_job(conn, job_id, limit=MAX_ALERTS)
        placed = placed_annotations(conn, job_id)
    if newest is None:
        return []
    whole_run = RibbonBin((replace(newest, first_step=0, last_step=_LAST_STEP),), None)
    events = ribbon_events.find_events(
        [whole_run],
        newest={epoch: service.results.get(service.store, job_id, newest.window_id)},
        beginnings={},
        alerts=firings,
        skipped=(),
        annotations=placed,
    )
    return [StepEvent(event.step, _short_text(event)) for event in events]


def _short_text(event: RibbonEvent) -> str:
    if event.kind == "annotation":
        return formatting.chart_label(event.text)
    return _SHORT_TEXTS[event.kind]


def _newest_results(
    service: Service, job_id: str, shown: Sequence[RibbonBin]
) -> dict[int, WindowResult]:
    oldest_first = [window for ribbon_bin in shown for window in ribbon_bin.windows]
    measured = [window for window in reversed(oldest_first) if window.slowdown is not None]
    # Of an open window with few steps only before the first closed one of its run.
    measured.sort(key=lambda window: (-window.epoch, window.state == "open"))
    by_epoch: dict[int, WindowResult] = {}
    for window in measured:
        if window.epoch not in by_epoch:
            if len(by_epoch) == MAX_RUNS:
                break
            by_epoch[window.epoch] = service.results.get(service.store, job_id, window.window_id)
    return by_epoch


router = ApiRouter("windows")


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


@router.get("/jobs/{job_id}/ribbon", summary="Get an overview of a job's windows and events")
def get_ribbon(job_id: JobKey, service: ServiceDep) -> RibbonOut:
    """The job's windows in at most 240 bins, and the events at their steps."""
    with service.store.read() as conn:
        newest, older = windows.newest_windows(conn, job_id, limit=MAX_WINDOWS)
        if not newest:
            return RibbonOut(bins=[], older=0, gaps=[], events=[], since_onset=None)
        since = newest[0].epoch, newest[0].first_step
        times = windows.step_time_sums(conn, job_id, since=since)
        # An evaluation is no fault.
        skipped = windows.skipped_steps(
            conn, job_id, since=since, limit=MAX_SKIPPED, besides=LEFT_OUT_REASONS.values()
        )
        beginnings = windows.run_beginnings(conn, job_id, since=since[0])
        firings = alerts.firings_of_job(conn, job_id, limit=MAX_ALERTS)
        placed = placed_annotations(conn, job_id, newest)
    shown = ribbon_bins(newest, times)
    events = ribbon_events.find_events(
        shown,
        newest=_newest_results(service, job_id, shown),
        beginnings=beginnings,
        alerts=firings,
        skipped=skipped,
        annotations=placed,
    )
    return RibbonOut(
        bins=shown,
        older=older + len(newest) - sum(len(ribbon_bin.windows) for ribbon_bin in shown),
        gaps=ribbon_gaps(shown),
        events=_with_step_times(service, job_id, events),
        since_onset=_since_onset(service, job_id, shown),
    )


def ribbon_gaps(ribbon: Sequence[RibbonBin]) -> list[RibbonGapOut]:
    """Gaps between bins of one run."""
    gaps = []
    for at, (before, after) in enumerate(pairwise(ribbon)):
        num_steps = after.first.first_step - before.last.last_step - 1
        if before.last.epoch == after.first.epoch and num_steps > 0:
            gaps.append(RibbonGapOut(after_bin=at, num_steps=num_steps))
    return gaps


def _since_onset(service: Service, job_id: str, shown: Sequence[RibbonBin]) -> SinceOnsetOut | None:
    try:
        recent = service.results.recent(service.store, job_id)
    except WindowNotFound:
        return None  # of the current run there is none yet
    finding = leading(recent.findings)
    if finding is None or finding.onset_step is None:
        return None
    onset, epoch = finding.onset_step, epoch_of(recent)
    windows_shown = (window for ribbon_bin in shown for window in ribbon_bin.windows)
    of_run = [window for window in windows_shown if window.epoch == epoch]
    closed = [window for window in of_run if window.state != "open"] or of_run
    if not closed:
        return None  # older than the windows that are shown
    first = next((window for window in closed if window.last_step >= onset), closed[-1])
    at = timestamp_or_none(unix_time(finding.onset_at))
    return SinceOnsetOut(from_=first.window_id, to=closed[-1].window_id, step=onset, at=at)


_LAST = re.compile(r"last-([1-9][0-9]{0,4})(m|h|d)", re.ASCII)
_UNIT_S = {"m": 60.0, "h": 3_600.0, "d": 86_400.0}


class NoStepThen(NotFound):
    """No recorded step of the run started within the time."""

    code = "no_step_then"


class TimeRangeOut(ResponseModel):
    """The windows that hold the steps of some time; `from` and `to` are ids."""

    window: str = Field(description="Id of the window, or of the range, for all other requests.")
    from_: str = Field(serialization_alias="from")
    to: str
    epoch: int
    from_at: datetime = Field(description="The beginning of the time, resolved.")
    to_at: datetime = Field(description="The end of the time, resolved.")


@router.get("/jobs/{job_id}/time-range", summary="Get the windows of a range of clock times")
def get_time_range(
    job_id: JobKey,
    service: ServiceDep,
    begin: Annotated[
        str | None,
        Query(
            alias="from",
            max_length=64,
            description="A time in RFC 3339, or `last-15m`, `last-6h`, `last-2d`: so long before "
            "the newest step; default: the beginning of the run.",
            examples=["2026-11-21T22:00:00Z"],
        ),
    ] = None,
    end: Annotated[
        str | None,
        Query(
            alias="to",
            max_length=64,
            description="A time in RFC 3339; default: the newest step.",
            examples=["2026-11-21T22:15:00Z"],
        ),
    ] = None,
    epoch: EpochNumber = None,
) -> TimeRangeOut:
    """Whole windows: they hold every step that started within the time, and their other steps.

    Refused with 404 `no_step_then` where no recorded step started then, with the times of those
    that did.
    """
    with service.store.read() as conn:
        run = jobs.get(conn, job_id).epoch if epoch is None else epoch
        known = windows.recorded_time(conn, job_id, run)
        if known is None:
            raise NoStepThen(
                f"the times of the steps of job {job_of(job_id)!r} are not known: "
                "choose windows by their steps"
            )
        from_s = _moment_s(begin, "from", known)
        to_s = _moment_s(end, "to", known)
        if from_s > to_s and begin is not None and end is not None:
            raise InvalidRequest("`from` is later than `to`: give the earlier time first")
        ends = windows.windows_between(conn, job_id, run, from_s=from_s, to_s=to_s)
    if ends is None:
        now_s = service.now_s()
        first, last, *times = (formatting.utc_time(at_s, now_s) for at_s in (from_s, to_s, *known))
        # An end that was not given lies within the run, so all of it is on the other's far side.
        asked = f"between {first} and {last}"
        if from_s > to_s:
            asked = f"before {last}" if begin is None else f"after {first}"
        raise NoStepThen(
            f"no recorded step of job {job_of(job_id)!r} started {asked}: "
            f"choose a time between {' and '.join(times)}"
        )
    first, last = (f"{run}-{step}" for step in ends)
    return TimeRangeOut(
        window=first if first == last else f"{first}..{last}",
        from_=first,
        to=last,
        epoch=run,
        from_at=timestamp(from_s),
        to_at=timestamp(to_s),
    )


def _moment_s(given: str | None, name: str, known: tuple[float, float]) -> float:
    """Unix time of a query's time; one that is missing is that of the run's first or last step."""
    first_s, last_s = known
    if given is None:
        return first_s if name == "from" else last_s
    relative = _LAST.fullmatch(given)
    if relative is not None and name == "from":
        return last_s - int(relative[1]) * _UNIT_S[relative[2]]
    try:
        return parse_moment(given).timestamp()
    except ValueError as error:
        raise InvalidRequest(f"`{name}` is no time: {error}") from error
