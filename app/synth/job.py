"""A simulated training job, and the trace that its workers record."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from app.errors import InvalidRequest
from app.synth import normal_variation
from app.synth.cluster import Cluster, World, rng_of
from app.synth.costs import OperationCosts
from app.synth.drawing import DrawnSteps, StepDrawing
from app.synth.execution import Execution
from app.synth.faults.fault import Fault
from app.synth.normal_variation import SpecialSteps
from app.synth.record import (
    BlockRecorder,
    RecordedSteps,
    StepBlock,
    concatenated,
    refuse_unordered_steps,
    with_start_times,
)
from app.synth.schedules import ComputeKind, OneFOneB, Schedule
from app.synth.structure import ReplicaStructure, replica_structure
from app.trace.job import Job, Parallelism
from app.trace.window import TRACE_DTYPES, Trace

# Number of operations in a block of steps, whose arrays fit into the CPU's cache.
OPS_PER_BLOCK = 400_000

StepProgress = Callable[[Sequence[int]], Iterable[int]]


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """A simulated training job with known faults.

    The operations of a step depend only on the seed and the step's number. The same job without its
    faults has the same noise. With `records_gpus`, workers record the clock and temperature of
    their GPU.
    """

    parallelism: Parallelism
    num_microbatches: int
    name: str = "made"
    costs: OperationCosts = field(default_factory=OperationCosts)
    faults: tuple[Fault, ...] = ()
    seed: int = 1
    schedule: Schedule = field(default_factory=OneFOneB)
    cluster: Cluster = field(default_factory=Cluster)
    odd_steps: SpecialSteps = field(default_factory=SpecialSteps)
    records_gpus: bool = False

    def __post_init__(self) -> None:
        if self.num_microbatches < 1:
            raise InvalidRequest(f"{self.num_microbatches} micro-batches: a step has at least 1")
        if self.seed < 0:
            raise InvalidRequest(f"the seed is {self.seed}: give 0 or more")
        self.schedule.check(self.parallelism, self.num_microbatches)

    @property
    def job(self) -> Job:
        """The job's name and sizes, with one GPU a rank."""
        return Job.of(self.name, self.parallelism)

    @property
    def world(self) -> World:
        """The job's shape and hosts, for its faults."""
        return _world(self.parallelism, self.num_microbatches, self.cluster)

    @property
    def structure(self) -> ReplicaStructure:
        """The operations of one replica in a step."""
        return replica_structure(self.parallelism, self.num_microbatches, self.schedule)

    def make(self, steps: Sequence[int], progress: StepProgress = iter) -> Trace:
        """The operations of several steps, with times in seconds from the start of the step.

        Sorted by step, dp_rank, stage, op type, seq_id. `progress` wraps the iteration over steps.
        """
        if not steps:
            raise InvalidRequest("no steps: give at least one to simulate")
        columns: dict[str, NDArray[Any]] = {}
        # Allocated at once, since the columns of a large job take hundreds of megabytes.
        shape = (len(steps), self.parallelism.dp_size, self.structure.num_ops)
        first = 0
        for block in self.blocks(steps, progress):
            end = first + len(block.drawn.steps)
            for name, values in block.columns().items():
                column = columns.setdefault(name, np.empty(shape, TRACE_DTYPES[name]))
                column[first:end] = values
            first = end
        return Trace(**{name: column.ravel() for name, column in columns.items()})

    def record(
        self, steps: Sequence[int], *, since_s: float = 0.0, progress: StepProgress = iter
    ) -> RecordedSteps:
        """The operations of ascending steps by the workers' own clocks.

        The first step begins `since_s` after the job; the `RecordedSteps.ended_s` of the previous
        call continues its record.
        """
        refuse_unordered_steps(steps)
        clocks = self.cluster.clocks(self.parallelism, self.seed)
        recorder = BlockRecorder(*clocks, dict(self.costs.sizes))
        parts = []
        for block, began_s, end_s in with_start_times(self.blocks(steps, progress), since_s):
            parts.append(recorder.columns(block, began_s))
            ended_s = end_s
        return RecordedSteps(
            job=self.job,
            steps=tuple(steps),
            hosts=self.world.hosts,
            ended_s=ended_s,
            **concatenated(parts),
        )

    def blocks(self, steps: Sequence[int], progress: StepProgress = iter) -> Iterator[StepBlock]:
        """The steps in order, several at a time."""
        size = max(1, OPS_PER_BLOCK // (self.structure.num_ops * self.parallelism.dp_size))
        waiting: list[int] = []
        for step in progress(steps):
            waiting.append(step)
            if len(waiting) == size:
                yield self._block(waiting)
                waiting = []
        if waiting:
            yield self._block(waiting)

    def drawn(self, steps: Sequence[int]) -> DrawnSteps:
        """Durations and launch delays of steps with the faults, but without waits."""
        splits = any(work.part is ComputeKind.BACKWARD_INPUT for work in self.structure.orders[0])
        drawing = StepDrawing(self.parallelism, self.num_microbatches, self.costs, splits)
        drawn = drawing.draw(steps, self.seed)
        self.odd_steps.change(drawn, self.seed)
        if self.records_gpus:
            normal_variation.add_gpu_readings(drawn, self.seed)
        for number, fault in enumerate(self.faults):
            fault.apply(drawn, self.world, rng_of(self.seed, number))
        return drawn

    def _block(self, steps: Sequence[int]) -> StepBlock:
        structure, drawn = self.structure, self.drawn(steps)
        execution = Execution(structure, drawn, self.cluster.jitter(structure, steps, self.seed))
        execution.run()
        return StepBlock(structure, drawn, execution.start_s, execution.end_s)


@lru_cache(maxsize=8)
def _world(parallelism: Parallelism, num_microbatches: int, cluster: Cluster) -> World:
    hosts = cluster.hosts(parallelism)
    return World(parallelism, num_microbatches, parallelism.vpp_size, hosts)


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """One run of the job: its epoch, from 1, and its steps."""

    epoch: int
    job: SimulatedJob
    steps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class JobEvent(ABC):
    """The job ends before `at_step` and restarts from a checkpoint `lost_steps` earlier.

    A diagnosis should not name it as a cause.
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
        # Another seed, since a repeated step takes another time.
        return replace(job, seed=job.seed + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize(JobEvent):
    """The job restarts with another number of replicas."""

    name = "resize"

    dp_size: int

    @override
    def restarted(self, job: SimulatedJob) -> SimulatedJob:
        parallelism = replace(job.parallelism, dp_size=self.dp_size)
        return replace(job, parallelism=parallelism, seed=job.seed + 1)


EVENTS: dict[str, type[JobEvent]] = {event.name: event for event in (Restart, Resize)}


def simulated_runs(
    job: SimulatedJob, steps: Sequence[int], events: Sequence[JobEvent]
) -> list[SimulatedRun]:
    """The job's runs, one more than events; lost steps are trained again.

    Raises:
        InvalidRequest: an event has no step before or after it.
    """
    runs = [SimulatedRun(1, job, tuple(steps))]
    for event in sorted(events, key=lambda event: event.at_step):
        runs[-1:] = _split(runs[-1], event)
    return runs


def _split(run: SimulatedRun, event: JobEvent) -> list[SimulatedRun]:
    before = tuple(step for step in run.steps if step < event.at_step)
    after = tuple(step for step in run.steps if step >= event.at_step - event.lost_steps)
    if not before or not any(step >= event.at_step for step in run.steps):
        raise InvalidRequest(
            f"a {event.name} at step {event.at_step}: the job has steps {run.steps[0]} to "
            f"{run.steps[-1]} then, and wants one before and one after"
        )
    restarted = event.restarted(run.job)
    # Kernels are compiled again.
    odd_steps = replace(restarted.odd_steps, first_step=after[0])
    restarted = replace(restarted, odd_steps=odd_steps)
    return [replace(run, steps=before), SimulatedRun(run.epoch + 1, restarted, after)]
