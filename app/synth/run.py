"""A made job: the trace its workers would have recorded, step by step."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.errors import InvalidRequest
from app.synth.costs import Costs
from app.synth.durations import Durations
from app.synth.execution import Execution
from app.synth.faults import Fault
from app.synth.schedules.one_f_one_b import OneFOneB
from app.synth.schedules.schedule import Schedule
from app.trace.job import Job, Parallelism
from app.trace.ops import OP_CODES, OP_NAMES, OP_SPECS
from app.trace.window import TRACE_DTYPES, Ints, Trace

# Operations of a whole model chunk; the pipeline's own know their chunk and micro-batch.
_OF_A_CHUNK = ("params-all-gather", "grads-reduce-scatter")

Watched = Callable[[Sequence[int]], Iterable[int]]


@dataclass(frozen=True, slots=True)
class MadeJob:
    """A training job that never ran, with a truth that is known.

    The same seed and step always give the same operations, in whatever order steps are made.
    """

    parallelism: Parallelism
    num_microbatches: int
    name: str = "made"
    costs: Costs = field(default_factory=Costs)
    faults: tuple[Fault, ...] = ()
    seed: int = 1
    schedule: Schedule = field(default_factory=OneFOneB)

    def __post_init__(self) -> None:
        if self.num_microbatches < 1:
            raise InvalidRequest(f"{self.num_microbatches} micro-batches: a step has at least 1")
        if self.parallelism.vpp_size > 1:
            raise InvalidRequest("made jobs have one model chunk a stage: set vpp_size to 1")
        if self.seed < 0:
            raise InvalidRequest(f"the seed is {self.seed}: give 0 or more")

    @property
    def job(self) -> Job:
        """The job as results name it, one GPU a rank."""
        return Job.of(self.name, self.parallelism)

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
        for position, step in enumerate(watched(steps)):
            for name, values in self._recorded(step).items():
                # All at once: the columns of a large job are hundreds of megabytes.
                shape = (len(steps), *np.broadcast_shapes(values.shape, (self._dp_size, 1)))
                whole = columns.setdefault(name, np.empty(shape, TRACE_DTYPES[name]))
                whole[position] = values
        return Trace(**{name: whole.ravel() for name, whole in columns.items()})

    @property
    def _dp_size(self) -> int:
        return self.parallelism.dp_size

    def _recorded(self, step: int) -> dict[str, NDArray[Any]]:
        """One step's columns, [dp, ops] or [ops] where all dp ranks have the same."""
        execution = self._executed(step)
        places = [
            (OP_CODES[name], np.argwhere(np.isfinite(start_s[..., 0])))
            for name, start_s in execution.start_s.items()
        ]
        optype = np.concatenate([np.full(len(at), code) for code, at in places])
        stage, seq_id = np.concatenate([at for _, at in places]).T
        order = np.lexsort((seq_id, optype, stage))
        start_s, end_s = (
            np.concatenate([times[OP_NAMES[code]][tuple(at.T)] for code, at in places])[order].T
            for times in (execution.start_s, execution.end_s)
        )
        return {
            **self._of_one_replica(step, stage[order], optype[order], seq_id[order]),
            "start_s": start_s,
            "duration_s": end_s - start_s,
        }

    def _executed(self, step: int) -> Execution:
        rng = np.random.default_rng([self.seed, step])
        durations = Durations.drawn(
            self.costs, self.faults, self.parallelism, self.num_microbatches, rng
        )
        execution = Execution(
            self.parallelism, self.schedule, durations, self.costs.launch_delay_s, rng
        )
        execution.run()
        return execution

    def _of_one_replica(
        self, step: int, stage: Ints, optype: Ints, seq_id: Ints
    ) -> dict[str, NDArray[Any]]:
        specs = [OP_SPECS[code] for code in optype]
        in_pipeline = np.array([spec.stream not in ("", "dp-comm") for spec in specs])
        of_a_chunk = in_pipeline | np.array([spec.name in _OF_A_CHUNK for spec in specs])
        ranks_each = self.parallelism.tp_size * self.parallelism.dsp_size
        dp_rank = np.arange(self._dp_size)[:, None]
        return {
            "step": np.full(stage.size, step),
            "dp_rank": np.broadcast_to(dp_rank, (self._dp_size, stage.size)),
            "stage": stage,
            "rank": (stage * self._dp_size + dp_rank) * ranks_each,
            "optype": optype,
            "seq_id": seq_id,
            "mc": np.where(of_a_chunk, 0, -1),
            "mb_id": np.where(in_pipeline, seq_id, -1),
        }
