"""Jobs as samples for /metrics: sums of all, and the costliest jobs and slowest workers by name.

The number of series is bounded: a fixed number of jobs and of workers, not one per worker. The
slowest workers are searched with few reads of results.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from typing_extensions import override

from app.api.routes.fleet.fleet_jobs import MEASURED_STATES, FleetJob
from app.api.service.job_state import ENDED_STATES, STATES
from app.api.service.replays import ResultCache
from app.errors import WindowNotFound
from app.result.figures import gpu_time_wasted
from app.store import hosts
from app.store.database import Store
from app.trace.job import job_of, project_of

MAX_WORKERS = 20
# Jobs whose results are read: one of 16,384 workers takes some 20 ms.
MAX_JOBS_READ = 20


@dataclass(frozen=True, slots=True)
class SlowestWorker:
    """A worker and its S_w in its job's newest window; `host` is None if unknown."""

    job_id: str
    dp_rank: int
    stage: int
    host: str | None
    slowdown: float

    @property
    def labels(self) -> list[str]:
        """Its labels in metrics."""
        names = [project_of(self.job_id), job_of(self.job_id)]
        return [*names, f"{self.dp_rank}-{self.stage}", self.host or ""]


def slowest_workers(
    store: Store, results: ResultCache, jobs: Iterable[FleetJob]
) -> list[SlowestWorker]:
    """The slowest workers of straggling jobs, the slowest first.

    No worker is slower than its job, so jobs are read by descending slowdown until none of the rest
    can have a slower one.
    """
    straggling = [job for job in jobs if job.state == "straggling" and job.slowdown is not None]
    straggling.sort(key=lambda job: -(job.slowdown or 0.0))
    slowest: list[SlowestWorker] = []
    for job in straggling[:MAX_JOBS_READ]:
        if len(slowest) == MAX_WORKERS and slowest[-1].slowdown >= (job.slowdown or 0.0):
            break
        candidates = (*slowest, *_slow_workers_of(store, results, job))
        slowest = heapq.nlargest(MAX_WORKERS, candidates, key=attrgetter("slowdown"))
    epochs = {job.line.job_id: job.line.epoch for job in straggling}
    with store.read() as conn:
        job_ids = {worker.job_id for worker in slowest}
        known = {job_id: hosts.load(conn, job_id, epochs[job_id]) for job_id in job_ids}
    return [
        replace(worker, host=known[worker.job_id].get((worker.dp_rank, worker.stage)))
        for worker in slowest
    ]


def _slow_workers_of(store: Store, results: ResultCache, job: FleetJob) -> Iterator[SlowestWorker]:
    line = job.line
    try:
        result = results.recent(store, line.job_id)
    except WindowNotFound:
        return  # deleted by retention meanwhile
    for dp_rank, of_rank in enumerate(result.worker_slowdown or ()):
        for stage, slowdown in enumerate(of_rank):
            if slowdown is not None and slowdown > 1.0:
                yield SlowestWorker(line.job_id, dp_rank, stage, None, slowdown)


def gauge(name: str, help_text: str, value: float) -> Metric:
    """One figure now."""
    return GaugeMetricFamily(f"paceline_{name}", help_text, value=value)


def gauges(
    name: str, help_text: str, labels: Sequence[str], samples: Iterable[tuple[Sequence[str], float]]
) -> Metric:
    """One figure now of each of several things, by the values of its labels."""
    family = GaugeMetricFamily(f"paceline_{name}", help_text, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


# Not "job": Prometheus uses that label for the scraped target.
_JOB_LABELS = ["project", "job_id"]


class Samples(Collector):
    """Samples of one moment."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    @override
    def collect(self) -> Iterable[Metric]:
        return self._metrics


def fleet_samples(jobs: Sequence[FleetJob]) -> Iterator[Metric]:
    """Sums over all jobs of the service; no names."""
    running = [job for job in jobs if job.state not in ENDED_STATES]
    by_state = Counter(job.state for job in jobs)
    states = (([state], by_state[state]) for state in STATES)
    yield gauges("jobs", "Jobs by how they do.", ["state"], states)
    gpus = sum(job.line.num_gpus for job in running)
    yield gauge("gpus", "GPUs of jobs that have not finished.", gpus)
    lost = sum(job.lost_per_hour or 0.0 for job in running)
    help_text = "GPU-hours that all jobs lose an hour, as they go on now."
    yield gauge("gpu_hours_lost_per_hour", help_text, lost)


def job_samples(
    jobs: Sequence[FleetJob], left_out: int, workers: Sequence[SlowestWorker]
) -> Iterator[Metric]:
    """Jobs by name, the costliest first, the number left out, and the slowest workers."""
    for name, help_text, read in _GAUGES:
        values = ((_job_labels(job), read(job)) for job in jobs)
        known = ((labels, value) for labels, value in values if value is not None)
        yield gauges(f"job_{name}", help_text, _JOB_LABELS, known)
    help_text = "1 for the state that the job is in; there is no sample for the others."
    states = (([*_job_labels(job), job.state], 1) for job in jobs)
    yield gauges("job_state", help_text, [*_JOB_LABELS, "state"], states)
    help_text = "Share of the job's GPU time that a cause costs; the costliest three."
    causes = (
        ([*_job_labels(job), cause], cost)
        for job in jobs
        for cause, cost in _cost_by_cause(job).items()
    )
    yield gauges("job_cause_gpu_time_ratio", help_text, [*_JOB_LABELS, "cause"], causes)
    help_text = "Slowdown of the slowest workers (dp rank-stage) of all jobs that straggle."
    labels = [*_JOB_LABELS, "worker", "host"]
    slowdowns = ((worker.labels, worker.slowdown) for worker in workers)
    yield gauges("worst_worker_slowdown_ratio", help_text, labels, slowdowns)
    help_text = "Jobs that have not finished and lose too little to be named here."
    yield gauge("jobs_left_out", help_text, left_out)


def _cost_by_cause(job: FleetJob) -> dict[str, float]:
    costs: dict[str, float] = {}
    for finding in job.findings or ():
        costs[finding.cause] = max(costs.get(finding.cause, 0.0), finding.cost or 0.0)
    return costs


def _slowdown(job: FleetJob) -> float | None:
    return job.slowdown if job.state in MEASURED_STATES else None


def _wasted(job: FleetJob) -> float | None:
    slowdown = _slowdown(job)
    return None if slowdown is None else gpu_time_wasted(slowdown)


def _step_s(job: FleetJob) -> float | None:
    return job.line.brief.step_s if job.line.brief and job.state in MEASURED_STATES else None


_GAUGES: tuple[tuple[str, str, Callable[[FleetJob], float | None]], ...] = (
    ("slowdown_ratio", "Step time as recorded, over that without stragglers.", _slowdown),
    ("gpu_time_wasted_ratio", "Share of the job's GPU time that stragglers cost.", _wasted),
    (
        "gpu_hours_lost_per_hour",
        "GPU-hours that it loses an hour; of a job that is stalled, all of them.",
        lambda job: job.lost_per_hour,
    ),
    ("gpus", "Its GPUs.", lambda job: job.line.num_gpus),
    ("step_seconds", "What a step takes in the newest window.", _step_s),
    (
        "last_step",
        "The newest step of which any operation has arrived.",
        lambda job: job.line.last_step,
    ),
)


def _job_labels(job: FleetJob) -> list[str]:
    return [project_of(job.line.job_id), job_of(job.line.job_id)]
