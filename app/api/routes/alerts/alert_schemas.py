"""Schemas of alerts and their transitions."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import Path
from pydantic import Field

from app.alerts.alert import (
    AlertEvent,
    AlertEventKind,
    AlertState,
    Blame,
    Detail,
    Phase,
    SuggestedFix,
)
from app.alerts.rule import On, Severity
from app.alerts.wording import alert_sentence, cost_sentence
from app.api.http.fields import ResponseModel, timestamp, timestamp_or_none
from app.trace.job import job_of

FINGERPRINT_PATTERN = "^[0-9a-f]{16}$"
Fingerprint = Annotated[
    str,
    Path(
        pattern=FINGERPRINT_PATTERN,
        description="The alert's fingerprint: 16 hexadecimal digits.",
        examples=["9f86d081884c7d65"],
    ),
]


class AlertCulpritOut(ResponseModel):
    """A culprit; fields that do not apply are null."""

    dp_rank: int | None = None
    stage: int | None = None
    host: str | None = None
    rank: int | None = Field(None, description="Global rank.")
    local_rank: int | None = Field(None, description="Index of the GPU on its host.")


class AlertFindingOut(ResponseModel):
    """The job's costliest cause, from the diagnosis."""

    cause: str
    sentence: str
    cost: float | None = Field(
        description="Share of the job's GPU time that the cause costs, from 0 to 1."
    )
    confidence: float
    culprits: list[AlertCulpritOut]
    num_culprits: int

    @classmethod
    def of(cls, blame: Blame) -> "AlertFindingOut":
        """From the stored finding."""
        known = AlertCulpritOut.model_fields
        culprits = [
            AlertCulpritOut(**{name: each[name] for name in known if name in each})
            for each in blame.culprits
        ]
        names = [name for name in cls.model_fields if name != "culprits"]
        return cls(culprits=culprits, **{name: getattr(blame, name) for name in names})


class SuggestedFixOut(ResponseModel):
    """The fix of the costliest cause that wins most, as `advice` of the window has it."""

    name: str = Field(examples=["replace-worker"])
    title: str
    speed_up: float = Field(description="Predicted: simulated step time before by after the fix.")
    gpu_hours_per_day: float = Field(description="GPU-hours a day that the fix wins, predicted.")
    command: str | None = Field(description="One line to paste; null where there is none.")
    command_label: str | None = Field(description="The tool that takes the command.")

    @classmethod
    def of(cls, fix: SuggestedFix) -> "SuggestedFixOut":
        """From the stored fix."""
        return cls(**{name: getattr(fix, name) for name in cls.model_fields})


class AlertFiguresOut(ResponseModel):
    """Figures of an alert's subject; unknown ones are null."""

    on: On | None = Field(description="What the rule evaluates (docs/alerts.md).")
    window_id: str | None = Field(description="The last window evaluated for the alert.")
    value: float | None = Field(
        description="Value of the rule's figure, in its unit (docs/alerts.md)."
    )
    slowdown: float | None
    gpu_time_wasted: float | None
    gpu_hours_lost_per_hour: float | None
    num_gpus: int | None
    since_step: int | None
    blame: AlertFindingOut | None
    fix: SuggestedFixOut | None
    names: list[str] = Field(
        description="The first few silent workers, for a rule on `silent-worker`."
    )
    num_named: int = Field(description="Total number of silent workers.")


def alert_figures(detail: Detail) -> dict[str, Any]:
    """The fields of `AlertFiguresOut`."""
    made = {
        "blame": None if detail.blame is None else AlertFindingOut.of(detail.blame),
        "fix": None if detail.fix is None else SuggestedFixOut.of(detail.fix),
        "names": list(detail.names),
    }
    names = [name for name in AlertFiguresOut.model_fields if name not in made]
    return made | {name: getattr(detail, name) for name in names}


class AlertOut(AlertFiguresOut):
    """One transition of an alert; immutable."""

    event_id: int
    fingerprint: str = Field(
        description="The alert's fingerprint; the same after restarts of the job."
    )
    job_id: str
    rule: str
    subject: str = Field(
        description="The cause, worker, host or operation type that the alert "
        "is about; empty for the whole job."
    )
    kind: AlertEventKind
    severity: Severity
    at: datetime
    threshold: float | None
    sentence: str
    actor: str | None = Field(
        description="Name of the token, if the transition was made by request; otherwise null."
    )
    reason: str | None

    @classmethod
    def of(cls, event: AlertEvent) -> "AlertOut":
        """From the stored transition."""
        made = {
            "at": timestamp(event.at_s),
            "job_id": job_of(event.job_id),
            **alert_figures(event.detail),
        }
        names = [name for name in cls.model_fields if name not in made]
        return cls(**made, **{name: getattr(event, name) for name in names})


class ActiveAlertOut(AlertFiguresOut):
    """A pending or firing alert."""

    fingerprint: str
    job_id: str
    rule: str
    subject: str = Field(
        description="The cause, worker, host or operation type that the alert "
        "is about; empty for the whole job."
    )
    phase: Phase
    severity: Severity
    sentence: str
    sub: str = Field(
        description="Second sentence: cost per hour and confidence of the cause; may be empty."
    )
    began_at: datetime = Field(description="Time at which the rule's condition began to hold.")
    firing_at: datetime | None
    threshold: float | None
    labels: dict[str, str] = Field(
        description="Labels of the alert, for matchers of silences and receivers."
    )
    runbook_url: str | None
    is_no_data: bool = Field(description="No recent data: the figures are the last known ones.")
    acknowledged_at: datetime | None
    acknowledged_by: str | None
    silenced_by: list[str] = Field(description="Ids of the active silences that match the alert.")
    inhibited_by: list[str] = Field(description="Fingerprints of the alerts that inhibit it.")


def active_alert_out(
    state: AlertState,
    *,
    silenced_by: list[str],
    inhibited_by: list[str],
) -> ActiveAlertOut:
    """The alert for an answer."""
    made = {
        "job_id": job_of(state.job_id),
        "sentence": alert_sentence(state),
        "sub": cost_sentence(state.detail),
        "labels": dict(state.labels),
        "began_at": timestamp(state.began_at_s),
        "firing_at": timestamp_or_none(state.firing_at_s),
        "acknowledged_at": timestamp_or_none(state.acked_at_s),
        "acknowledged_by": state.acked_by,
        "silenced_by": silenced_by,
        "inhibited_by": inhibited_by,
        **alert_figures(state.detail),
    }
    names = [name for name in ActiveAlertOut.model_fields if name not in made]
    return ActiveAlertOut(**made, **{name: getattr(state, name) for name in names})
