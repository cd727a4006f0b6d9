"""How is a job doing? One word, from what is known of it and the time."""

from dataclasses import dataclass
from typing import Literal, get_args

from app.store.fleet import FleetLine
from app.store.jobs import JobRecord

JobState = Literal[
    "healthy",
    "straggling",
    "stalled",
    "silent",
    "stale",
    "low-fidelity",
    "not-analysed",
    "finished",
]
STATES: tuple[JobState, ...] = get_args(JobState)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Where one state ends and the next begins."""

    alert_slowdown: float = 1.1
    silent_after_s: float = 300.0


def silent_for_s(job: JobRecord | FleetLine, now_s: float) -> float | None:
    """Seconds since the present run was last heard of; None when it never was.

    One that stalled before its first data has been silent since it registered.
    """
    heard_s = job.stalled_since_s if job.last_data_s is None else job.last_data_s
    return None if heard_s is None else max(0.0, now_s - heard_s)


def job_state(
    job: JobRecord | FleetLine, *, now_s: float, thresholds: Thresholds, is_watched: bool
) -> JobState:
    """The first that applies of these.

    finished: it has said so.
    stale: nothing is stored of it for `silent_after_s`, and no consumer is alive (`is_watched`)
        to tell whether it sends.
    stalled: none of its workers sends.
    silent: some workers do not send, while others do.
    not-analysed, low-fidelity, straggling, healthy: by the newest window that has figures.
    """
    if job.ended_s is not None:
        return "finished"
    unheard_s = silent_for_s(job, now_s)
    if not is_watched and unheard_s is not None and unheard_s > thresholds.silent_after_s:
        return "stale"
    if job.stalled_since_s is not None:
        return "stalled"
    if job.silent_ranks:
        return "silent"
    if job.latest is None:
        return "not-analysed"
    return window_state(job.latest.slowdown, job.latest.verdict, thresholds)


def since_s(job: JobRecord | FleetLine, state: JobState) -> float | None:
    """Unix time since which a job is stalled, silent or stale, as far as it is known."""
    match state:
        case "stalled":
            return job.stalled_since_s
        case "silent":
            return job.silent_since_s
        case "stale":
            return job.last_data_s
    return None


def window_state(slowdown: float | None, verdict: str | None, thresholds: Thresholds) -> JobState:
    """The same from one window's figures alone."""
    if slowdown is None:
        return "not-analysed"
    if verdict == "low":
        return "low-fidelity"
    return "straggling" if slowdown >= thresholds.alert_slowdown else "healthy"
