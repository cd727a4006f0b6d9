"""The slowest workers of many jobs, found without reading many jobs."""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from app.api.fleet import Standing
from app.api.results import Results
from app.errors import WindowNotFound
from app.store import hosts
from app.store.engine import Store

MOST_WORKERS = 20
# A result of 16,384 workers takes some 20 ms to read: so many of the slowest jobs, no more.
MOST_JOBS = 20


@dataclass(frozen=True, slots=True)
class WorstWorker:
    """A worker and its S_w in its job's newest window; `host` is None where it is not known."""

    job_id: str
    dp_rank: int
    stage: int
    host: str | None
    slowdown: float


def worst_workers(
    store: Store, results: Results, jobs: Iterable[Standing], *, most: int = MOST_WORKERS
) -> list[WorstWorker]:
    """The slowest workers of those jobs that straggle, the slowest first.

    No worker alone is slower than its whole job, so jobs are read in the order of their slowdowns
    until none of the rest can have a slower one.
    """
    straggling = [job for job in jobs if job.state == "straggling" and job.slowdown is not None]
    straggling.sort(key=lambda job: -(job.slowdown or 0.0))
    found: list[WorstWorker] = []
    for job in straggling[:MOST_JOBS]:
        if len(found) == most and found[-1].slowdown >= (job.slowdown or 0.0):
            break
        of_job = heapq.nlargest(most, _workers(store, results, job), key=_by_slowdown)
        found = sorted([*found, *of_job], key=_by_slowdown, reverse=True)[:most]
    return _with_hosts(store, found, {job.line.job_id: job.line.epoch for job in straggling})


def _by_slowdown(worker: WorstWorker) -> float:
    return worker.slowdown


def _workers(store: Store, results: Results, job: Standing) -> Iterator[WorstWorker]:
    line = job.line
    try:
        result = results.get(store, line.job_id, line.latest.window_id if line.latest else "latest")
    except WindowNotFound:
        return  # retention took it a moment ago
    for dp_rank, of_rank in enumerate(result["worker_slowdown"] or ()):
        for stage, slowdown in enumerate(of_rank):
            if slowdown is not None and slowdown > 1.0:
                yield WorstWorker(line.job_id, dp_rank, stage, None, slowdown)


def _with_hosts(
    store: Store, found: Sequence[WorstWorker], epochs: dict[str, int]
) -> list[WorstWorker]:
    with store.read() as conn:
        known = {job_id: hosts.load(conn, job_id, epochs[job_id]) for job_id in
                 {each.job_id for each in found}}  # fmt: skip
    return [
        WorstWorker(
            each.job_id,
            each.dp_rank,
            each.stage,
            known[each.job_id].get((each.dp_rank, each.stage)),
            each.slowdown,
        )
        for each in found
    ]
