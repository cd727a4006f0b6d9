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
from app.trace.window import TRACE_DTYPES, Floats, Ints, Trace

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
        rng = np.random.default_rng([self.seed, step])
        durations = Durations.drawn(
            self.costs, self.faults, self.parallelism, self.num_microbatches, rng
        )
        execution = Execution(
            self.parallelism, self.schedule, durations, self.costs.launch_delay_s, rng
        )
        execution.run()
        return self._recorded(step, execution)

    def make(self, steps: Sequence[int], watched: Watched = iter) -> Trace:
        """Several steps' operations, each step in seconds from its own beginning.

        `watched` sees each step go by, for a progress bar.
        """
        if not steps:
            raise InvalidRequest("no steps: name at least one to make")
        columns: dict[str, NDArray[Any]] = {}
        for position, step in enumerate(watched(steps)):
            made = self.make_step(step)
            rows = slice(position * made.num_ops, (position + 1) * made.num_ops)
            for name, dtype in TRACE_DTYPES.items():
                # All at once: the columns of a large job are hundreds of megabytes.
                whole = columns.setdefault(name, np.empty(len(steps) * made.num_ops, dtype))
                whole[rows] = getattr(made, name)
        return Trace(**columns)

    def _recorded(self, step: int, execution: Execution) -> Trace:
        """In the order in which windows are stored: dp_rank, stage, op type, seq_id."""
        places = [
            (OP_CODES[name], np.argwhere(np.isfinite(start_s[..., 0])))
            for name, start_s in execution.start_s.items()
        ]
        optype = np.concatenate([np.full(len(at), code) for code, at in places])
        stage, seq_id = np.concatenate([at for _, at in places]).T
        order = np.lexsort((seq_id, optype, stage))
        start_s, end_s = (
            np.concatenate([times[OP_NAMES[code]][*at.T] for code, at in places])[order].T
            for times in (execution.start_s, execution.end_s)
        )
        return self._trace(step, stage[order], optype[order], seq_id[order], start_s, end_s)

    def _trace(
        self, step: int, stage: Ints, optype: Ints, seq_id: Ints, start_s: Floats, end_s: Floats
    ) -> Trace:
        """Columns of one replica [ops], times of all [dp, ops]."""
        names = [OP_SPECS[code] for code in optype]
        in_pipeline = np.array([spec.stream not in ("", "dp-comm") for spec in names])
        of_a_chunk = in_pipeline | np.array([spec.name in _OF_A_CHUNK for spec in names])
        dp_size = self.parallelism.dp_size
        ranks_each = self.parallelism.tp_size * self.parallelism.dsp_size
        dp_rank = np.arange(dp_size)[:, None]
        columns = {
            "step": np.full(start_s.shape, step),
            "dp_rank": np.broadcast_to(dp_rank, start_s.shape),
            "stage": stage,
            "rank": (stage * dp_size + dp_rank) * ranks_each,
            "optype": optype,
            "seq_id": seq_id,
            "mc": np.where(of_a_chunk, 0, -1),
            "mb_id": np.where(in_pipeline, seq_id, -1),
            "start_s": start_s,
            "duration_s": end_s - start_s,
        }
        narrow = {name: column.astype(TRACE_DTYPES[name]) for name, column in columns.items()}
        return Trace(
            **{name: np.broadcast_to(each, start_s.shape).ravel() for name, each in narrow.items()}
        )
