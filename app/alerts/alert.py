"""An alert's state, its transitions, and what is known about what it is raised for: plain data."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from app.alerts.rule import On, Severity

Phase = Literal["pending", "firing"]
# "cleared" ends a pending alert, "resolved" a firing one. Acknowledging is a person's doing.
Kind = Literal[
    "pending",
    "cleared",
    "firing",
    "resolved",
    "no-data",
    "data-again",
    "acknowledged",
    "unacknowledged",
]


def fingerprint(job_id: str, rule: str, subject: str) -> str:
    """The alert's identity: the same over restarts of the job and of Paceline.

    `job_id` is the key, "project/job".
    """
    text = "\0".join((job_id, rule, subject)).encode()
    return hashlib.sha256(text).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Blame:
    """What a diagnosis found to cost most: one entry of a result's findings, in short.

    `culprits` have those of dp_rank, stage, host, rank and local_rank (the GPU) that apply; `cost`
    is a share of the job's GPU time, None where it is not known, and `since_step` the finding's own
    onset.
    """

    cause: str
    sentence: str
    cost: float | None
    confidence: float
    culprits: Sequence[Mapping[str, Any]] = ()
    num_culprits: int = 0
    since_step: int | None = None


@dataclass(frozen=True, slots=True)
class Detail:
    """What a message says beside the value; None is not known.

    `value` is what a rule that is `on` it looks at, in its unit. `since_step` is the finding's
    onset where it has one, else the first step of the first window that counted; of an alert that
    has resolved, the first step of the window that resolved it. `gpu_hours_lost_per_hour` is what
    the alert's subject costs.
    """

    on: On | None = None  # None of what is older than rules
    value: float | None = None
    slowdown: float | None = None
    gpu_time_wasted: float | None = None
    gpu_hours_lost_per_hour: float | None = None
    num_gpus: int | None = None
    since_step: int | None = None
    window_id: str | None = None
    blame: Blame | None = None
    # Silent workers, by name ("dp 3, stage 1 on host-7"), the first few; and how many there are.
    # Of a rule with more subjects than it may have alerts, how many more are over its threshold.
    names: Sequence[str] = ()
    num_named: int = 0


@dataclass(frozen=True, slots=True)
class AlertState:
    """An alert that is not at rest; one row of the store.

    `num_windows` windows of run `epoch` in a row held, which took `held_s`; since then windows of
    `below_s` did not; a rule by the clock ceased to hold at `ceased_s`. `window_id` is the last one
    that counted, and `unseen_since_s` when the first closed after it that did not. Moments are
    Unix seconds.
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


@dataclass(frozen=True, slots=True)
class AlertEvent:
    """One transition, never changed once written; `event_id` is None before that.

    `actor` is who did it, where a person did. `reason` is in words where the kind does not say it
    all, such as that the job has ended.
    """

    fingerprint: str
    job_id: str
    rule: str
    subject: str
    kind: Kind
    at_s: float
    severity: Severity
    sentence: str
    threshold: float | None = None
    detail: Detail = field(default_factory=Detail)
    actor: str | None = None
    reason: str | None = None
    event_id: int | None = None
