"""pending, firing, resolved: how one alert goes on with the next window, and with time.

Figures count by event time, the seconds that the windows' steps took, so that stored history gives
the alerts that live data gave. What has no figure, a silence, counts by the clock: clockwork.py.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from app.alerts.alert import AlertState, Detail, Kind
from app.alerts.labels import with_culprits
from app.alerts.look import Look, Moment, Side, side
from app.alerts.rule import Rule

RESTARTED = "the job began anew"
# Seconds for which windows may close without figures, too far from the record or with a worker's
# part missing, before what was known of an alert is too old to be told again.
UNSEEN_AFTER_S = 600.0
# Between both thresholds, time counts so much towards resolving: a noisy job at rest may stay just
# above the one that clears for ever.
BETWEEN_COUNTS = 0.5


class Happened(NamedTuple):
    """A transition, with what was known then and, where the kind does not say it all, why."""

    kind: Kind
    detail: Detail
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """What one look did: the next state, None at rest, and the transitions on the way there."""

    state: AlertState | None
    happened: tuple[Happened, ...] = ()


def by_window(
    rule: Rule, before: AlertState | None, fresh: AlertState, look: Look, at: Moment
) -> Step:
    """The alert after a complete window; `fresh` is what it would begin as.

    The window must be a later one than the last that counted.
    """
    where = side(rule, look)
    if before is None:
        return _begun(rule, fresh, look, at) if where == "over" else Step(None)
    if before.phase == "firing":
        return _firing(rule, before, fresh, look, where, at)
    if before.epoch != at.epoch:
        # Windows before and after a restart are not in a row.
        again = by_window(rule, None, fresh, look, at)
        cleared = Happened("cleared", before.detail, RESTARTED)
        return Step(again.state, (cleared, *again.happened))
    if where in ("unsure", "between") and look.is_found:
        return Step(replace(before, window_id=at.window_id))
    if where != "over":
        return Step(None, (Happened("cleared", _now(look, before, at)),))
    return _counted(rule, before, fresh, look, at)


def without_data(before: AlertState) -> Step:
    """No figures come of the job any more: what is known of it is of before."""
    if before.phase != "firing" or before.is_no_data:
        return Step(before)
    return Step(replace(before, is_no_data=True), (Happened("no-data", before.detail),))


def unseen(before: AlertState, now_s: float) -> Step:
    """A window has closed that does not tell; if that lasts, nothing is known of the alert."""
    if before.phase != "firing" or before.is_no_data:
        return Step(before)
    since_s = now_s if before.unseen_since_s is None else min(before.unseen_since_s, now_s)
    if now_s - since_s >= UNSEEN_AFTER_S:
        return without_data(before)
    return Step(replace(before, unseen_since_s=since_s))


def ended(before: AlertState, reason: str) -> Step:
    """The job or the rule is no more."""
    kind: Kind = "resolved" if before.phase == "firing" else "cleared"
    return Step(None, (Happened(kind, before.detail, reason),))


def _begun(rule: Rule, fresh: AlertState, look: Look, at: Moment) -> Step:
    began = replace(
        fresh,
        began_at_s=at.now_s,
        epoch=at.epoch,
        window_id=at.window_id,
        num_windows=1,
        held_s=at.took_s,
        detail=_since(look, at.first_step),
    )
    return _fired_if_due(rule, began, at.now_s) or Step(began, (Happened("pending", began.detail),))


def _counted(rule: Rule, before: AlertState, fresh: AlertState, look: Look, at: Moment) -> Step:
    """One more window in a row; what is known of it may have become better."""
    state = replace(
        fresh,
        began_at_s=before.began_at_s,
        epoch=at.epoch,
        window_id=at.window_id,
        num_windows=before.num_windows + 1,
        held_s=before.held_s + at.took_s,
        detail=_since(look, before.detail.since_step),
    )
    return _fired_if_due(rule, state, at.now_s) or Step(state)


def _since(look: Look, usual_step: int | None) -> Detail:
    """The step that it is told of since, or this one."""
    since_step = look.detail.since_step
    return replace(look.detail, since_step=usual_step if since_step is None else since_step)


def _firing(
    rule: Rule, before: AlertState, fresh: AlertState, look: Look, where: Side, at: Moment
) -> Step:
    """An alert that fires is what it was when it began to, but for its figures and culprits.

    Its other labels stay: receivers know it by them.
    """
    is_new_run = before.epoch != at.epoch
    state = replace(before, epoch=at.epoch, window_id=at.window_id)
    state = replace(state, is_no_data=False, unseen_since_s=None)
    if look.value is not None:
        detail = replace(look.detail, since_step=before.detail.since_step)
        state = replace(state, detail=detail, labels=with_culprits(before.labels, fresh.labels))
    back = (Happened("data-again", state.detail),) if before.is_no_data else ()
    if where == "over":
        num_windows, held_s = (0, 0.0) if is_new_run else (before.num_windows, before.held_s)
        state = replace(state, num_windows=num_windows + 1, held_s=held_s + at.took_s)
        return Step(replace(state, below_s=0.0), back)
    if where == "unsure":
        # As much is lost as before: only who is to blame has become doubtful.
        return Step(replace(state, num_windows=0, held_s=0.0, below_s=0.0), back)
    below_s = (0.0 if is_new_run else before.below_s) + _below_s(where, at)
    if below_s >= rule.keep_firing_s and (where == "under" or rule.keep_firing_s > 0):
        return Step(None, (*back, Happened("resolved", _now(look, before, at))))
    return Step(replace(state, num_windows=0, held_s=0.0, below_s=below_s), back)


def _below_s(where: Side, at: Moment) -> float:
    return at.took_s if where == "under" else BETWEEN_COUNTS * at.took_s


def _now(look: Look, before: AlertState, at: Moment) -> Detail:
    """How it is at the end; what it was before is another story."""
    return replace(
        look.detail, on=before.detail.on, since_step=at.first_step, window_id=at.window_id
    )


def _fired_if_due(rule: Rule, state: AlertState, now_s: float) -> Step | None:
    is_due = state.num_windows >= rule.for_windows and state.held_s >= rule.for_s
    return fired(state, now_s) if is_due else None


def fired(state: AlertState, now_s: float) -> Step:
    """It has held for long enough."""
    state = replace(state, phase="firing", firing_at_s=now_s)
    return Step(state, (Happened("firing", state.detail),))
