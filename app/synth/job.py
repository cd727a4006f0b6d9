"""A simulated training job: the trace that its workers would record, block by block."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.errors import InvalidRequest
from app.synth import normal_variation
from app.synth.cluster import Cluster, World, rng_of
from app.synth.costs import OperationCosts
from app.synth.drawing import DrawnSteps, StepDrawing
from app.synth.execution import Execution
from app.synth.faults.fault import Fault
from app.synth.normal_variation import SpecialSteps
from app.synth.record import RecordedSteps
from app.synth.recording import (
    BlockRecorder,
    StepBlock,
    concatenated,
    refuse_unordered_steps,
    with_start_times,
)
from app.synth.schedules import ComputeKind, OneFOneB, Schedule
from app.synth.structure import ReplicaStructure
from app.trace.job import Job, Parallelism
from app.trace.window import TRACE_DTYPES, Trace

# Steps are simulated in blocks of at most this many operations, which fit into the CPU's cache.
OPS_PER_BLOCK = 400_000

StepProgress = Callable[[Sequence[int]], Iterable[int]]


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """A simulated training job with known faults.

    A seed and a step determine the operations, in whatever order steps are simulated; the same job
    without its faults has the same noise. With `records_gpus`, workers record their GPU's clock and
    temperature.
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
        self.schedule.check(
            pp_size=self.parallelism.pp_size,
            num_microbatches=self.num_microbatches,
            num_chunks=self.parallelism.vpp_size,
        )

    @property
    def job(self) -> Job:
        """The job's name and sizes, with one GPU per rank."""
        return Job.of(self.name, self.parallelism)

    @property
    def world(self) -> World:
        """The job's shape and hosts, for its faults."""
        return _world(self.parallelism, self.num_microbatches, self.cluster)

    @property
    def structure(self) -> ReplicaStructure:
        """The operations of one replica in a step."""
        return _structure(self.parallelism, self.num_microbatches, self.schedule)

    def make_step(self, step: int) -> Trace:
        """Operations of one step, in seconds from its start."""
        return self.make([step])

    def make(self, steps: Sequence[int], progress: StepProgress = iter) -> Trace:
        """Operations of several steps, each in seconds from the start of its step.

        Sorted by step, dp_rank, stage, op type, seq_id. `progress` wraps the iteration over steps.
        """
        if not steps:
            raise InvalidRequest("no steps: give at least one to simulate")
        columns: dict[str, NDArray[Any]] = {}
        # Allocated once: the columns of a large job take hundreds of megabytes.
        shape = (len(steps), self.parallelism.dp_size, self.structure.num_ops)
        first = 0
        for block in self.blocks(steps, progress):
            end = first + len(block.drawn.steps)
            for name, values in block.columns().items():
                whole = columns.setdefault(name, np.empty(shape, TRACE_DTYPES[name]))
                whole[first:end] = values
            first = end
        return Trace(**{name: whole.ravel() for name, whole in columns.items()})

    def record(
        self, steps: Sequence[int], *, since_s: float = 0.0, progress: StepProgress = iter
    ) -> RecordedSteps:
        """Operations of ascending steps as the workers' own clocks record them.

        The first step begins `since_s` after the job; to continue, pass the
        `RecordedSteps.ended_s` of the last call.
        """
        refuse_unordered_steps(steps)
        clocks = self.cluster.clocks(self.parallelism, self.seed)
        recorder = BlockRecorder(self.parallelism, *clocks, dict(self.costs.sizes))
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

    def blocks(
        self,
        steps: Sequence[int],
        progress: StepProgress = iter,
        *,
        ops_a_block: int = OPS_PER_BLOCK,
    ) -> Iterator[StepBlock]:
        """The steps in order, as arrays of several steps at a time."""
        num_ops = self.structure.num_ops * self.parallelism.dp_size
        size = max(1, ops_a_block // num_ops)
        waiting: list[int] = []
        for step in progress(steps):
            waiting.append(step)
            if len(waiting) == size:
                yield self._block(waiting)
                waiting = []
        if waiting:
            yield self._block(waiting)

    def drawn(self, steps: Sequence[int]) -> DrawnSteps:
        """Durations and launch delays of steps, with the faults, before anyone waits."""
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
        jitter_s = self.cluster.jitter(structure, steps, self.seed)
        execution = Execution(structure, drawn, jitter_s)
        execution.run()
        return StepBlock(structure, drawn, execution.start_s, execution.end_s)


@lru_cache(maxsize=8)
def _world(parallelism: Parallelism, num_microbatches: int, cluster: Cluster) -> World:
    hosts = cluster.hosts(parallelism)
    return World(parallelism, num_microbatches, parallelism.vpp_size, hosts)


@lru_cache(maxsize=8)
def _structure(
    parallelism: Parallelism, num_microbatches: int, schedule: Schedule
) -> ReplicaStructure:
    return ReplicaStructure.of(parallelism, num_microbatches, schedule)
