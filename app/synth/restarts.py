"""Runs of a simulated job that restarts: after a crash, or with another number of replicas."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from typing_extensions import override

from app.errors import InvalidRequest
from app.synth.job import SimulatedJob


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """One run of the job: its epoch, from 1, and its steps."""

    epoch: int
    job: SimulatedJob
    steps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class JobEvent(ABC):
    """The job ends before `at_step` and restarts from a checkpoint `lost_steps` earlier.

    It is no cause that a diagnosis should name.
    """

    name: ClassVar[str]
    cause: ClassVar[None] = None

    at_step: int
    lost_steps: int = 0

    def __post_init__(self) -> None:
        if self.lost_steps < 0:
            raise InvalidRequest(f"{self.lost_steps} lost steps: give 0 or more")

    @abstractmethod
    def restarted(self, job: SimulatedJob) -> SimulatedJob:
        """The job after the restart."""


@dataclass(frozen=True, slots=True)
class Restart(JobEvent):
    """The job crashes and starts again as it was."""

    name = "restart"

    @override
    def restarted(self, job: SimulatedJob) -> SimulatedJob:
        return _restarted_job(job)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize(JobEvent):
    """The job starts again with another number of replicas."""

    name = "resize"

    dp_size: int

    @override
    def restarted(self, job: SimulatedJob) -> SimulatedJob:
        parallelism = replace(job.parallelism, dp_size=self.dp_size)
        return _restarted_job(replace(job, parallelism=parallelism))


EVENTS: dict[str, type[JobEvent]] = {event.name: event for event in (Restart, Resize)}


def simulated_runs(
    job: SimulatedJob, steps: Sequence[int], events: Sequence[JobEvent]
) -> list[SimulatedRun]:
    """The job's runs, one more than events; lost steps are trained again.

    Raises:
        InvalidRequest: an event is at none of the steps, or a restarted job lacks the worker of
            a fault.
    """
    attempts = unchecked_runs(job, steps, events)
    for attempt in attempts:
        for fault in attempt.job.faults:
            fault.check(attempt.job.world)
    return attempts


def unchecked_runs(
    job: SimulatedJob, steps: Sequence[int], events: Sequence[JobEvent]
) -> list[SimulatedRun]:
    """As `simulated_runs`, without checking the faults against each run.

    Raises:
        InvalidRequest: an event is at none of the steps.
    """
    attempts = [SimulatedRun(1, job, tuple(steps))]
    for event in sorted(events, key=lambda each: each.at_step):
        attempts[-1:] = _split(attempts[-1], event)
    return attempts


def _split(attempt: SimulatedRun, event: JobEvent) -> list[SimulatedRun]:
    before = tuple(step for step in attempt.steps if step < event.at_step)
    since = event.at_step - event.lost_steps
    after = tuple(step for step in attempt.steps if step >= since)
    if not before or not any(step >= event.at_step for step in attempt.steps):
        raise InvalidRequest(
            f"a {event.name} at step {event.at_step}: the job has steps {attempt.steps[0]} to "
            f"{attempt.steps[-1]} then, and wants one before and one after"
        )
    again = event.restarted(attempt.job)
    # Kernels are compiled again.
    again = replace(again, odd_steps=replace(again.odd_steps, first_step=after[0]))
    return [replace(attempt, steps=before), SimulatedRun(attempt.epoch + 1, again, after)]


def _restarted_job(job: SimulatedJob) -> SimulatedJob:
    # A repeated step takes a different time.
    return replace(job, seed=job.seed + 1)
