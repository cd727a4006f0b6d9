"""A made job: the trace its workers would have recorded, step by step."""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields

import numpy as np

from app.errors import InvalidRequest
from app.synth.costs import Costs
from app.synth.durations import Durations
from app.synth.execution import Execution
from app.synth.faults import Fault
from app.synth.schedules.one_f_one_b import OneFOneB
from app.synth.schedules.schedule import Schedule
from app.trace.job import Job, Parallelism
from app.trace.ops import OP_CODES, OP_SPECS, Kind
from app.trace.window import Trace

# Operations of a whole model chunk; the pipeline's own know their chunk and micro-batch.
_OF_A_CHUNK = ("params-all-gather", "grads-reduce-scatter")


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

    def make(self, steps: Iterable[int]) -> Trace:
        """Several steps' operations, each step in seconds from its own beginning."""
        return _joined([self.make_step(step) for step in steps])

    def _recorded(self, step: int, execution: Execution) -> Trace:
        return _joined([self._of_type(step, name, execution) for name in execution.start_s])

    def _of_type(self, step: int, name: str, execution: Execution) -> Trace:
        start_s, end_s = execution.start_s[name], execution.end_s[name]
        stage, seq_id, dp_rank = np.nonzero(np.isfinite(start_s))
        at = stage, seq_id, dp_rank
        code = OP_CODES[name]
        in_pipeline = "compute" in name or OP_SPECS[code].kind is Kind.P2P
        chunk = 0 if in_pipeline or name in _OF_A_CHUNK else -1
        ranks_each = self.parallelism.tp_size * self.parallelism.dsp_size
        return Trace(
            step=np.full(stage.size, step, dtype=np.int64),
            dp_rank=dp_rank,
            stage=stage,
            rank=(stage * self.parallelism.dp_size + dp_rank) * ranks_each,
            optype=np.full(stage.size, code, dtype=np.int16),
            seq_id=seq_id,
            mc=np.full(stage.size, chunk, dtype=np.int64),
            mb_id=seq_id if in_pipeline else np.full(stage.size, -1, dtype=np.int64),
            start_s=start_s[at],
            duration_s=end_s[at] - start_s[at],
        )


def _joined(parts: list[Trace]) -> Trace:
    if not parts:
        raise InvalidRequest("no steps: name at least one to make")
    return Trace(
        *(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(Trace))
    )
