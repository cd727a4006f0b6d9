"""Schemas of alerts and their transitions."""

from typing import Annotated

from fastapi import Path
from pydantic import ConfigDict, Field

from app.alerts.alert import AlertEventKind, Phase
from app.alerts.rule import On, Severity
from app.api.http.fields import (
    AsOfField,
    BehindField,
    CulpritOut,
    JobName,
    RequestModel,
    ResponseModel,
    UnixTime,
)
from app.store.alerting.alerts import MAX_REASON

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
    gpu_hours_per_day_range: list[float] = Field(
        description="Lower and upper bound of `gpu_hours_per_day`; empty where not known."
    )


class AlertFiguresOut(ResponseModel):
    """An alert, and the figures of its subject; unknown ones are null."""

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
    fingerprint: str = Field(
        description="The alert's fingerprint; the same after restarts of the job."
    )
    job_id: JobName
    rule: str
    subject: str = Field(
        description="The cause, worker, host or operation type that the alert "
        "is about; empty for the whole job."
    )
    severity: Severity
    sentence: str
    threshold: float | None


class AlertOut(AlertFiguresOut):
    """One transition of an alert; immutable."""

    event_id: int
    kind: AlertEventKind
    at: UnixTime = Field(validation_alias="at_s")
    actor: str | None = Field(
        description="Name of the token, if the transition was made by request; otherwise null."
    )
    reason: str | None = Field(
        description="More than the kind says: why it was resolved, the name of the assignee, "
        "or the text of a note."
    )


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
        min_length=1, max_length=MAX_REASON, pattern=_ONE_LINE, description="Free text on one line."
    )


class ActiveAlertOut(AlertFiguresOut):
    """A pending or firing alert."""

    phase: Phase
    sub: str = Field(
        description="Second sentence: cost per hour and confidence of the cause; may be empty."
    )
    began_at: UnixTime = Field(
        validation_alias="began_at_s",
        description="Time at which the rule's condition began to hold.",
    )
    firing_at: UnixTime | None = Field(validation_alias="firing_at_s")
    labels: dict[str, str] = Field(
        description="Labels of the alert, for matchers of silences and receivers."
    )
    runbook_url: str | None = Field(
        description="What to check and do: the rule's, or the path of the documentation's chapter."
    )
    as_of: AsOfField
    behind_s: BehindField
    is_state_unknown: bool = Field(
        validation_alias="is_behind",
        description="Whether it still fires is not known: later data is not processed yet. It is "
        "neither resolved nor repeated until then.",
    )
    is_no_data: bool = Field(description="No recent data: the figures are the last known ones.")
    acknowledged_at: UnixTime | None = Field(validation_alias="acked_at_s")
    acknowledged_by: str | None = Field(validation_alias="acked_by")
    assigned_to: str | None = Field(description="Name of the person who works on the alert.")
    assigned_at: UnixTime | None = Field(validation_alias="assigned_at_s")
    assigned_by: str | None = Field(description="Name of the token that assigned it.")
    note: str | None = Field(description="The last note; all of them are in the history.")
    noted_at: UnixTime | None = Field(validation_alias="noted_at_s")
    noted_by: str | None
    silenced_by: list[str] = Field(description="Ids of the active silences that match the alert.")
    inhibited_by: list[str] = Field(description="Fingerprints of the alerts that inhibit it.")
