"""How a job is doing now, as its charts and its headline say it."""

from app import words
from app.api.job_state import JobState, job_state, silent_for_s
from app.api.service import Service
from app.store import hosts, shards
from app.store.engine import Connection
from app.store.jobs import JobRecord


def state_of(conn: Connection, job: JobRecord, service: Service) -> JobState:
    """Its state, by what is stored and by the time."""
    now_s = service.now_s()
    is_watched = shards.count_live(conn, now_s=now_s) > 0
    return job_state(job, now_s=now_s, thresholds=service.thresholds, is_watched=is_watched)


def silence_of(conn: Connection, job: JobRecord, service: Service) -> str | None:
    """What the band after the last step says; None where the job goes on."""
    match state_of(conn, job, service):
        case "silent":
            return f"{words.counted(len(job.silent_ranks or ()), 'rank')} silent"
        case "stalled" | "stale":
            return f"no data for {words.span(silent_for_s(job, service.now_s()) or 0.0)}"
    return None


def silent_workers(job: JobRecord) -> list[tuple[int, int]]:
    """Workers (dp rank, stage) of which nothing comes now, in the order of their ranks."""
    return [divmod(worker, job.parallelism.pp_size) for worker in job.silent_workers or ()]


def silent_place(conn: Connection, job: JobRecord) -> str | None:
    """Who they are in words: one worker by its name, several by the host that has them all."""
    workers = {*silent_workers(job)}
    if not workers:
        return None
    known = hosts.load(conn, job.job_id, job.epoch)
    if len(workers) == 1:
        return words.worker(*workers.pop(), known)
    theirs = {known.get(worker) for worker in workers}
    host = theirs.pop() if len(theirs) == 1 else None
    return f"all on {words.contained(host)}" if host else None
