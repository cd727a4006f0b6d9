"""How an alert without a figure goes on with time: a silence holds, or it does not."""

from dataclasses import replace

from app.alerts.alert import AlertState
from app.alerts.machine import Happened, Step, fired
from app.alerts.rule import Rule


def by_clock(
    rule: Rule, before: AlertState | None, fresh: AlertState, *, holds: bool, now_s: float
) -> Step:
    """The alert of a rule without figures, that holds or not at this moment (Unix seconds)."""
    if before is None:
        if not holds:
            return Step(None)
        state = replace(fresh, began_at_s=now_s)
        return _waiting(rule, state, now_s) or Step(state, (Happened("pending", state.detail),))
    if before.phase == "firing":
        return _firing_by_clock(rule, before, fresh, holds=holds, now_s=now_s)
    if not holds:
        return Step(None, (Happened("cleared", before.detail),))
    state = replace(fresh, began_at_s=before.began_at_s)
    return _waiting(rule, state, now_s) or Step(state)


def _firing_by_clock(
    rule: Rule, before: AlertState, fresh: AlertState, *, holds: bool, now_s: float
) -> Step:
    if holds:
        return Step(replace(before, detail=fresh.detail, ceased_s=None))
    ceased_s = now_s if before.ceased_s is None else before.ceased_s
    if now_s - ceased_s >= rule.keep_firing_s:
        return Step(None, (Happened("resolved", before.detail),))
    return Step(replace(before, ceased_s=ceased_s))


def _waiting(rule: Rule, state: AlertState, now_s: float) -> Step | None:
    """The alert that has held long enough by the clock; None as long as it has not."""
    held_s = max(0.0, now_s - state.began_at_s)
    return fired(replace(state, held_s=held_s), now_s) if held_s >= rule.for_s else None
