"""An alert's state, its transitions and its details: plain data."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from app.alerts.rule import On, Severity
from app.result.finding import Culprit
from app.result.record import Record

Phase = Literal["pending", "firing"]
# "cleared" ends a pending alert, "resolved" a firing one. People acknowledge, assign, write notes.
AlertEventKind = Literal[
    "pending",
    "cleared",
    "firing",
    "resolved",
    "no-data",
    "data-again",
    "acknowledged",
    "unacknowledged",
    "assigned",
    "unassigned",
    "note",
]


def fingerprint(job_id: str, rule: str, subject: str) -> str:
    """The alert's identity: the same over restarts of the job and of Paceline.

    `job_id` is the key, "project/job".
    """
    text = "\0".join((job_id, rule, subject)).encode()
    return hashlib.sha256(text).hexdigest()[:16]


class Blame(Record, frozen=True):
    """A finding of the diagnosis in short.

    `cost` is a share of the job's GPU time, None if unknown; `since_step` is the finding's onset,
    `end_step` its end, None while it lasts; `since_at_s` and `end_at_s` are their Unix times.
    `fact` is the sentence without onset and cost; "" where the finding has no parts.
    """

    cause: str
    sentence: str
    cost: float | None
    confidence: float
    culprits: tuple[Culprit, ...] = ()
    num_culprits: int = 0
    since_step: int | None = None
    end_step: int | None = None
    fact: str = ""
    since_at_s: float | None = None
    end_at_s: float | None = None


class SuggestedFix(Record, frozen=True):
    """The fix of the finding that wins most, in short.

    `speed_up` is predicted, T / T_new; `gpu_hours_per_day` is what that wins, with its lower and
    upper bound. `command` is one line to paste, None where there is none, and `command_label` says
    for which tool.
    """

    name: str
    title: str
    speed_up: float
    gpu_hours_per_day: float
    command: str | None = None
    command_label: str | None = None
    gpu_hours_per_day_range: tuple[float, ...] = ()


class Detail(Record, frozen=True):
    """Figures of an alert; None is unknown.

    `value` is the figure that the rule is `on`, in its unit. `since_step` is the finding's onset,
    else the first step of the first window that counted; of a resolved alert, the first step that
    was well again. `since_at_s` is the Unix time at which that step started. While an alert fires
    and its last windows were under the threshold, `well_since_step` is the first of these steps.
    `gpu_hours_lost_per_hour` is the cost of the alert's subject.
    """

    on: On | None = None  # None: older than rules
    value: float | None = None
    slowdown: float | None = None
    gpu_time_wasted: float | None = None
    gpu_hours_lost_per_hour: float | None = None
    num_gpus: int | None = None
    since_step: int | None = None
    since_at_s: float | None = None
    well_since_step: int | None = None
    well_since_at_s: float | None = None
    window_id: str | None = None
    blame: Blame | None = None
    fix: SuggestedFix | None = None
    # Of rules on the whole job: the loss that no cause explains, and facts without a cause, in
    # words; None where they are small.
    unexplained: str | None = None
    # Silent workers, by name ("dp 3, stage 1 on host-7"), the first few; and how many there are.
    # Of a rule with more subjects than it may have alerts, how many more are over its threshold.
    names: tuple[str, ...] = ()
    num_named: int = 0
    ended: str | None = None  # what ended a crashed job, without a full stop


@dataclass(frozen=True, slots=True)
class AlertState:
    """A pending or firing alert; one row of the store.

    `num_windows` windows of run `epoch` in a row held, which took `held_s`; since then windows of
    `below_s` did not; a rule by the clock ceased to hold at `ceased_s`. `window_id` is the last one
    that counted, and `unseen_since_s` when the first closed after it that did not. `note` is the
    last one that was written. Moments are Unix seconds.
    """

    fingerprint: str
    job_id: str
    rule: str
    subject: str
    phase: Phase
    severity: Severity
    began_at_s: float
    firing_at_s: float | None = None
    epoch: int | None = None
    window_id: str | None = None
    num_windows: int = 0
    held_s: float = 0.0
    below_s: float = 0.0
    ceased_s: float | None = None
    unseen_since_s: float | None = None
    is_no_data: bool = False
    threshold: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    runbook_url: str | None = None
    detail: Detail = field(default_factory=Detail)
    acked_at_s: float | None = None
    acked_by: str | None = None
    assigned_to: str | None = None
    assigned_at_s: float | None = None
    assigned_by: str | None = None
    note: str | None = None
    noted_at_s: float | None = None
    noted_by: str | None = None


@dataclass(frozen=True, slots=True)
class AlertEvent:
    """One transition, immutable once written; `event_id` is None before that.

    `actor` is the person who did it, if any; `reason` says more than the kind, such as that the job
    has ended, to whom the alert was assigned, or the text of a note.
    """

    fingerprint: str
    job_id: str
    rule: str
    subject: str
    kind: AlertEventKind
    at_s: float
    severity: Severity
    sentence: str
    threshold: float | None = None
    detail: Detail = field(default_factory=Detail)
    actor: str | None = None
    reason: str | None = None
    event_id: int | None = None

    @classmethod
    def of_state(
        cls,
        state: AlertState,
        kind: AlertEventKind,
        at_s: float,
        sentence: str,
        reason: str | None = None,
        actor: str | None = None,
    ) -> "AlertEvent":
        """An event of an alert in this state."""
        same = ("fingerprint", "job_id", "rule", "subject", "severity", "threshold", "detail")
        known = {name: getattr(state, name) for name in same}
        return cls(kind=kind, at_s=at_s, sentence=sentence, reason=reason, actor=actor, **known)
