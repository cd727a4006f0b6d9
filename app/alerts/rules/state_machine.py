"""pending, firing, resolved: how one alert moves on with the next window, and with time.

Rules on figures count event time, the seconds that the windows' steps took, so that stored
history gives the alerts that live data gave. Rules on missing data have no figure and count by
the clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from msgspec import structs

from app.alerts.alert import AlertEventKind, AlertState, Detail
from app.alerts.labels import with_culprits
from app.alerts.rule import Rule

ThresholdSide = Literal["over", "ended", "unsure", "between", "under"]


@dataclass(frozen=True, slots=True)
class SubjectReading:
    """The figure of one subject in a window that counts; `value` is None where it has none.

    Only a figure that `is_sure` may raise an alert; others keep one up. `is_present` says that the
    same trouble is still there, so that a window in which it costs little does not end a row of
    windows. Trouble that `is_over` by the window's end counts, as it may come back, but raises no
    alert.
    """

    value: float | None
    is_sure: bool = True
    is_present: bool = False
    is_over: bool = False
    detail: Detail = field(default_factory=Detail)
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ObservedWindow:
    """The window, how many seconds its steps took, and the time of evaluation (Unix seconds).

    `first_at_s` is the Unix time at which its first step started, None where not known.
    """

    window_id: str
    epoch: int
    first_step: int
    took_s: float
    now_s: float
    first_at_s: float | None = None


def threshold_side(rule: Rule, reading: SubjectReading) -> ThresholdSide:
    """The figure against the rule's thresholds; a missing subject counts as under."""
    if reading.value is None or rule.above is None:
        return "under"
    if reading.value >= rule.above:
        if not reading.is_sure:
            return "unsure"
        return "ended" if reading.is_over else "over"
    clear = rule.above if rule.clear is None else rule.clear
    return "between" if reading.value >= clear else "under"


RUN_RESTARTED = "the job has restarted"
# Seconds for which windows may close without figures, too far from the record or with a worker's
# part missing, before what was known of an alert is too old to be notified again.
NO_DATA_AFTER_S = 600.0
# Between both thresholds, time counts so much towards resolving: a noisy job at rest may stay just
# above the one that clears for ever.
BETWEEN_WEIGHT = 0.5


class Transition(NamedTuple):
    """A transition with the alert's details at that moment, and perhaps a reason."""

    kind: AlertEventKind
    detail: Detail
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class AlertStep:
    """Effect of one reading: the next state, None at rest, and the transitions on the way there."""

    state: AlertState | None
    transitions: tuple[Transition, ...] = ()


def by_window(
    rule: Rule,
    before: AlertState | None,
    fresh: AlertState,
    reading: SubjectReading,
    at: ObservedWindow,
) -> AlertStep:
    """The alert after a complete window; `fresh` is a new alert of the same subject.

    The window must be a later one than the last that counted.
    """
    where = threshold_side(rule, reading)
    counts = where in ("over", "ended")
    if before is None:
        return _count_window(rule, None, fresh, reading, at) if counts else AlertStep(None)
    if before.phase == "firing":
        return _firing(rule, before, fresh, reading, where, at)
    if before.epoch != at.epoch:
        # Windows before and after a restart are not in a row.
        again = by_window(rule, None, fresh, reading, at)
        cleared = Transition("cleared", before.detail, RUN_RESTARTED)
        return AlertStep(again.state, (cleared, *again.transitions))
    if where in ("unsure", "between") and reading.is_present:
        return AlertStep(replace(before, window_id=at.window_id))
    if not counts:
        return AlertStep(None, (Transition("cleared", _detail_at_end(reading, before, at)),))
    return _count_window(rule, before, fresh, reading, at)


def by_missing_data(before: AlertState) -> AlertStep:
    """The job has no figures any more: its alerts are without data."""
    if before.phase != "firing" or before.is_no_data:
        return AlertStep(before)
    return AlertStep(replace(before, is_no_data=True), (Transition("no-data", before.detail),))


def by_uncounted_window(before: AlertState, now_s: float) -> AlertStep:
    """A window without figures has closed; after some time the alert is without data."""
    if before.phase != "firing" or before.is_no_data:
        return AlertStep(before)
    since_s = now_s if before.unseen_since_s is None else min(before.unseen_since_s, now_s)
    if now_s - since_s >= NO_DATA_AFTER_S:
        return by_missing_data(before)
    return AlertStep(replace(before, unseen_since_s=since_s))


def by_end(before: AlertState, reason: str) -> AlertStep:
    """The job or the rule is no more."""
    kind: AlertEventKind = "resolved" if before.phase == "firing" else "cleared"
    return AlertStep(None, (Transition(kind, before.detail, reason),))


def _count_window(
    rule: Rule,
    before: AlertState | None,
    fresh: AlertState,
    reading: SubjectReading,
    at: ObservedWindow,
) -> AlertStep:
    """Count one more window in a row, and update the details; without `before` it is the first."""
    if before is None:
        num_windows, held_s, began_at_s = 0, 0.0, at.now_s
        since: tuple[int | None, float | None] = at.first_step, at.first_at_s
    else:
        num_windows, held_s, began_at_s = before.num_windows, before.held_s, before.began_at_s
        since = before.detail.since_step, before.detail.since_at_s
    state = replace(
        fresh,
        began_at_s=began_at_s,
        epoch=at.epoch,
        window_id=at.window_id,
        num_windows=num_windows + 1,
        held_s=held_s + at.took_s,
        detail=detail_since(reading, *since),
    )
    is_due = state.num_windows >= rule.for_windows and state.held_s >= rule.for_s
    if is_due and not reading.is_over:
        return fire(state, at.now_s)
    return AlertStep(state, () if before else (Transition("pending", state.detail),))


def detail_since(reading: SubjectReading, step: int | None, at_s: float | None) -> Detail:
    """The details, with this step and its time if they have no first step."""
    if reading.detail.since_step is not None:
        return reading.detail
    return structs.replace(reading.detail, since_step=step, since_at_s=at_s)


def _firing(
    rule: Rule,
    before: AlertState,
    fresh: AlertState,
    reading: SubjectReading,
    where: ThresholdSide,
    at: ObservedWindow,
) -> AlertStep:
    """An alert that fires is what it was when it began to, but for its figures and culprits.

    Its other labels stay: receivers know it by them.
    """
    is_new_run = before.epoch != at.epoch
    state = replace(before, epoch=at.epoch, window_id=at.window_id)
    state = replace(state, is_no_data=False, unseen_since_s=None)
    if reading.value is not None:
        since_step, since_at_s = before.detail.since_step, before.detail.since_at_s
        detail = structs.replace(reading.detail, since_step=since_step, since_at_s=since_at_s)
        state = replace(state, detail=detail, labels=with_culprits(before.labels, fresh.labels))
    back = (Transition("data-again", state.detail),) if before.is_no_data else ()
    if where == "over":
        num_windows, held_s = (0, 0.0) if is_new_run else (before.num_windows, before.held_s)
        state = replace(state, num_windows=num_windows + 1, held_s=held_s + at.took_s)
        return AlertStep(replace(state, below_s=0.0), back)
    if where in ("unsure", "ended"):
        # The loss is the same; only its cause has become uncertain.
        return AlertStep(replace(state, num_windows=0, held_s=0.0, below_s=0.0), back)
    below_s = 0.0 if is_new_run else before.below_s
    below_s += at.took_s if where == "under" else BETWEEN_WEIGHT * at.took_s
    if below_s >= rule.keep_firing_s and (where == "under" or rule.keep_firing_s > 0):
        return AlertStep(None, (*back, Transition("resolved", _detail_at_end(reading, before, at))))
    step, at_s = _well_since(before, at)
    detail = structs.replace(state.detail, well_since_step=step, well_since_at_s=at_s)
    state = replace(state, detail=detail, num_windows=0, held_s=0.0, below_s=below_s)
    return AlertStep(state, back)


def _well_since(before: AlertState, at: ObservedWindow) -> tuple[int, float | None]:
    """The first step that is well again, in this window or one before it, and its Unix time.

    It is that after the end of the cause, where that is known: the window may have ended later.
    """
    detail, blame = before.detail, before.detail.blame
    if before.epoch != at.epoch:
        return at.first_step, at.first_at_s
    if detail.well_since_step is not None:
        return detail.well_since_step, detail.well_since_at_s
    if blame is not None and blame.end_step is not None and blame.end_step < at.first_step:
        return blame.end_step + 1, blame.end_at_s
    return at.first_step, at.first_at_s


def _detail_at_end(reading: SubjectReading, before: AlertState, at: ObservedWindow) -> Detail:
    """Details at the end, without those of the time before."""
    step, at_s = _well_since(before, at)
    return structs.replace(
        reading.detail,
        on=before.detail.on,
        since_step=step,
        since_at_s=at_s,
        window_id=at.window_id,
    )


def fire(state: AlertState, now_s: float) -> AlertStep:
    """It has held for long enough."""
    state = replace(state, phase="firing", firing_at_s=now_s)
    return AlertStep(state, (Transition("firing", state.detail),))


def by_clock(
    rule: Rule, before: AlertState | None, fresh: AlertState, *, holds: bool, now_s: float
) -> AlertStep:
    """The alert of a rule without figures, that holds or not at this moment (Unix seconds)."""
    if before is not None and before.phase == "firing":
        return _firing_by_clock(rule, before, fresh, holds=holds, now_s=now_s)
    if not holds:
        return AlertStep(None, (Transition("cleared", before.detail),) if before else ())
    state = replace(fresh, began_at_s=before.began_at_s if before else now_s)
    held_s = max(0.0, now_s - state.began_at_s)
    if held_s >= rule.for_s:
        return fire(replace(state, held_s=held_s), now_s)
    return AlertStep(state, () if before else (Transition("pending", state.detail),))


def _firing_by_clock(
    rule: Rule, before: AlertState, fresh: AlertState, *, holds: bool, now_s: float
) -> AlertStep:
    if holds:
        return AlertStep(replace(before, detail=fresh.detail, ceased_s=None))
    ceased_s = now_s if before.ceased_s is None else before.ceased_s
    if now_s - ceased_s >= rule.keep_firing_s:
        return AlertStep(None, (Transition("resolved", before.detail),))
    return AlertStep(replace(before, ceased_s=ceased_s))
