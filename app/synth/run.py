"""A made job: the trace its workers would have recorded, some steps at a time."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.errors import InvalidRequest
from app.synth import gpus
from app.synth.block import Block
from app.synth.cluster import Cluster
from app.synth.costs import Costs
from app.synth.drawing import Drawing
from app.synth.execution import Execution
from app.synth.faults.fault import Fault
from app.synth.odd_steps import OddSteps
from app.synth.record import Record
from app.synth.recording import Recorder, joined, refuse_disorder, successive
from app.synth.schedules.one_f_one_b import OneFOneB
from app.synth.schedules.schedule import Part, Schedule
from app.synth.structure import Structure
from app.synth.world import World, rng_of
from app.trace.job import Job, Parallelism
from app.trace.window import TRACE_DTYPES, Trace

# Steps are made together as long as they have no more operations than this: a few such arrays
# stay in the processor's cache, and those of the largest jobs in memory.
OPS_A_BLOCK = 400_000

Watched = Callable[[Sequence[int]], Iterable[int]]


@dataclass(frozen=True, slots=True)
class MadeJob:
    """A training job that never ran, with a truth that is known.

    The same seed and step always give the same operations, in whatever order steps are made; the
    same job without its faults has the same noise. `gpus_tell` says whether workers record their
    GPU's clock and temperature.
    """

    parallelism: Parallelism
    num_microbatches: int
    name: str = "made"
    costs: Costs = field(default_factory=Costs)
    faults: tuple[Fault, ...] = ()
    seed: int = 1
    schedule: Schedule = field(default_factory=OneFOneB)
    cluster: Cluster = field(default_factory=Cluster)
    odd_steps: OddSteps = field(default_factory=OddSteps)
    gpus_tell: bool = False

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
        """The job as results name it, one GPU a rank."""
        return Job.of(self.name, self.parallelism)

    @property
    def world(self) -> World:
        """What its faults may know of it."""
        return _world(self.parallelism, self.num_microbatches, self.cluster)

    @property
    def structure(self) -> Structure:
        """The operations of each of its replicas, every step."""
        return _structure(self.parallelism, self.num_microbatches, self.schedule)

    def make_step(self, step: int) -> Trace:
        """One step's operations, in seconds from its beginning."""
        return self.make([step])

    def make(self, steps: Sequence[int], watched: Watched = iter) -> Trace:
        """Several steps' operations, each step in seconds from its own beginning.

        In the order in which windows are stored: step, dp_rank, stage, op type, seq_id.
        `watched` sees each step go by, for a progress bar.
        """
        if not steps:
            raise InvalidRequest("no steps: name at least one to make")
        columns: dict[str, NDArray[Any]] = {}
        # All at once: the columns of a large job are hundreds of megabytes.
        shape = (len(steps), self.parallelism.dp_size, self.structure.num_ops)
        first = 0
        for block in self.blocks(steps, watched):
            end = first + len(block.drawn.steps)
            for name, values in block.columns().items():
                whole = columns.setdefault(name, np.empty(shape, TRACE_DTYPES[name]))
                whole[first:end] = values
            first = end
        return Trace(**{name: whole.ravel() for name, whole in columns.items()})

    def record(
        self, steps: Sequence[int], *, since_s: float = 0.0, watched: Watched = iter
    ) -> Record:
        """What the workers recorded of some steps, ascending, by their own clocks.

        The first one began `since_s` after the job; `Record.ended_s` is what to give for more.
        """
        refuse_disorder(steps)
        clocks = self.cluster.clocks(self.parallelism, self.seed)
        recorder = Recorder(self.parallelism, *clocks, dict(self.costs.sizes))
        parts = []
        for block, began_s, end_s in successive(self.blocks(steps, watched), since_s):
            parts.append(recorder.columns(block, began_s))
            ended_s = end_s
        return Record(
            job=self.job,
            steps=tuple(steps),
            hosts=self.world.hosts,
            ended_s=ended_s,
            **joined(parts),
        )

    def blocks(
        self, steps: Sequence[int], watched: Watched = iter, *, ops_a_block: int = OPS_A_BLOCK
    ) -> Iterator[Block]:
        """The same in the steps' order, as arrays of some steps at a time."""
        num_ops = self.structure.num_ops * self.parallelism.dp_size
        size = max(1, ops_a_block // num_ops)
        waiting: list[int] = []
        for step in watched(steps):
            waiting.append(step)
            if len(waiting) == size:
                yield self._block(waiting)
                waiting = []
        if waiting:
            yield self._block(waiting)

    def _block(self, steps: Sequence[int]) -> Block:
        structure = self.structure
        splits = any(work.part is Part.BACKWARD_INPUT for work in structure.orders[0])
        drawing = Drawing(self.parallelism, self.num_microbatches, self.costs, splits)
        drawn = drawing.draw(steps, self.seed)
        self.odd_steps.change(drawn, self.seed)
        if self.gpus_tell:
            gpus.tell(drawn, self.seed)
        for number, fault in enumerate(self.faults):
            fault.strike(drawn, self.world, rng_of(self.seed, number))
        jitter_s = self.cluster.jitter(structure, steps, self.seed)
        execution = Execution(structure, drawn, jitter_s)
        execution.run()
        return Block(structure, drawn, execution.start_s, execution.end_s)


@lru_cache(maxsize=8)
def _world(parallelism: Parallelism, num_microbatches: int, cluster: Cluster) -> World:
    hosts = cluster.hosts(parallelism)
    return World(parallelism, num_microbatches, parallelism.vpp_size, hosts)


@lru_cache(maxsize=8)
def _structure(parallelism: Parallelism, num_microbatches: int, schedule: Schedule) -> Structure:
    return Structure.of(parallelism, num_microbatches, schedule)
