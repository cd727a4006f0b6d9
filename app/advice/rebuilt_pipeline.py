"""Predicts step times of a recorded job with another pipeline.

Replays keep a job's structure; other numbers of micro-batches and other schedules need other
operations. So the job is rebuilt at its recorded durations and simulated by `app/synth`, as it is
and as it would be, without launch delays. Only the ratio of the two is used: the predicted step is
T * rebuilt(new) / rebuilt(as is), and none is predicted unless rebuilt(as is) is within 3 % of T.

Large jobs are rebuilt from a few steps, and in each of them from the replicas with most work, since
all others wait for those.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from app.advice.change import Change
from app.advice.recorded_pipeline import (
    ONCE,
    PER_CHUNK,
    NotRebuilt,
    RecordedPipeline,
    recorded_pipeline,
)
from app.engine.what_if import Replayer
from app.errors import InvalidRequest
from app.synth.drawing import DrawnSteps
from app.synth.execution import Execution
from app.synth.schedules import ComputeKind, Schedule
from app.synth.structure import ReplicaStructure, replica_structure
from app.trace.job import Parallelism
from app.trace.ops import Direction
from app.trace.window import Floats, Ints


def step_times(
    parallelism: Parallelism, schedule: Schedule, counts: Sequence[int], drawn: DrawnSteps
) -> Floats:
    """Step times of replicas with their own numbers of micro-batches.

    Args:
        parallelism: sizes of the job.
        schedule: every replica's schedule.
        counts: micro-batches of each dp rank, at least 1.
        drawn: durations of at least the largest count; a replica uses the first ones.

    Returns:
        [steps], seconds from each step's start to the end of its last optimizer.

    Raises:
        InvalidRequest: a count is not possible.
    """
    if len(counts) != parallelism.dp_size or not 1 <= min(counts) <= max(counts):
        raise InvalidRequest(
            f"micro-batches {list(counts)}: give one number of 1 or more for each of "
            f"{parallelism.dp_size} dp ranks"
        )
    num_steps = drawn.is_silent.shape[1]
    computed_s = np.empty((parallelism.pp_size, num_steps, parallelism.dp_size))
    for count in sorted(set(counts)):
        schedule.check(parallelism, count)
        members = np.flatnonzero(np.asarray(counts) == count)
        structure = replica_structure(parallelism, count, schedule)
        alike = Execution(structure, of_dp_ranks(drawn, members.tolist()))
        computed_s[..., members] = alike.run_pipeline()
    ends = Execution(ReplicaStructure(parallelism, 0, ((),) * parallelism.pp_size), drawn)
    ends.finish(computed_s)
    return np.asarray(computed_s.max(axis=(0, 2)))


def of_dp_ranks(drawn: DrawnSteps, dp_ranks: Sequence[int]) -> DrawnSteps:
    """The durations of some dp ranks; those that all ranks share stay."""
    names = {field.name for field in fields(drawn)} - {"steps", "interruptions"}
    taken = {name: _taken(getattr(drawn, name), dp_ranks) for name in names}
    return replace(drawn, interruptions=[], **taken)


def _taken(values: Any, dp_ranks: Sequence[int]) -> Any:
    if values is None:
        return None
    if isinstance(values, dict):
        return {name: _taken(part, dp_ranks) for name, part in values.items()}
    return values if values.shape[-1] == 1 else values[..., list(dp_ranks)]


# Farther from T, the rebuilt job is another one.
MAX_ERROR = 0.03
# Operations that one simulation of a rebuilt job has at most, beyond 8 steps of 8 replicas.
MAX_OPS = 400_000
MIN_STEPS, MIN_REPLICAS = 8, 8


@dataclass(frozen=True)
class Rebuilt:
    """The steps that a job would make.

    `counts` [dp] are micro-batches of each replica; `drawn` has durations of all dp ranks of
    `parallelism`. `dp_ranks` [steps, replicas] are their dp ranks.
    """

    parallelism: Parallelism
    schedule: Schedule
    counts: Ints
    drawn: DrawnSteps
    dp_ranks: Ints

    def step_s(self) -> Floats:
        """[steps], seconds; raises InvalidRequest if the schedule cannot have these numbers."""
        return step_times(self.parallelism, self.schedule, self.counts.tolist(), self.drawn)


def step_s_of_variants(variants: Sequence[Rebuilt]) -> Floats:
    """[variants, steps], seconds, of jobs that differ in durations only; simulated together."""
    first = variants[0]
    drawn_variants = [variant.drawn for variant in variants]

    def joined(name: str) -> Any:
        return np.concatenate([getattr(drawn, name) for drawn in drawn_variants], axis=-2)

    drawn = replace(
        first.drawn,
        steps=np.concatenate([drawn.steps for drawn in drawn_variants]),
        is_silent=joined("is_silent"),
        weight_share=None if first.drawn.weight_share is None else joined("weight_share"),
        once_s={
            name: np.concatenate([drawn.once_s[name] for drawn in drawn_variants], axis=-2)
            for name in first.drawn.once_s
        },
        **{name: joined(name) for name in _COMPUTED_OR_MOVED},
    )
    return replace(first, drawn=drawn).step_s().reshape(len(variants), -1)


_COMPUTED_OR_MOVED = ("forward_s", "backward_s", "forward_transfer_s", "backward_transfer_s")


@dataclass(frozen=True)
class RebuiltPipeline:
    """A job that can be rebuilt, from the group of steps at `position` in its replay.

    `max_ops` bounds what one simulation takes.
    """

    recorded: RecordedPipeline
    position: int = 0
    max_ops: int = MAX_OPS

    @property
    def group(self) -> Replayer:
        """The steps from which durations are taken."""
        return self.recorded.group

    @property
    def num_microbatches(self) -> int:
        """Micro-batches of each replica in a step, as recorded."""
        return self.recorded.structure.num_microbatches

    def change(self, other_s: "Callable[[RebuiltPipeline], Floats]") -> Change:
        """The change by a fix that makes the job another pipeline.

        `other_s` are the times of the chosen steps of that pipeline, in seconds. The mean step of
        all groups changes by their ratio to those of the pipeline as it is.
        """

        def rebuild(groups: Sequence[Replayer]) -> float:
            current = self._of_groups(groups)
            before_s = float(np.concatenate([group.simulated_s for group in groups]).mean())
            return before_s * float(other_s(current).mean() / current.as_is_s.mean())

        return Change(rebuild=rebuild)

    def _of_groups(self, groups: Sequence[Replayer]) -> "RebuiltPipeline":
        """The same pipeline at the durations of other groups, of the structures of the replay's."""
        if groups[self.position] is self.group:
            return self  # with everything that it has computed already
        return replace(self, recorded=replace(self.recorded, group=groups[self.position]))

    @property
    def splits_backward(self) -> bool:
        """Whether gradients of inputs and of weights are computed apart, as recorded."""
        return ComputeKind.BACKWARD_WEIGHT in self.recorded.rows

    @cached_property
    def stage_s(self) -> Floats:
        """[pp, steps, dp], seconds that each worker computes of one micro-batch, on average."""
        group = self.group
        rows = np.concatenate(
            [rows.reshape(group.pp_size, -1) for rows in self.recorded.rows.values()], axis=1
        )
        total_s = np.stack([group.durations.recorded_s[ops].sum(axis=0) for ops in rows])
        by_lane = total_s.reshape(group.pp_size, group.dp_size, -1).transpose(0, 2, 1)
        return np.asarray(by_lane / self.num_microbatches)

    @cached_property
    def microbatch_s(self) -> Floats:
        """[dp], seconds that one more micro-batch takes: the longest stage's computations."""
        return np.asarray(self.stage_s.mean(axis=1).max(axis=0))

    @cached_property
    def fill_s(self) -> Floats:
        """[dp], seconds until the longest stage has work, and after it: the other stages'."""
        of_stage = self.stage_s.mean(axis=1)
        return np.asarray(of_stage.sum(axis=0) - of_stage.max(axis=0))

    def as_is(self) -> Rebuilt:
        """The job as recorded."""
        return self.with_counts([self.num_microbatches] * self.group.dp_size)

    def with_counts(self, counts: Sequence[int]) -> Rebuilt:
        """The job with these micro-batches on each dp rank; more of them repeat the recorded."""
        wanted = np.asarray(counts)
        dp_ranks = self._replicas(wanted)
        numbers = np.arange(int(wanted.max())) % self.num_microbatches
        sizes = replace(self.group.template.parallelism, dp_size=dp_ranks.shape[1], ep_size=1)
        drawn = self._drawn(numbers, dp_ranks)
        return Rebuilt(sizes, self.recorded.schedule, wanted[dp_ranks[0]], drawn, dp_ranks)

    @cached_property
    def as_is_s(self) -> Floats:
        """[chosen steps], seconds, of the job as recorded."""
        return self.as_is().step_s()

    def counts_s(self, counts: Sequence[int]) -> Floats:
        """[chosen steps], seconds, with these micro-batches on each dp rank."""
        key = tuple(counts)
        if key not in self._counts_s:
            self._counts_s[key] = self.with_counts(counts).step_s()
        return self._counts_s[key]

    @cached_property
    def _counts_s(self) -> dict[tuple[int, ...], Floats]:
        return {}

    @cached_property
    def steps(self) -> Ints:
        """Positions of the chosen steps in the group, evenly spread."""
        num_steps, dp_size = len(self.group.steps), self.group.dp_size
        lanes = self._max_lanes
        if lanes >= num_steps * dp_size:
            return np.arange(num_steps)
        chosen = min(num_steps, max(MIN_STEPS, lanes // dp_size))
        return np.linspace(0, num_steps - 1, chosen).round().astype(np.int64)

    @property
    def _max_lanes(self) -> int:
        return max(1, self.max_ops // self.recorded.structure.num_ops)

    def _replicas(self, counts: Ints) -> Ints:
        """[steps, replicas], the replicas of each count with most work, by chosen step.

        A column has replicas of one count, so that a step's replicas are simulated side by side.
        """
        dp_size, steps = self.group.dp_size, self.steps
        number = min(dp_size, max(MIN_REPLICAS, self._max_lanes // steps.size))
        if number == dp_size:
            return np.tile(np.arange(dp_size), (steps.size, 1))
        of_stage = self.stage_s[:, steps]
        longest_s = of_stage.max(axis=0)
        load_s = longest_s * counts + of_stage.sum(axis=0) - longest_s
        chosen = []
        for count in np.unique(counts):
            alike = np.flatnonzero(counts == count)
            most = min(alike.size, max(MIN_REPLICAS, number * alike.size // dp_size))
            order = np.argsort(-load_s[:, alike], axis=1, kind="stable")[:, :most]
            chosen.append(alike[order])
        return np.concatenate(chosen, axis=1)

    def _drawn(self, numbers: Ints, dp_ranks: Ints) -> DrawnSteps:
        """Recorded durations of these micro-batches, without launch delays."""
        group, rows = self.group, self.recorded.rows
        lanes = dp_ranks * len(group.steps) + self.steps[:, None]
        times = _RecordedTimes(group, lanes)
        forward_s = times.of(rows[ComputeKind.FORWARD][..., numbers])
        delay_s = np.zeros((*forward_s.shape[:3], 1, 1))
        weight_share = None
        if self.splits_backward:
            weight_s = times.of(rows[ComputeKind.BACKWARD_WEIGHT][..., numbers])
            backward_s = times.of(rows[ComputeKind.BACKWARD_INPUT][..., numbers]) + weight_s
            weight_share = weight_s / np.where(backward_s > 0, backward_s, 1.0)
        else:
            backward_s = times.of(rows[ComputeKind.BACKWARD][..., numbers])
        once_s = times.once()
        received = self.recorded.received
        return DrawnSteps(
            steps=np.asarray(group.steps)[self.steps],
            forward_s=forward_s,
            backward_s=backward_s,
            forward_delay_s=delay_s,
            backward_delay_s=delay_s,
            forward_transfer_s=times.of(received[Direction.FORWARD][..., numbers]),
            backward_transfer_s=times.of(received[Direction.BACKWARD][..., numbers]),
            once_s=once_s,
            once_delay_s=no_once_delays(once_s, group.pp_size),
            is_silent=np.zeros((group.pp_size, *lanes.shape), np.bool_),
            weight_share=weight_share,
            weight_delay_s=None if weight_share is None else delay_s,
        )


def rebuilt_pipeline(groups: Sequence[Replayer]) -> RebuiltPipeline | NotRebuilt:
    """The rebuilt job of a replay's groups, from the one with most steps, or why there is none."""
    position = max(range(len(groups)), key=lambda number: len(groups[number].steps))
    recorded = recorded_pipeline(groups[position])
    if isinstance(recorded, NotRebuilt):
        return recorded
    model = RebuiltPipeline(recorded, position)
    as_is_s = float(model.as_is_s.mean())
    simulated_s = float(model.group.simulated_s[model.steps].mean())
    if abs(as_is_s / simulated_s - 1) > MAX_ERROR:
        return NotRebuilt(
            f"the rebuilt pipeline takes {as_is_s:.3g} s a step, the replay {simulated_s:.3g} s: "
            f"no prediction is made above {MAX_ERROR:.0%} difference"
        )
    return model


def no_once_delays(once_s: dict[str, Floats], pp_size: int) -> dict[str, Floats]:
    """`once_delay_s` of these durations, with every operation launched as soon as it can be."""
    return {name: np.zeros((pp_size, step_s.shape[1], 1, 1)) for name, step_s in once_s.items()}


@dataclass(frozen=True)
class _RecordedTimes:
    """Durations in chosen lanes, [steps, replicas]."""

    group: Replayer
    lanes: Ints

    def of(self, rows: Ints) -> Floats:
        """[*rows, steps, replicas], seconds; 0 where there is no row, or a transfer is negative."""
        cells = rows[..., None, None]
        recorded_s = self.group.durations.recorded_s[cells, self.lanes]
        return np.where(cells < 0, 0.0, np.maximum(recorded_s, 0.0))

    def once(self) -> dict[str, Floats]:
        """{op type: [stages, chunks, steps, replicas]} of a step's ends."""
        template = self.group.template
        once_s = {}
        for name in ONCE:
            chunks = template.parallelism.vpp_size if name in PER_CHUNK else 1
            every_s = np.zeros((self.group.pp_size, chunks, *self.lanes.shape))
            for stage, of_type in enumerate(template.of_stage):
                for op in of_type[name]:
                    chunk = max(int(template.mc[op]), 0) if chunks > 1 else 0
                    recorded_s = self.group.durations.recorded_s[op, self.lanes]
                    every_s[stage, chunk] += np.maximum(recorded_s, 0.0)
            if name == "embedding-grads-all-reduce":
                every_s = every_s[[0, -1]] if self.group.pp_size > 1 else every_s[:0]
            once_s[name] = every_s
        return once_s
