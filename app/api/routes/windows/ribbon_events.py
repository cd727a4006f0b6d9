"""The ribbon's data: windows in bins, and events along them.

Each bin holds whole windows of one run. Events: the job slowed down, recovered, restarted, alerted
or skipped steps.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import ceil
from typing import Literal

from app import formatting
from app.alerts.alert import AlertEvent
from app.api.service.annotation_places import (
    PlacedAnnotation,
    annotation_text,
    short_annotation_text,
)
from app.result.finding import Culprit
from app.result.join import leading
from app.result.window_result import JobChange, Verdict, WindowResult
from app.store.windows import StepTimeSums, UnanalysedStep, WindowSummary

# A bin is three pixels wide on a desktop, one on a phone.
MAX_BINS = 240


@dataclass(frozen=True, slots=True)
class RibbonBin:
    """Successive windows; `slowdown` is that of all their steps together, None if unknown.

    `first_at_s` and `last_at_s` are the Unix times at which its first and last analysed step
    started, None where not known.
    """

    windows: tuple[WindowSummary, ...]
    slowdown: float | None
    first_at_s: float | None = None
    last_at_s: float | None = None

    @property
    def first(self) -> WindowSummary:
        """The oldest window."""
        return self.windows[0]

    @property
    def last(self) -> WindowSummary:
        """The newest window."""
        return self.windows[-1]

    @property
    def verdict(self) -> Verdict | None:
        """`low` if that of any window is; None if none was measured."""
        known = {window.verdict for window in self.windows if window.slowdown is not None}
        return "low" if "low" in known else "ok" if known else None

    @property
    def num_steps(self) -> int:
        """Analysed steps."""
        return sum(window.num_steps for window in self.windows)

    @property
    def is_open(self) -> bool:
        """Whether its last window is open."""
        return self.last.state == "open"

    def has(self, epoch: int, step: int) -> bool:
        """Whether the step is in the bin's range."""
        return self.first.epoch == epoch and self.first.first_step <= step <= self.last.last_step


def ribbon_bins(
    newest: Sequence[WindowSummary], times: Mapping[str, StepTimeSums]
) -> list[RibbonBin]:
    """At most 240 bins of the newest windows (ascending), split at runs and gaps."""
    stretches = _stretches(newest, breaks_at_gaps=True)
    if len(stretches) > MAX_BINS // 2:
        stretches = _stretches(newest, breaks_at_gaps=False)
    size = max(1, ceil(len(newest) / MAX_BINS))
    while size < len(newest) and sum(ceil(len(part) / size) for part in stretches) > MAX_BINS:
        size += 1
    chunks = [
        stretch[at : at + size] for stretch in stretches for at in range(0, len(stretch), size)
    ]
    return [_bin(chunk, times) for chunk in chunks[-MAX_BINS:]]


def _bin(chunk: Sequence[WindowSummary], times: Mapping[str, StepTimeSums]) -> RibbonBin:
    known = [times[window.window_id] for window in chunk if window.window_id in times]
    firsts = [sums.first_at_s for sums in known if sums.first_at_s is not None]
    lasts = [sums.last_at_s for sums in known if sums.last_at_s is not None]
    slowdown = _bin_slowdown(chunk, times)
    return RibbonBin(tuple(chunk), slowdown, min(firsts, default=None), max(lasts, default=None))


def _stretches(
    newest: Sequence[WindowSummary], *, breaks_at_gaps: bool
) -> list[list[WindowSummary]]:
    stretches: list[list[WindowSummary]] = []
    for window in newest:
        before = stretches[-1][-1] if stretches else None
        if (
            before is None
            or before.epoch != window.epoch
            or (breaks_at_gaps and window.first_step > before.last_step + 1)
        ):
            stretches.append([])
        stretches[-1].append(window)
    return stretches


def _bin_slowdown(
    chunk: Sequence[WindowSummary], times: Mapping[str, StepTimeSums]
) -> float | None:
    """S = T / T_ideal over all steps of the windows."""
    known = [window for window in chunk if window.slowdown is not None]
    if len(known) == 1:
        return known[0].slowdown
    sums = [times[window.window_id] for window in known if window.window_id in times]
    ideal_s = sum(of_window.ideal_s for of_window in sums)
    return sum(of_window.simulated_s for of_window in sums) / ideal_s if ideal_s else None


EventKind = Literal[
    "onset", "recovery", "restart", "alert-firing", "alert-resolved", "skipped", "annotation"
]

# Changes within this distance are one.
_SAME_CHANGE_STEPS = 2


@dataclass(frozen=True, slots=True)
class RibbonEvent:
    """An event at a step; `text` fits over the ribbon, `detail` is complete.

    `at_s` is a Unix time, None where not known; of an event at a step, when the step started.
    """

    step: int
    epoch: int
    at_s: float | None
    kind: EventKind
    text: str
    detail: str
    bin: int


def find_events(
    ribbon: Sequence[RibbonBin],
    *,
    newest: Mapping[int, WindowResult],
    beginnings: Mapping[int, float],
    alerts: Sequence[AlertEvent],
    skipped: Sequence[UnanalysedStep],
    annotations: Sequence[PlacedAnnotation] = (),
) -> list[RibbonEvent]:
    """All events within the ribbon, ascending.

    `newest` has each run's newest result by epoch.
    """
    events = [
        *_restarts(ribbon, beginnings),
        *chain.from_iterable(_changes(ribbon, *of_run) for of_run in newest.items()),
        *_alerts(ribbon, alerts),
        *_skipped(ribbon, skipped),
        *_annotations(ribbon, annotations),
    ]
    return sorted(events, key=lambda event: (event.epoch, event.step))


def _restarts(
    ribbon: Sequence[RibbonBin], beginnings: Mapping[int, float]
) -> Iterator[RibbonEvent]:
    oldest = ribbon[0].first.epoch if ribbon else 0
    for epoch, at_s in beginnings.items():
        if epoch <= oldest:
            continue  # its start is outside the ribbon, or it is the first run
        at = next((n for n, shown in enumerate(ribbon) if shown.first.epoch == epoch), None)
        if at is not None:
            step = ribbon[at].first.first_step
            detail = f"Run {epoch} began at step {formatting.count(step)}"
            yield RibbonEvent(step, epoch, at_s, "restart", "restart", detail, at)


def _changes(
    ribbon: Sequence[RibbonBin], epoch: int, result: WindowResult
) -> Iterator[RibbonEvent]:
    """The onset of the costliest cause, and every other known change."""
    named = _onset_of_costliest(ribbon, epoch, result)
    if named is not None:
        yield named
    for change in _distinct(result.changes or ()):
        is_named = named is not None and abs(change.step - named.step) <= _SAME_CHANGE_STEPS
        if is_named and change.ratio > 1:
            continue
        kind: EventKind = "onset" if change.ratio > 1 else "recovery"
        text, detail = _change_texts(change)
        yield from _event_at(ribbon, epoch, change.step, kind, text, detail)


def _onset_of_costliest(
    ribbon: Sequence[RibbonBin], epoch: int, result: WindowResult
) -> RibbonEvent | None:
    finding = leading(result.findings)
    if finding is None or finding.onset_step is None:
        return None
    step = finding.onset_step
    detail = formatting.with_times_sign(formatting.bidi_isolated(finding.sentence))
    text = f"slow since {formatting.count(step)}"
    return next(_event_at(ribbon, epoch, step, "onset", text, detail), None)


def _distinct(changes: Sequence[JobChange]) -> list[JobChange]:
    """Changes without one of step time that some workers' own change explains."""
    of_workers = [change for change in changes if change.what == "compute"]
    return of_workers + [
        change
        for change in changes
        if change.what != "compute"
        and not any(_is_same_change(change, other) for other in of_workers)
    ]


def _is_same_change(one: JobChange, other: JobChange) -> bool:
    return abs(one.step - other.step) <= _SAME_CHANGE_STEPS and (one.ratio > 1) == (other.ratio > 1)


def _change_texts(change: JobChange) -> tuple[str, str]:
    ratio = change.ratio
    before, after = formatting.seconds(change.before_s), formatting.seconds(change.after_s)
    if change.what != "compute":
        text = f"steps {formatting.ratio(ratio)}"
        return text, f"A step takes {after} instead of {before}"
    workers = _culprits_text(change.culprits)
    text = f"{workers} {'slower' if ratio > 1 else 'recovered'}"
    return text, f"A computation of {workers} takes {after} instead of {before}"


def _culprits_text(culprits: Sequence[Culprit]) -> str:
    if not culprits:
        return "all workers"
    name = culprits[0].name() or "a worker"
    return name if len(culprits) == 1 else f"{name} and {len(culprits) - 1} more"


def _alerts(ribbon: Sequence[RibbonBin], alerts: Sequence[AlertEvent]) -> Iterator[RibbonEvent]:
    """Alerts that fired or resolved at the same window, as one event."""
    together: dict[tuple[str, EventKind], list[AlertEvent]] = {}
    for alert in sorted(alerts, key=lambda alert: alert.at_s):
        if alert.detail.window_id is not None:
            kind: EventKind = "alert-firing" if alert.kind == "firing" else "alert-resolved"
            together.setdefault((alert.detail.window_id, kind), []).append(alert)
    for (window_id, kind), same in together.items():
        epoch, step = (int(number) for number in window_id.split("-"))
        number = "alert" if len(same) == 1 else formatting.plural(len(same), "alert")
        text = number if kind == "alert-firing" else f"{number} resolved"
        detail = formatting.bidi_isolated(same[0].sentence)
        for event in _event_at(ribbon, epoch, step, kind, text, detail):
            yield replace(event, at_s=same[0].at_s)


def _skipped(
    ribbon: Sequence[RibbonBin], skipped: Sequence[UnanalysedStep]
) -> Iterator[RibbonEvent]:
    """Successive steps skipped for the same reason, as one event."""
    stretches: list[list[UnanalysedStep]] = []
    for step in skipped:
        before = stretches[-1][-1] if stretches else None
        goes_on = before is not None and (before.epoch, before.reason) == (step.epoch, step.reason)
        if before is not None and goes_on and step.step == before.step + 1:
            stretches[-1].append(step)
        else:
            stretches.append([step])
    for stretch in stretches:
        text = f"{formatting.plural(len(stretch), 'step')} skipped"
        detail = f"{text}: {formatting.bidi_isolated(stretch[0].reason)}"
        yield from _event_at(ribbon, stretch[0].epoch, stretch[0].step, "skipped", text, detail)


def _annotations(
    ribbon: Sequence[RibbonBin], placed: Sequence[PlacedAnnotation]
) -> Iterator[RibbonEvent]:
    for place in placed:
        if place.epoch is None or place.step is None:
            continue
        annotation = place.annotation
        text, detail = short_annotation_text(annotation), annotation_text(annotation)
        if annotation.source:
            detail = f"{detail} ({formatting.bidi_isolated(annotation.source)})"
        for event in _event_at(ribbon, place.epoch, place.step, "annotation", text, detail):
            # Its own time, not that of an analysis.
            yield replace(event, at_s=annotation.at_s)


def _event_at(
    ribbon: Sequence[RibbonBin], epoch: int, step: int, kind: EventKind, text: str, detail: str
) -> Iterator[RibbonEvent]:
    for at, shown in enumerate(ribbon):
        if shown.has(epoch, step):
            yield RibbonEvent(step, epoch, None, kind, text, detail, at)
            return
