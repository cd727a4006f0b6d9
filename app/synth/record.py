"""What the workers of a simulated job would have recorded, each by its own host's clock."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.synth.cluster import Worker
from app.trace.job import Job
from app.trace.window import (
    NS_PER_S,
    Floats,
    Ints,
    PartialSteps,
    PlacedOps,
    SkippedStep,
    Trace,
    Window,
)

JOB_START_NS = 1_790_000_000 * NS_PER_S  # an epoch time such as clocks show


def times_ns(start_s: Floats, duration_s: Floats, began_s: Floats) -> tuple[Ints, Ints]:
    """Since the job began, by the true clock; ends are rounded as starts are."""
    began_ns = np.rint(began_s * NS_PER_S).astype(np.int64)[:, None, None]
    start_ns = np.rint(start_s * NS_PER_S).astype(np.int64)
    end_ns = np.rint((start_s + duration_s) * NS_PER_S).astype(np.int64)
    return (start_ns + began_ns).ravel(), (end_ns - start_ns).ravel()


@dataclass(frozen=True, slots=True)
class WorkerStep:
    """What one worker recorded of one step: the record's rows `rows`."""

    step: int
    dp_rank: int
    stage: int
    rows: slice


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSteps(PlacedOps):
    """Successive steps as recorded: rows by step, dp rank, stage, op type, seq_id.

    Shapes: all columns [ops]. `start_ns` is an epoch time by the clock of the worker's own host.
    `ended_s` is when the next step would begin: true seconds since the job began.
    """

    job: Job
    steps: tuple[int, ...]
    hosts: Mapping[Worker, str]
    ended_s: float

    def parts(self) -> Iterator[WorkerStep]:
        """One for every worker that reported something of a step, in the order of the rows."""
        keys = np.stack([self.step, self.dp_rank, self.stage])
        is_new = (np.diff(keys, axis=1) != 0).any(axis=0)
        bounds = [0, *(np.flatnonzero(is_new) + 1).tolist(), self.num_ops]
        for first, end in pairwise(bounds):
            if first < end:
                step, dp_rank, stage = keys[:, first].tolist()
                yield WorkerStep(step, dp_rank, stage, slice(first, end))

    def window(self, epoch: int = 1) -> Window:
        """The same as the service sees it once everything has come."""
        skipped = self._skipped()
        lacking = [each.step for each in skipped]
        steps = [step for step in self.steps if step not in lacking]
        trace, origin_ns = self._trace(steps)
        return Window(
            job=self.job,
            epoch=epoch,
            first_step=self.steps[0],
            steps=tuple(steps),
            trace=trace,
            skipped=skipped,
            state="incomplete" if skipped else "complete",
            hosts=dict(self.hosts),
            origin_ns=origin_ns,
            partial=PartialSteps(skipped, *self._trace(lacking)) if skipped else None,
        )

    def _trace(self, numbers: list[int]) -> tuple[Trace, tuple[int, ...]]:
        """What was recorded of some steps, and what their times count from."""
        steps = np.array(numbers, np.int64)
        rows = np.isin(self.step, steps) if len(steps) < len(self.steps) else slice(None)
        start_ns, position = self.start_ns[rows], np.searchsorted(steps, self.step[rows])
        origin_ns = np.full(steps.size, np.iinfo(np.int64).max)
        np.minimum.at(origin_ns, position, start_ns)
        columns = self._columns(rows)
        columns["start_s"] = (start_ns - origin_ns[position]) / NS_PER_S
        columns["duration_s"] = self.duration_ns[rows] / NS_PER_S
        return Trace(**columns), tuple(origin_ns.tolist())

    def _columns(self, rows: NDArray[np.bool_] | slice) -> dict[str, NDArray[Any]]:
        """What a trace has of the record as it is."""
        columns = self.columns().items()
        return {name: column[rows] for name, column in columns if not name.endswith("_ns")}

    def _skipped(self) -> tuple[SkippedStep, ...]:
        """Steps of which some worker reported nothing."""
        sizes = self.job.parallelism
        reported = np.zeros((len(self.steps), sizes.dp_size, sizes.pp_size), np.bool_)
        reported[np.searchsorted(self.steps, self.step), self.dp_rank, self.stage] = True
        return tuple(
            self._lacks(step, ~of_step)
            for step, of_step in zip(self.steps, reported, strict=True)
            if not of_step.all()
        )

    def _lacks(self, step: int, is_silent: NDArray[np.bool_]) -> SkippedStep:
        sizes = self.job.parallelism
        missing = sorted(sizes.usual_rank(*worker) for worker in np.argwhere(is_silent).tolist())
        named = ", ".join(map(str, missing[:8])) + ", ..." * (len(missing) > 8)
        reason = f"rank{'s' * (len(missing) > 1)} {named} did not report the step in time"
        return SkippedStep(step, reason, tuple(missing))
