"""State of a job in one word, and its silent ranks, from the stored job and the time."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

from app import formatting
from app.store import hosts, shards
from app.store.database import Connection
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
    "crashed",
    "preempted",
]
STATES: tuple[JobState, ...] = get_args(JobState)
ENDED_STATES: frozenset[JobState] = frozenset({"finished", "crashed", "preempted"})


@dataclass(frozen=True, slots=True)
class StateThresholds:
    """Limits between the states of a job."""

    alert_slowdown: float = 1.1
    silent_after_s: float = 300.0


def silent_for_s(job: JobRecord | FleetLine, now_s: float) -> float | None:
    """Seconds since the last data of the current run; None if there was none.

    A run that stalled before its first data has been silent since it registered.
    """
    last_heard_s = job.stalled_since_s if job.last_data_s is None else job.last_data_s
    return None if last_heard_s is None else max(0.0, now_s - last_heard_s)


def job_state(
    job: JobRecord | FleetLine, *, now_s: float, thresholds: StateThresholds, is_watched: bool
) -> JobState:
    """The first of these states that applies.

    crashed, preempted: its ranks have reported that they failed, or were asked to end.
    finished: the job reported its end, or all its ranks did.
    stale: no data stored for `silent_after_s`, and no consumer is alive (`is_watched`), so that
        the job may be sending.
    stalled: no worker sends.
    silent: some workers send, others do not.
    not-analysed, low-fidelity, straggling, healthy: by the steps that the job is judged by.
    """
    if job.ended_s is not None:
        return job.ended_as or "finished"
    silent_s = silent_for_s(job, now_s)
    if not is_watched and silent_s is not None and silent_s > thresholds.silent_after_s:
        return "stale"
    if job.stalled_since_s is not None:
        return "stalled"
    if job.silent_ranks:
        return "silent"
    recent = job.recent
    if recent is None:
        return "not-analysed"
    return state_of_window(recent.slowdown, recent.verdict, thresholds)


def state_since_s(job: JobRecord | FleetLine, state: JobState) -> float | None:
    """Unix time since which a job is stalled, silent or stale; None if unknown."""
    match state:
        case "stalled":
            return job.stalled_since_s
        case "silent":
            return job.silent_since_s
        case "stale":
            return job.last_data_s
        case "crashed" | "preempted":
            return job.ended_s
    return None


def state_of_window(
    slowdown: float | None, verdict: str | None, thresholds: StateThresholds
) -> JobState:
    """The state from the figures of one window."""
    if slowdown is None:
        return "not-analysed"
    if verdict == "low":
        return "low-fidelity"
    return "straggling" if slowdown >= thresholds.alert_slowdown else "healthy"


def current_state(
    conn: Connection, job: JobRecord, *, now_s: float, thresholds: StateThresholds
) -> JobState:
    """The job's state; whether consumers are alive is read from the database."""
    is_watched = shards.count_live(conn, now_s=now_s) > 0
    return job_state(job, now_s=now_s, thresholds=thresholds, is_watched=is_watched)


def missing_data_text(
    conn: Connection, job: JobRecord, *, now_s: float, thresholds: StateThresholds
) -> str | None:
    """Label of the band after the last step; None while data arrives."""
    match current_state(conn, job, now_s=now_s, thresholds=thresholds):
        case "silent":
            return f"{formatting.plural(len(job.silent_ranks or ()), 'rank')} silent"
        case "stalled" | "stale":
            return f"no data for {formatting.duration(silent_for_s(job, now_s) or 0.0)}"
    return None


def silent_workers(job: JobRecord) -> list[tuple[int, int]]:
    """Silent workers (dp rank, stage), in the order of their ranks."""
    return [divmod(worker, job.parallelism.pp_size) for worker in job.silent_workers or ()]


def silent_workers_text(conn: Connection, job: JobRecord) -> str | None:
    """The silent workers: one with host and ranks, several by their common host, else None."""
    workers = {*silent_workers(job)}
    if not workers:
        return None
    known = hosts.load(conn, job.job_id, job.epoch)
    on_hosts = {known.get(worker) for worker in workers}
    host = on_hosts.pop() if len(on_hosts) == 1 else None
    ranks = list(job.silent_ranks or ())
    who: dict[str, Any] = {"host": host, "rank": min(ranks, default=None), "ranks": ranks}
    if len(workers) == 1:
        dp_rank, stage = workers.pop()
        return formatting.culprit_name({**who, "dp_rank": dp_rank, "stage": stage})
    return formatting.culprit_name(who) if host else None
