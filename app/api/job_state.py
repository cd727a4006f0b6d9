"""How is a job doing? One word, from what is known of it and the time."""

from dataclasses import dataclass
from typing import Literal

from app.store.jobs import JobRecord

JobState = Literal["healthy", "straggling", "silent", "low-fidelity", "not-analysed", "finished"]


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Where one state ends and the next begins."""

    alert_slowdown: float = 1.1
    silent_after_s: float = 300.0


def silent_for_s(job: JobRecord, now_s: float) -> float | None:
    """Seconds since the present run was last heard of; None when it never was."""
    return None if job.last_data_s is None else max(0.0, now_s - job.last_data_s)


def job_state(job: JobRecord, *, now_s: float, thresholds: Thresholds) -> JobState:
    """The first that applies of: finished, silent, not analysed, low fidelity, straggling."""
    if job.ended_s is not None:
        return "finished"
    silence_s = silent_for_s(job, now_s)
    if silence_s is not None and silence_s > thresholds.silent_after_s:
        return "silent"
    if job.latest is None:
        return "not-analysed"
    return window_state(job.latest.slowdown, job.latest.verdict, thresholds)


def window_state(slowdown: float | None, verdict: str | None, thresholds: Thresholds) -> JobState:
    """The same from one window's figures alone."""
    if slowdown is None:
        return "not-analysed"
    if verdict == "low":
        return "low-fidelity"
    return "straggling" if slowdown >= thresholds.alert_slowdown else "healthy"
