"""State of a job in one word, and its silent ranks, from the stored job and what is processed."""

from typing import Literal, get_args

from app import formatting
from app.store import hosts
from app.store.as_of import Processed
from app.store.database import Connection
from app.store.fleet import FleetLine
from app.store.jobs import JobRecord

JobState = Literal[
    "healthy",
    "straggling",
    "stalled",
    "silent",
    "unknown",
    "low-fidelity",
    "not-analysed",
    "finished",
    "crashed",
    "preempted",
]
STATES: tuple[JobState, ...] = get_args(JobState)
ENDED_STATES: frozenset[JobState] = frozenset({"finished", "crashed", "preempted"})


# From this slowdown on a job is straggling, where the operator has set none.
ALERT_SLOWDOWN = 1.1


def silent_for_s(job: JobRecord | FleetLine, now_s: float) -> float | None:
    """Seconds since the last data of the current run; None if there was none.

    A run that stalled before its first data has been silent since it registered.
    """
    last_heard_s = job.stalled_since_s if job.last_data_s is None else job.last_data_s
    return None if last_heard_s is None else max(0.0, now_s - last_heard_s)


def job_state(job: JobRecord | FleetLine, processed: Processed, alert_slowdown: float) -> JobState:
    """The first of these states that applies.

    crashed, preempted: its ranks have reported that they failed, or were asked to end.
    finished: the job reported its end, or all its ranks did.
    unknown: what its workers have sent of late is not processed yet, or is refused.
    stalled: no worker sends.
    silent: some workers send, others do not.
    not-analysed, low-fidelity, straggling, healthy: by the steps that the job is judged by.
    """
    if job.ended_s is not None:
        return job.ended_as or "finished"
    if processed.of(job.job_id, job.last_data_s).is_behind:
        return "unknown"
    if job.stalled_since_s is not None:
        return "stalled"
    if job.silent_ranks:
        return "silent"
    recent = job.recent
    if recent is None:
        return "not-analysed"
    return state_of_window(recent.slowdown, recent.verdict, alert_slowdown)


def state_since_s(
    job: JobRecord | FleetLine, state: JobState, processed: Processed
) -> float | None:
    """Unix time since which a job is stalled, silent, unknown or ended; None if unknown."""
    match state:
        case "stalled":
            return job.stalled_since_s
        case "silent":
            return job.silent_since_s
        case "unknown":
            return processed.of(job.job_id, job.last_data_s).at_s
        case "crashed" | "preempted":
            return job.ended_s
    return None


def state_of_window(slowdown: float | None, verdict: str | None, alert_slowdown: float) -> JobState:
    """The state from the figures of one window."""
    if slowdown is None:
        return "not-analysed"
    if verdict == "low":
        return "low-fidelity"
    return "straggling" if slowdown >= alert_slowdown else "healthy"


def missing_data_text(job: JobRecord, state: JobState, now_s: float) -> str | None:
    """Label of the band after the last step; None while data arrives."""
    match state:
        case "silent":
            return f"{formatting.plural(len(job.silent_ranks or ()), 'rank')} silent"
        case "stalled":
            return f"no data for {formatting.duration(silent_for_s(job, now_s) or 0.0)}"
        case "unknown":
            return "not processed yet"
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
    if len(workers) > 1 and not host:
        return None
    ranks = job.silent_ranks or ()
    dp_rank, stage = workers.pop() if len(workers) == 1 else (None, None)
    return formatting.culprit_name(
        dp_rank=dp_rank, stage=stage, host=host, rank=min(ranks, default=None), ranks=ranks
    )
