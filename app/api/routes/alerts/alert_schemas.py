"""Schemas of alerts and their transitions."""

from datetime import datetime
from typing import Annotated

from fastapi import Path
from pydantic import ConfigDict, Field

from app.alerts.alert import (
    AlertEvent,
    AlertEventKind,
    AlertState,
    Phase,
)
from app.alerts.notice import builtin_runbook
from app.alerts.rule import On, Severity
from app.alerts.wording import alert_sentence, cost_sentence
from app.api.http.fields import (
    AsOfField,
    BehindField,
    CulpritOut,
    RequestModel,
    ResponseModel,
    UnixTime,
    timestamp,
    timestamp_or_none,
)
from app.store.alerting.alerts import MAX_REASON
from app.store.as_of import AsOf
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


class AlertFindingOut(ResponseModel):
    """The job's costliest cause, from the diagnosis."""

    cause: str
    sentence: str
    cost: float | None = Field(
        description="Share of the job's GPU time that the cause costs, from 0 to 1."
    )
    confidence: float
    culprits: list[CulpritOut]
    num_culprits: int


class SuggestedFixOut(ResponseModel):
    """The fix of the costliest cause that wins most, as `advice` of the window has it."""

    name: str = Field(examples=["replace-worker"])
    title: str
    speed_up: float = Field(description="Predicted: simulated step time before by after the fix.")
    gpu_hours_per_day: float = Field(description="GPU-hours a day that the fix wins, predicted.")
    command: str | None = Field(description="One line to paste; null where there is none.")
    command_label: str | None = Field(description="The tool that takes the command.")


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
    since_at: UnixTime | None = Field(
        validation_alias="since_at_s",
        description="When `since_step` started; null where not known.",
    )
    blame: AlertFindingOut | None
    fix: SuggestedFixOut | None
    names: list[str] = Field(
        description="The first few silent workers, for a rule on `silent-worker`."
    )
    num_named: int = Field(description="Total number of silent workers.")
    ended: str | None = Field(description="What ended the job, for a rule on `crashed`.")


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
    reason: str | None = Field(
        description="More than the kind says: why it was resolved, the name of the assignee, "
        "or the text of a note."
    )

    @classmethod
    def of(cls, event: AlertEvent) -> "AlertOut":
        """From the stored transition."""
        made = {
            "at": timestamp(event.at_s),
            "job_id": job_of(event.job_id),
            **dict(AlertFiguresOut.model_validate(event.detail)),
        }
        names = [name for name in cls.model_fields if name not in made]
        return cls(**made, **{name: getattr(event, name) for name in names})


# A person's name, and free text on one line, of which at least one character is not a space.
_ONE_LINE = r"^[^\x00-\x1f\x7f]*[^\s\x00-\x1f\x7f][^\x00-\x1f\x7f]*$"


class AssigneeIn(RequestModel):
    """Who is to work on an alert."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"to": "Maria"}]})

    to: str = Field(
        min_length=1,
        max_length=128,
        pattern=_ONE_LINE,
        description="Name of the person or team, on one line.",
    )


class NoteIn(RequestModel):
    """A note on an alert."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"text": "GPU 5 of host-043 throttles: ticket OPS-17"}]}
    )

    text: str = Field(
        min_length=1,
        max_length=MAX_REASON,
        pattern=_ONE_LINE,
        description="Free text on one line.",
    )


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
    runbook_url: str | None = Field(
        description="What to check and do: the rule's, or the path of the documentation's chapter."
    )
    as_of: AsOfField
    behind_s: BehindField
    is_state_unknown: bool = Field(
        description="Whether it still fires is not known: later data is not processed yet. It is "
        "neither resolved nor repeated until then."
    )
    is_no_data: bool = Field(description="No recent data: the figures are the last known ones.")
    acknowledged_at: datetime | None
    acknowledged_by: str | None
    assigned_to: str | None = Field(description="Name of the person who works on the alert.")
    assigned_at: datetime | None
    assigned_by: str | None = Field(description="Name of the token that assigned it.")
    note: str | None = Field(description="The last note; all of them are in the history.")
    noted_at: datetime | None
    noted_by: str | None
    silenced_by: list[str] = Field(description="Ids of the active silences that match the alert.")
    inhibited_by: list[str] = Field(description="Fingerprints of the alerts that inhibit it.")


def active_alert_out(
    state: AlertState,
    progress: AsOf,
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
        "assigned_at": timestamp_or_none(state.assigned_at_s),
        "noted_at": timestamp_or_none(state.noted_at_s),
        "as_of": timestamp_or_none(progress.at_s),
        "behind_s": progress.behind_s,
        "is_state_unknown": progress.is_behind,
        "runbook_url": state.runbook_url or builtin_runbook(state.detail),
        "silenced_by": silenced_by,
        "inhibited_by": inhibited_by,
        **dict(AlertFiguresOut.model_validate(state.detail)),
    }
    names = [name for name in ActiveAlertOut.model_fields if name not in made]
    return ActiveAlertOut(**made, **{name: getattr(state, name) for name in names})
