"""The records of a simulated job's workers: executed steps, by the clocks of their hosts.

Besides operations, workers report interruptions: pauses within computations and waits before them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.errors import InvalidRequest
from app.synth.cluster import Worker
from app.synth.drawing import DrawnSteps, Interruption
from app.synth.schedules import ComputeKind
from app.synth.structure import ReplicaOp, ReplicaStructure
from app.trace.job import Job
from app.trace.ops import NUM_CODES, OP_CODES
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

JOB_START_NS = 1_790_000_000 * NS_PER_S  # since 1970


def times_ns(start_s: Floats, duration_s: Floats, began_s: Floats) -> tuple[Ints, Ints]:
    """Starts since the job began, and durations; starts and ends are rounded in the same way."""
    began_ns = np.rint(began_s * NS_PER_S).astype(np.int64)[:, None, None]
    start_ns = np.rint(start_s * NS_PER_S).astype(np.int64)
    end_ns = np.rint((start_s + duration_s) * NS_PER_S).astype(np.int64)
    return (start_ns + began_ns).ravel(), (end_ns - start_ns).ravel()


@dataclass(frozen=True, slots=True)
class WorkerStep:
    """The record of one worker and step: the slice `rows`."""

    step: int
    dp_rank: int
    stage: int
    rows: slice


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSteps(PlacedOps):
    """Successive steps as recorded, sorted by step, dp rank, stage, op type, seq_id.

    Shapes: all columns [ops]. `start_ns` counts from 1970, by the clock of the worker's host.
    `ended_s` is the start of the next step in true seconds since the job began.
    """

    job: Job
    steps: tuple[int, ...]
    hosts: Mapping[Worker, str]
    ended_s: float

    def parts(self) -> Iterator[WorkerStep]:
        """The parts by step and worker, in the order of the rows."""
        keys = np.stack([self.step, self.dp_rank, self.stage])
        is_new = (np.diff(keys, axis=1) != 0).any(axis=0)
        bounds = [0, *(np.flatnonzero(is_new) + 1).tolist(), self.num_ops]
        for first, end in pairwise(bounds):
            if first < end:
                step, dp_rank, stage = keys[:, first].tolist()
                yield WorkerStep(step, dp_rank, stage, slice(first, end))

    def window(self, epoch: int = 1) -> Window:
        """The window that the service assembles from the complete record."""
        skipped = self._skipped()
        incomplete = [skip.step for skip in skipped]
        steps = [step for step in self.steps if step not in incomplete]
        trace, origin_ns = self.trace(steps)
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
            partial=PartialSteps(skipped, *self.trace(incomplete)) if skipped else None,
        )

    def trace(self, numbers: list[int]) -> tuple[Trace, tuple[int, ...]]:
        """The record of some steps, and the origins of their times."""
        steps = np.array(numbers, np.int64)
        rows = np.isin(self.step, steps) if len(steps) < len(self.steps) else slice(None)
        start_ns, position = self.start_ns[rows], np.searchsorted(steps, self.step[rows])
        origin_ns = np.full(steps.size, np.iinfo(np.int64).max)
        np.minimum.at(origin_ns, position, start_ns)
        recorded = self.columns().items()
        columns = {name: values[rows] for name, values in recorded if not name.endswith("_ns")}
        columns["start_s"] = (start_ns - origin_ns[position]) / NS_PER_S
        columns["duration_s"] = self.duration_ns[rows] / NS_PER_S
        return Trace(**columns), tuple(origin_ns.tolist())

    def _skipped(self) -> tuple[SkippedStep, ...]:
        """The steps of which some worker reported nothing."""
        sizes = self.job.parallelism
        reported = np.zeros((len(self.steps), sizes.dp_size, sizes.pp_size), np.bool_)
        reported[np.searchsorted(self.steps, self.step), self.dp_rank, self.stage] = True
        return tuple(
            self._skipped_step(step, ~is_reported)
            for step, is_reported in zip(self.steps, reported, strict=True)
            if not is_reported.all()
        )

    def _skipped_step(self, step: int, is_silent: NDArray[np.bool_]) -> SkippedStep:
        missing = np.sort(self.job.parallelism.usual_ranks()[is_silent]).tolist()
        named = ", ".join(map(str, missing[:8])) + ", ..." * (len(missing) > 8)
        reason = f"rank{'s' * (len(missing) > 1)} {named} did not report the step in time"
        return SkippedStep(step, reason, tuple(missing))


@dataclass(frozen=True, slots=True)
class StepBlock:
    """Drawn durations of some steps, and the resulting times.

    Shapes: `start_s` and `end_s` [ops, steps, dp ranks], seconds from the start of the step, in the
    order of `structure.ops`.
    """

    structure: ReplicaStructure
    drawn: DrawnSteps
    start_s: Floats
    end_s: Floats

    def step_s(self) -> Floats:
        """[steps], seconds from the start of the step to its latest end."""
        return np.asarray(self.end_s.max(axis=(0, 2)))

    def columns(self) -> dict[str, NDArray[Any]]:
        """The columns of a trace, as arrays that broadcast to [steps, dp ranks, ops]."""
        ranks = self.structure.parallelism.usual_ranks()
        return {
            **self.structure.columns,
            "step": self.drawn.steps[:, None, None],
            "dp_rank": np.arange(len(ranks))[:, None],
            "rank": ranks[:, self.structure.columns["stage"]],
            "start_s": self.start_s.transpose(1, 2, 0),
            "duration_s": (self.end_s - self.start_s).transpose(1, 2, 0),
        }


def interruption_rows(
    notes: list[Interruption], block: StepBlock, began_s: Floats
) -> dict[str, Ints]:
    """The rows of interruptions, with `seq_id` in order of start."""
    first_s, last_s = np.array([_interruption_times(note, block) for note in notes]).T
    step = np.array([note.step for note in notes])
    start_ns, duration_ns = times_ns(
        first_s[:, None, None], (last_s - first_s)[:, None, None], began_s[step]
    )
    dp_rank, stage = np.array([(note.dp_rank, note.stage) for note in notes]).T
    rows = {
        "step": block.drawn.steps[step],
        "dp_rank": dp_rank,
        "stage": stage,
        "rank": block.structure.parallelism.usual_ranks()[dp_rank, stage],
        "optype": np.array([OP_CODES[note.name] for note in notes]),
        "mc": np.array([note.chunk for note in notes]),
        "mb_id": np.array([note.microbatch for note in notes]),
        "start_ns": start_ns,
        "duration_ns": duration_ns,
    }
    rows["seq_id"] = _sequence_numbers(rows)
    return rows


def _interruption_times(note: Interruption, block: StepBlock) -> tuple[float, float]:
    """Start and end in seconds from the start of the step."""
    names = [f"{note.direction.value}-compute", f"{note.direction.value}-input-compute"]
    ops = [ReplicaOp(note.stage, name, note.chunk, note.microbatch) for name in names]
    row = next(block.structure.row[op] for op in ops if op in block.structure.row)
    start_s = float(block.start_s[row, note.step, note.dp_rank])
    if note.name == "data-wait":
        return start_s - note.duration_s, start_s
    spare_s = float(block.end_s[row, note.step, note.dp_rank]) - start_s - note.duration_s
    return start_s + spare_s / 2, start_s + spare_s / 2 + note.duration_s


def _sequence_numbers(rows: dict[str, Ints]) -> Ints:
    """[rows] `seq_id`: the number within worker, type and step, by start."""
    order = np.lexsort([rows[n] for n in ("start_ns", "optype", "stage", "dp_rank", "step")])
    keys = np.stack([rows[name][order] for name in ("step", "dp_rank", "stage", "optype")])
    is_new = np.concatenate([[True], (np.diff(keys, axis=1) != 0).any(axis=0)])
    position = np.arange(order.size)
    seq_id = np.empty_like(order)
    seq_id[order] = position - np.maximum.accumulate(np.where(is_new, position, 0))
    return seq_id


GAP_S = 2e-3  # between the end of a step and the start of the next one

_COMPUTATIONS = tuple(kind.value for kind in ComputeKind)


@dataclass(frozen=True, slots=True)
class BlockRecorder:
    """Converts blocks to rows by the hosts' clocks.

    Shapes: `offset_s` and `drift` (a ratio) [dp ranks, stages]. `sizes` are bytes by operation
    type.
    """

    offset_s: Floats
    drift: Floats
    sizes: Mapping[str, int]

    def columns(self, block: StepBlock, began_s: Floats) -> dict[str, Ints]:
        """The recorded rows of a block whose steps began at `began_s` [steps]."""
        columns = block.columns() | self._optional(block)
        start_s, duration_s = columns.pop("start_s"), columns.pop("duration_s")
        rows = {
            name: np.broadcast_to(values, start_s.shape).ravel() for name, values in columns.items()
        }
        rows["start_ns"], rows["duration_ns"] = times_ns(start_s, duration_s, began_s)
        is_reported = ~block.drawn.is_silent.transpose(1, 2, 0)[
            ..., block.structure.columns["stage"]
        ]
        if not is_reported.all():
            rows = {name: column[is_reported.ravel()] for name, column in rows.items()}
        rows = self._annotated(rows, block, began_s)
        self._apply_clocks(rows)
        return rows

    def _apply_clocks(self, rows: dict[str, Ints]) -> None:
        if not (self.offset_s.any() or self.drift.any()):
            rows["start_ns"] += JOB_START_NS
            return
        at = rows["dp_rank"], rows["stage"]
        drift = self.drift[at]
        offset_ns = np.rint(self.offset_s * NS_PER_S).astype(np.int64)[at]
        offset_ns += np.rint(drift * rows["start_ns"]).astype(np.int64)
        rows["start_ns"] += JOB_START_NS + offset_ns
        rows["duration_ns"] += np.rint(drift * rows["duration_ns"]).astype(np.int64)

    def _optional(self, block: StepBlock) -> dict[str, Ints]:
        """Optional columns that broadcast to [steps, dp ranks, ops]; -1 is no value."""
        structure = block.structure
        optypes = np.array([op.optype for op in structure.ops])
        columns: dict[str, Ints] = {}
        if self.sizes:
            columns["bytes"] = np.array([self.sizes.get(name, -1) for name in optypes.tolist()])
        for names, axis, has_value in (
            (("tokens", "seq_len_sq"), "mb_id", np.isin(optypes, _COMPUTATIONS)),
            (("sm_clock_mhz", "temperature_c"), "stage", optypes == "optimizer"),
        ):
            for name in names:
                if (drawn := getattr(block.drawn, name)) is not None:
                    values = drawn.transpose(1, 2, 0)[..., structure.columns[axis]]
                    columns[name] = np.where(has_value, values, -1)
        return columns

    def _annotated(
        self, rows: dict[str, Ints], block: StepBlock, began_s: Floats
    ) -> dict[str, Ints]:
        """The rows together with those of interruptions."""
        drawn = block.drawn
        notes = [n for n in drawn.interruptions if not drawn.is_silent[n.stage, n.step, n.dp_rank]]
        if not notes:
            return rows
        more = interruption_rows(notes, block, began_s)
        none = np.full(len(notes), -1)
        return _in_order(
            {name: np.concatenate([rows[name], more.get(name, none)]) for name in rows}
        )


def with_start_times(
    blocks: Iterable[StepBlock], since_s: float
) -> Iterable[tuple[StepBlock, Floats, float]]:
    """Blocks with the true start times of their steps [steps] and of the next step.

    Skipped steps take as long as the step before them.
    """
    last, at_s, before_s = -1, since_s, 0.0
    for block in blocks:
        began_s = np.empty(block.drawn.steps.size)
        lasting_s = block.step_s() + GAP_S
        for position, step in enumerate(block.drawn.steps.tolist()):
            at_s += (step - last - 1) * before_s
            began_s[position] = at_s
            before_s = float(lasting_s[position])
            at_s += before_s
            last = step
        yield block, began_s, at_s


def concatenated(parts: Sequence[dict[str, Ints]]) -> dict[str, NDArray[Any]]:
    """The concatenated columns of successive blocks; optional columns may be missing in some."""
    columns = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        arrays = [part.get(name, np.full(part["step"].size, -1)) for part in parts]
        columns[name] = np.concatenate(arrays)
    return columns


def refuse_unordered_steps(steps: Sequence[int]) -> None:
    """Raise InvalidRequest unless there are steps, in ascending order."""
    if not steps:
        raise InvalidRequest("no steps: give at least one to simulate")
    if any(after <= before for before, after in pairwise(steps)):
        raise InvalidRequest("steps are recorded in order: give them ascending, each once")


def _in_order(rows: dict[str, Ints]) -> dict[str, Ints]:
    """The rows sorted by step, dp rank, stage, op type, seq_id."""
    key = np.zeros(rows["step"].size, np.int64)
    for name in ("step", "dp_rank", "stage", "optype", "seq_id"):
        key *= NUM_CODES if name == "optype" else int(np.ptp(rows[name])) + 1
        key += rows[name] - rows[name].min()
    order = np.argsort(key, kind="stable")
    return {name: column[order] for name, column in rows.items()}
