"""A job's ribbon with what happened along it, as the ribbon and the charts over time show it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.api import ribbon_events
from app.api.ribbon_bins import Bin, bins
from app.api.ribbon_events import RibbonEvent
from app.api.service import Service
from app.charts.step_events import StepEvent
from app.ingest.verdict import REASONS
from app.store import alert_events, ribbon

# So many of the newest windows, runs, alerts and skipped steps are looked at.
MAX_WINDOWS = 2000
MAX_RUNS = 8
MAX_ALERTS = 50
MAX_SKIPPED = 500

_LAST_STEP = 2**63 - 1  # of the widest column that holds a step
_SHORT = {
    "onset": "slow",
    "recovery": "recovered",
    "alert-firing": "alert",
    "alert-resolved": "resolved",
}


@dataclass(frozen=True, slots=True)
class Happened:
    """Bins of the newest windows, how many older windows there are, and events in the bins.

    `newest` has the newest result with figures of each of the newest runs, by epoch.
    """

    bins: Sequence[Bin]
    older: int
    events: Sequence[RibbonEvent]
    newest: Mapping[int, Mapping[str, Any]]


def happened(service: Service, job_id: str) -> Happened:
    """What is known of a job from its first step that is kept to its last.

    Raises:
        JobNotFound: the job never registered.
    """
    with service.store.read() as conn:
        found, older = ribbon.newest(conn, job_id, limit=MAX_WINDOWS)
        if not found:
            return Happened([], 0, [], {})
        since = found[0].epoch, found[0].first_step
        times = ribbon.times(conn, job_id, since=since)
        # An evaluation is nothing that went wrong.
        left_out = REASONS.values()
        skipped = ribbon.skipped(conn, job_id, since=since, limit=MAX_SKIPPED, besides=left_out)
        beginnings = ribbon.beginnings(conn, job_id, since=since[0])
        told = alert_events.rings_of_job(conn, job_id, limit=MAX_ALERTS)
    shown = bins(found, times)
    newest = _newest(service, job_id, shown)
    events = ribbon_events.events(
        shown, newest=newest, beginnings=beginnings, alerts=told, skipped=skipped
    )
    num_shown = sum(len(each.windows) for each in shown)
    return Happened(shown, older + len(found) - num_shown, events, newest)


def step_events(service: Service, job_id: str, epoch: int) -> list[StepEvent]:
    """What happened in one run, in the words that fit over a chart.

    Read for each chart over time: so without the windows, which may be thousands.
    """
    with service.store.read() as conn:
        newest = ribbon.newest_measured(conn, job_id, epoch)
        told = alert_events.rings_of_job(conn, job_id, limit=MAX_ALERTS)
    if newest is None:
        return []
    whole_run = Bin((replace(newest, first_step=0, last_step=_LAST_STEP),), None)
    result = service.results.get(service.store, job_id, newest.window_id)
    found = ribbon_events.events(
        [whole_run], newest={epoch: result}, beginnings={}, alerts=told, skipped=()
    )
    return [StepEvent(event.step, _SHORT[event.kind]) for event in found]


def _newest(service: Service, job_id: str, shown: Sequence[Bin]) -> dict[int, Mapping[str, Any]]:
    measured = (
        window
        for each in reversed(shown)
        for window in reversed(each.windows)
        if window.slowdown is not None
    )
    found: dict[int, Mapping[str, Any]] = {}
    for window in measured:
        if window.epoch not in found:
            if len(found) == MAX_RUNS:
                break
            found[window.epoch] = service.results.get(service.store, job_id, window.window_id)
    return found
