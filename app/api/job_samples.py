"""Figures of jobs as samples for /metrics: the jobs that lose most by name, all together by sums.

The number of series is bounded: so many jobs, so many workers of all of them, never one a worker.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from typing_extensions import override

from app.api.fleet import MEASURED, Standing
from app.api.job_state import STATES
from app.api.worst_workers import WorstWorker
from app.engine.metrics import gpu_time_wasted
from app.trace.names import plain, project_of

# Not "job": so Prometheus calls what it scraped a figure from.
_OF_JOB = ["project", "job_id"]


@dataclass(frozen=True, slots=True)
class Sums(Collector):
    """What all jobs of the service are and lose together; nobody is named."""

    jobs: Sequence[Standing]

    @override
    def collect(self) -> Iterator[Metric]:
        running = [each for each in self.jobs if each.state != "finished"]
        by_state = Counter(each.state for each in self.jobs)
        family = GaugeMetricFamily("paceline_jobs", "Jobs by how they do.", labels=["state"])
        for state in STATES:
            family.add_metric([state], by_state[state])
        yield family
        gpus = sum(each.line.num_gpus for each in running)
        yield GaugeMetricFamily("paceline_gpus", "GPUs of jobs that have not finished.", value=gpus)
        lost = sum(each.lost_per_hour or 0.0 for each in running)
        told = "GPU-hours that all jobs lose an hour, as they go on now."
        yield GaugeMetricFamily("paceline_gpu_hours_lost_per_hour", told, value=lost)


@dataclass(frozen=True, slots=True)
class JobSamples(Collector):
    """Jobs by name, the costliest first, how many were left out, and the slowest workers."""

    jobs: Sequence[Standing]
    left_out: int
    workers: Sequence[WorstWorker]

    @override
    def collect(self) -> Iterator[Metric]:
        for name, told, of in _GAUGES:
            yield self._gauge(name, told, of)
        yield self._states()
        yield self._causes()
        yield self._workers()
        told = "Jobs that have not finished and lose too little to be named here."
        yield GaugeMetricFamily("paceline_jobs_left_out", told, value=self.left_out)

    def _gauge(self, name: str, told: str, of: Callable[[Standing], float | None]) -> Metric:
        family = GaugeMetricFamily(f"paceline_job_{name}", told, labels=_OF_JOB)
        for job in self.jobs:
            value = of(job)
            if value is not None:
                family.add_metric(_labels(job), value)
        return family

    def _states(self) -> Metric:
        told = "1 for the state that the job is in; there is no sample for the others."
        family = GaugeMetricFamily("paceline_job_state", told, labels=[*_OF_JOB, "state"])
        for job in self.jobs:
            family.add_metric([*_labels(job), job.state], 1)
        return family

    def _causes(self) -> Metric:
        told = "Share of the job's GPU time that a cause costs; the costliest three."
        name = "paceline_job_cause_gpu_time_ratio"
        family = GaugeMetricFamily(name, told, labels=[*_OF_JOB, "cause"])
        for job in self.jobs:
            costs: dict[str, float] = {}
            for each in job.findings or ():
                costs[each["cause"]] = max(costs.get(each["cause"], 0.0), each["cost"] or 0.0)
            for cause, cost in costs.items():
                family.add_metric([*_labels(job), cause], cost)
        return family

    def _workers(self) -> Metric:
        told = "Slowdown of the slowest workers (dp rank-stage) of all jobs that straggle."
        name = "paceline_worst_worker_slowdown_ratio"
        family = GaugeMetricFamily(name, told, labels=[*_OF_JOB, "worker", "host"])
        for each in self.workers:
            place = [project_of(each.job_id), plain(each.job_id)]
            worker = f"{each.dp_rank}-{each.stage}"
            family.add_metric([*place, worker, each.host or ""], each.slowdown)
        return family


def _slowdown(job: Standing) -> float | None:
    return job.slowdown if job.state in MEASURED else None


def _wasted(job: Standing) -> float | None:
    slowdown = _slowdown(job)
    return None if slowdown is None else gpu_time_wasted(slowdown)


def _step_s(job: Standing) -> float | None:
    return job.line.brief["step_s"] if job.line.brief and job.state in MEASURED else None


_GAUGES: tuple[tuple[str, str, Callable[[Standing], float | None]], ...] = (
    ("slowdown_ratio", "Step time as recorded, over that without stragglers.", _slowdown),
    ("gpu_time_wasted_ratio", "Share of the job's GPU time that stragglers cost.", _wasted),
    (
        "gpu_hours_lost_per_hour",
        "GPU-hours that it loses an hour; of a job that is stalled, all of them.",
        lambda job: job.lost_per_hour,
    ),
    ("gpus", "Its GPUs.", lambda job: job.line.num_gpus),
    ("step_seconds", "What a step takes in the newest window.", _step_s),
    ("last_step", "The last step that was heard of.", lambda job: job.line.last_step),
)


def _labels(job: Standing) -> list[str]:
    return [project_of(job.line.job_id), plain(job.line.job_id)]
