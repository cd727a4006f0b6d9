"""Schemas of alerts and their transitions."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import Path
from pydantic import Field

from app.alerts.alert import AlertEvent, AlertEventKind, AlertState, Blame, Detail, Phase
from app.alerts.rule import On, Severity
from app.alerts.wording import alert_sentence, cost_sentence
from app.api.http.fields import ResponseModel, timestamp, timestamp_or_none
from app.trace.job import job_of

FINGERPRINT_PATTERN = "^[0-9a-f]{16}$"
Fingerprint = Annotated[
    str,
    Path(pattern=FINGERPRINT_PATTERN, description="The alert's.", examples=["9f86d081884c7d65"]),
]


class AlertCulpritOut(ResponseModel):
    """A culprit, with the fields that apply."""

    dp_rank: int | None = None
    stage: int | None = None
    host: str | None = None
    rank: int | None = Field(None, description="Global.")
    local_rank: int | None = Field(None, description="Number of the GPU on its host.")


class AlertFindingOut(ResponseModel):
    """The job's costliest cause, from the diagnosis."""

    cause: str
    sentence: str
    cost: float | None = Field(description="Share of the job's GPU time.")
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


class AlertFiguresOut(ResponseModel):
    """Figures of an alert's subject."""

    on: On | None = Field(description="What the rule looks at.")
    window_id: str | None = Field(description="The last window that counted.")
    value: float | None = Field(description="Of that, in its unit: docs/alerts.md.")
    slowdown: float | None
    gpu_time_wasted: float | None
    gpu_hours_lost_per_hour: float | None
    num_gpus: int | None
    since_step: int | None
    blame: AlertFindingOut | None
    names: list[str] = Field(description="Silent workers, the first few.")
    num_named: int = Field(description="How many there are.")


def alert_figures(detail: Detail) -> dict[str, Any]:
    """The fields of `AlertFiguresOut`."""
    made = {
        "blame": None if detail.blame is None else AlertFindingOut.of(detail.blame),
        "names": list(detail.names),
    }
    names = [name for name in AlertFiguresOut.model_fields if name not in made]
    return made | {name: getattr(detail, name) for name in names}


class AlertOut(AlertFiguresOut):
    """One transition of an alert; never changed."""

    event_id: int
    fingerprint: str = Field(description="The alert's; the same over restarts of the job.")
    job_id: str
    rule: str
    subject: str = Field(description="Which cause, worker or host; empty for the whole job.")
    kind: AlertEventKind
    severity: Severity
    at: datetime
    threshold: float | None
    sentence: str
    actor: str | None = Field(description="Who did it, where a person did.")
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
    subject: str = Field(description="Which cause, worker or host; empty for the whole job.")
    phase: Phase
    severity: Severity
    sentence: str
    sub: str = Field(description="What it costs an hour, and how sure the cause is; may be empty.")
    began_at: datetime = Field(description="When its condition began to hold.")
    firing_at: datetime | None
    threshold: float | None
    labels: dict[str, str] = Field(description="Labels that silences and receivers match.")
    runbook_url: str | None
    is_no_data: bool = Field(description="Nothing new is known: the figures are of before.")
    acknowledged_at: datetime | None
    acknowledged_by: str | None
    silenced_by: list[str] = Field(description="Ids of the silences that match it now.")
    inhibited_by: list[str] = Field(description="Fingerprints of alerts that speak for it.")


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
