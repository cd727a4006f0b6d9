"""What a step of an alert is, written down: its next state and an event for each transition."""

from dataclasses import replace

from app.alerts.alert import AlertEvent, AlertState
from app.alerts.changes import Change
from app.alerts.machine import Happened, Step
from app.alerts.wording import sentence


def change_of(before: AlertState | None, step: Step, now_s: float) -> Change | None:
    """The change from `before` to after the step; None where there is none to be saved."""
    known = step.state or before
    if known is None or (step.state == before and not step.happened):
        return None
    events = tuple(_event(known, happened, now_s) for happened in step.happened)
    return Change(known.fingerprint, known.rule, step.state, events)


def _event(state: AlertState, happened: Happened, now_s: float) -> AlertEvent:
    kind, detail, reason = happened
    return AlertEvent(
        fingerprint=state.fingerprint,
        job_id=state.job_id,
        rule=state.rule,
        subject=state.subject,
        kind=kind,
        at_s=now_s,
        severity=state.severity,
        sentence=sentence(replace(state, detail=detail), kind, reason),
        threshold=state.threshold,
        detail=detail,
        reason=reason,
    )
