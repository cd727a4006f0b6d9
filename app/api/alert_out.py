"""Alerts and their transitions as the API says them."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import Path
from pydantic import Field

from app.alerts.alert import AlertEvent, AlertState, Blame, Detail, Kind, Phase
from app.alerts.rule import On, Severity
from app.alerts.second_sentence import sub
from app.alerts.wording import sentence
from app.api.fields import Answer, timestamp, timestamp_or_none
from app.trace.names import plain

FINGERPRINT_PATTERN = "^[0-9a-f]{16}$"
Fingerprint = Annotated[
    str,
    Path(pattern=FINGERPRINT_PATTERN, description="The alert's.", examples=["9f86d081884c7d65"]),
]


class BlamedOut(Answer):
    """Somebody to blame, with the fields that apply."""

    dp_rank: int | None = None
    stage: int | None = None
    host: str | None = None
    rank: int | None = Field(None, description="Global.")
    local_rank: int | None = Field(None, description="Number of the GPU on its host.")


class BlameOut(Answer):
    """What costs the job most, as the diagnosis found it."""

    cause: str
    sentence: str
    cost: float | None = Field(description="Share of the job's GPU time.")
    confidence: float
    culprits: list[BlamedOut]
    num_culprits: int

    @classmethod
    def of(cls, blame: Blame) -> "BlameOut":
        """The finding as the API says it."""
        known = BlamedOut.model_fields
        culprits = [
            BlamedOut(**{name: each[name] for name in known if name in each})
            for each in blame.culprits
        ]
        names = [name for name in cls.model_fields if name != "culprits"]
        return cls(culprits=culprits, **{name: getattr(blame, name) for name in names})


class FiguresOut(Answer):
    """What is known of what an alert is about."""

    on: On | None = Field(description="What the rule looks at.")
    window_id: str | None = Field(description="The last window that counted.")
    value: float | None = Field(description="Of that, in its unit: docs/alerts.md.")
    slowdown: float | None
    gpu_time_wasted: float | None
    gpu_hours_lost_per_hour: float | None
    num_gpus: int | None
    since_step: int | None
    blame: BlameOut | None
    names: list[str] = Field(description="Silent workers, the first few.")
    num_named: int = Field(description="How many there are.")


def figures(detail: Detail) -> dict[str, Any]:
    """The fields of `FiguresOut`."""
    made = {
        "blame": None if detail.blame is None else BlameOut.of(detail.blame),
        "names": list(detail.names),
    }
    names = [name for name in FiguresOut.model_fields if name not in made]
    return made | {name: getattr(detail, name) for name in names}


class AlertOut(FiguresOut):
    """One transition of an alert; never changed once it is written."""

    event_id: int
    fingerprint: str = Field(description="The alert's; the same over restarts of the job.")
    job_id: str
    rule: str
    subject: str = Field(description="Which cause, worker or host; empty for the whole job.")
    kind: Kind
    severity: Severity
    at: datetime
    threshold: float | None
    sentence: str
    actor: str | None = Field(description="Who did it, where a person did.")
    reason: str | None

    @classmethod
    def of(cls, event: AlertEvent) -> "AlertOut":
        """The transition as the API says it."""
        made = {
            "at": timestamp(event.at_s),
            "job_id": plain(event.job_id),
            **figures(event.detail),
        }
        names = [name for name in cls.model_fields if name not in made]
        return cls(**made, **{name: getattr(event, name) for name in names})


class ActiveAlertOut(FiguresOut):
    """An alert that is pending or fires now."""

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
    labels: dict[str, str] = Field(description="What matchers of silences and endpoints go by.")
    runbook_url: str | None
    is_no_data: bool = Field(description="Nothing new is known: the figures are of before.")
    acknowledged_at: datetime | None
    acknowledged_by: str | None
    silenced_by: list[str] = Field(description="Ids of the silences that match it now.")
    inhibited_by: list[str] = Field(description="Fingerprints of alerts that speak for it.")


def active(
    state: AlertState,
    *,
    silenced_by: list[str],
    inhibited_by: list[str],
) -> ActiveAlertOut:
    """The alert as the API says it."""
    made = {
        "job_id": plain(state.job_id),
        "sentence": sentence(state),
        "sub": sub(state.detail),
        "labels": dict(state.labels),
        "began_at": timestamp(state.began_at_s),
        "firing_at": timestamp_or_none(state.firing_at_s),
        "acknowledged_at": timestamp_or_none(state.acked_at_s),
        "acknowledged_by": state.acked_by,
        "silenced_by": silenced_by,
        "inhibited_by": inhibited_by,
        **figures(state.detail),
    }
    names = [name for name in ActiveAlertOut.model_fields if name not in made]
    return ActiveAlertOut(**made, **{name: getattr(state, name) for name in names})
