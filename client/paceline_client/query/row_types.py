"""What each kind of row has; None is "not known"."""

from __future__ import annotations

from typing import TypedDict


class JobRow(TypedDict):
    """A training job and how it is doing."""

    job_id: str
    name: str
    state: str
    epoch: int
    gpus: int
    dp_size: int
    pp_size: int
    tp_size: int
    vpp_size: int
    dsp_size: int
    ep_size: int
    world_size: int
    framework: str | None
    labels: str  # a JSON object
    registered_at: str
    ended_at: str | None
    last_data_at: str | None
    last_step: int | None
    slowdown: float | None
    gpu_time_wasted: float | None
    verdict: str | None
    latest_window: str | None
    num_silent_ranks: int
    ops_accepted: int | None
    ops_late: int | None


class WindowRow(TypedDict):
    """Some successive steps that were analysed together."""

    job_id: str
    window_id: str
    epoch: int
    first_step: int
    last_step: int
    revision: int
    state: str
    num_steps: int
    slowdown: float | None
    verdict: str | None
    updated_at: str


class FindingRow(TypedDict):
    """A cause that was found in a window; who is to blame for it, the first one in columns."""

    job_id: str
    window_id: str
    cause: str
    cost: float | None
    confidence: float
    score: float
    persistence: str | None
    onset_step: int | None
    dp_rank: int | None
    stage: int | None
    host: str | None
    num_culprits: int
    culprits: str  # a JSON list of objects
    sentence: str


class WorkerRow(TypedDict):
    """One worker in a window: what the job would lose if only this worker were slow."""

    job_id: str
    window_id: str
    dp_rank: int
    stage: int
    host: str | None
    slowdown: float | None
    slowdown_estimate: float | None


class StepRow(TypedDict):
    """One training step, in seconds; without figures where it was skipped."""

    job_id: str
    epoch: int
    step: int
    recorded_s: float | None
    simulated_s: float | None
    ideal_s: float | None
    slowdown: float | None
    window_id: str
    skipped_reason: str | None


class AlertRow(TypedDict):
    """One transition of an alert."""

    event_id: int
    at: str
    kind: str
    severity: str
    job_id: str
    rule: str
    subject: str
    sentence: str
    value: float | None
    threshold: float | None
    slowdown: float | None
    gpu_hours_lost_per_hour: float | None
    cause: str | None
    window_id: str | None
    fingerprint: str
    actor: str | None
    reason: str | None


class ActiveAlertRow(TypedDict):
    """An alert that is pending or fires now."""

    job_id: str
    rule: str
    subject: str
    phase: str
    severity: str
    began_at: str
    firing_at: str | None
    sentence: str
    value: float | None
    threshold: float | None
    slowdown: float | None
    gpu_hours_lost_per_hour: float | None
    cause: str | None
    window_id: str | None
    fingerprint: str
    acknowledged_at: str | None
    acknowledged_by: str | None
    is_silenced: bool
    is_inhibited: bool


class ScoreRow(TypedDict):
    """What another tool says of one rank. There is no what-if for it: no operations are behind."""

    job_id: str
    source: str
    report_id: str
    received_at: str
    rank: int | None
    node: str | None
    section: str
    metric: str
    unit: str | None
    value: float | None
    mean: float | None
    score: float | None
    slowdown: float | None
    num: int
    of: int
    step: int | None
    at: str | None


class ScoreReportRow(TypedDict):
    """One report of scores, and what it could not tell."""

    job_id: str
    report_id: str
    source: str
    epoch: int
    received_at: str
    num_scores: int
    num_reports: int
    lacks: str  # a JSON list of objects
