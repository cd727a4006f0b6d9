"""The answer to a user's own question: the time of each step after the edits.

Only rows of durations that differ from the recorded ones are stored.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from app.engine.kernels import in_parallel
from app.engine.questions.edits import Add, DurationChange, Edit, Factor, FromWorker, Ideal, Set
from app.engine.questions.selection import Mask, Region, check_numbers, regions
from app.engine.replays import WindowReplay
from app.engine.what_if import RECORDED, Replayer, Sources
from app.errors import InvalidRequest
from app.trace.window import Floats, Ints

# Rows that are copied at once: of 8,192 lanes, 4 MB.
_ROWS_AT_ONCE = 64


class EditCounts(NamedTuple):
    """Number of operations that an edit changed, and that it could not change."""

    changed: int
    without_counterpart: int


@dataclass(frozen=True, slots=True)
class EditedDurations:
    """Durations of one group of steps after all edits.

    `row_of` [graph rows] is the row's durations in `times_s` [edited rows, lanes], or `RECORDED`.
    Rows may share durations.
    """

    row_of: Sources
    times_s: Floats
    counts: tuple[EditCounts, ...]


def edited_durations(
    group: Replayer, changes: Sequence[tuple[DurationChange, Region]]
) -> EditedDurations:
    """Durations after the changes, applied in order."""
    touched = np.zeros(group.template.num_ops, np.bool_)
    for _, region in changes:
        touched |= region.rows
    state = _State(group, touched)
    # What grows beyond all numbers is refused when it shows in the answer.
    with np.errstate(over="ignore", invalid="ignore"):
        counts = tuple(state.make(change, region) for change, region in changes)
        state.make_milestones()
        return EditedDurations(*state.written(), counts)


class _Affine(NamedTuple):
    """d becomes max(min(least_s, d), factor * d + shift_s[op])."""

    factor: float
    shift_s: Floats
    least_s: float


class _State:
    """Durations between two edits.

    A row has one duration in all lanes (`_level_s`), its own row of `_times_s` (`_slot`), or the
    recorded durations (NaN and `RECORDED`). Most rows of a question such as "no pipeline
    communication" have one duration, which costs next to nothing.
    """

    def __init__(self, group: Replayer, touched: Mask) -> None:
        self._group = group
        self._template = group.template
        self._recorded_s = group.durations.recorded_s
        self._is_touched = np.concatenate([touched, touched[group.graph.milestone_of]])
        # At most a row of its own and a level for every row; memory not written to costs nothing.
        most_rows = 2 * int(self._is_touched.sum())
        self._times_s = np.empty((most_rows, self._recorded_s.shape[1]))
        self._num_slots = 0
        self._slot = np.full(self._is_touched.size, RECORDED)
        self._level_s = np.full(self._is_touched.size, np.nan)

    def make(self, change: DurationChange, region: Region) -> EditCounts:
        """Apply one change."""
        num_ops = region.num_ops(self._template.stage)
        if isinstance(change, FromWorker):
            missing = self._copy(change, region)
            return EditCounts(num_ops - missing, missing)
        self._change(self._affine(change), region)
        return EditCounts(num_ops, 0)

    def make_milestones(self) -> None:
        """Set each milestone to its share of its operation's current duration."""
        graph, first = self._group.graph, self._template.num_ops
        for milestone in np.flatnonzero(self._is_touched[first:]):
            row, op = first + milestone, graph.milestone_of[milestone]
            share = graph.milestone_share[milestone]
            if np.isnan(self._level_s[op]) and self._slot[op] >= 0:
                self._give_slots(np.array([row]))
                np.multiply(
                    self._times_s[self._slot[op]], share, out=self._times_s[self._slot[row]]
                )
            self._level_s[row] = share * self._level_s[op]

    def written(self) -> tuple[Sources, Floats]:
        """`row_of` and `times_s` of the result; rows of one level share a row of `times_s`."""
        row_of, levelled = self._slot.copy(), np.flatnonzero(~np.isnan(self._level_s))
        levels_s, position = np.unique(self._level_s[levelled], return_inverse=True)
        num_rows = self._num_slots + levels_s.size
        self._times_s[self._num_slots : num_rows] = levels_s[:, None]
        row_of[levelled] = self._num_slots + position
        return row_of.astype(np.int32), self._times_s[:num_rows]

    def _affine(self, change: Factor | Add | Set | Ideal) -> _Affine:
        num_ops = self._template.num_ops
        match change:
            case Factor(factor):
                return _Affine(float(factor), np.zeros(num_ops), 0.0)
            case Add(seconds):
                return _Affine(1.0, np.full(num_ops, float(seconds)), 0.0)
            case Set(seconds):
                return _Affine(0.0, np.full(num_ops, float(seconds)), 0.0)
            case Ideal():
                # As reports have it: a transfer's ideal may be a little below 0.
                return _Affine(0.0, self._group.durations.ideal_s[:num_ops], -np.inf)

    def _change(self, affine: _Affine, region: Region) -> None:
        level_s = self._level_s[: self._template.num_ops]
        on_stage = np.asarray(region.lanes.all(axis=(1, 2)))
        is_known = ~np.isnan(level_s) if affine.factor else np.True_
        levelled = region.rows & on_stage[self._template.stage] & is_known

        def changed(rows: Ints, before_s: Floats, _: Ints) -> Floats:
            least_s = np.fmin(affine.least_s, before_s)
            return np.fmax(least_s, before_s * affine.factor + affine.shift_s[rows, None])

        self._write(np.flatnonzero(region.rows & ~levelled), region, changed)
        was_s = level_s[levelled] * affine.factor if affine.factor else 0.0
        least_s = np.fmin(affine.least_s, level_s[levelled])
        level_s[levelled] = np.maximum(least_s, was_s + affine.shift_s[levelled])

    def _copy(self, change: FromWorker, region: Region) -> int:
        """Copy durations of counterparts; returns the number of operations without one."""
        twin, num_steps = self._twins(change.stage), len(self._group.steps)
        with_twin, without = region.rows & (twin >= 0), region.rows & (twin < 0)
        of_twin = slice(change.dp_rank * num_steps, (change.dp_rank + 1) * num_steps)

        def copied(rows: Ints, _: Floats, before: Ints) -> Floats:
            # A twin in the region is given its own durations, so the order of rows is no matter.
            return np.tile(self._durations_s(twin[rows], before, of_twin), self._group.dp_size)

        self._write(np.flatnonzero(with_twin), region, copied)
        return Region(without, region.lanes).num_ops(self._template.stage)

    def _write(
        self, rows: Ints, region: Region, changed_of: Callable[[Ints, Floats, Ints], Floats]
    ) -> None:
        """Give some rows durations of their own, in the region's lanes the changed ones.

        `changed_of` is given rows, their durations [rows, lanes] and the slots before.
        """
        before, stage = self._slot.copy(), self._template.stage
        mask = region.lanes.reshape(region.lanes.shape[0], -1)  # [pp, lanes]
        self._give_slots(rows)

        def write(first: int, end: int) -> None:
            for part in np.array_split(rows[first:end], 1 + (end - first) // _ROWS_AT_ONCE):
                was_s = self._durations_s(part, before, slice(None))
                changed_s = changed_of(part, was_s, before)
                self._times_s[self._slot[part]] = np.where(mask[stage[part]], changed_s, was_s)

        in_parallel(rows.size * mask.shape[1], rows.size, write)
        self._level_s[rows] = np.nan

    def _durations_s(self, rows: Ints, before: Ints, lanes: slice) -> Floats:
        """[rows, lanes], durations; `before` [graph rows] are the rows in `_times_s`."""
        durations_s = self._recorded_s[rows, lanes]
        own, levelled = before[rows] >= 0, ~np.isnan(self._level_s[rows])
        durations_s[own] = self._times_s[before[rows[own]], lanes]
        durations_s[levelled] = self._level_s[rows[levelled], None]
        return durations_s

    def _twins(self, stage: int) -> Ints:
        """[ops], the operation of a stage with the same type and `seq_id`; -1 is none."""
        template = self._template
        kinds = list(zip(template.listed.optype, template.listed.seq_id, strict=True))
        by_kind = {kinds[op]: op for op in np.flatnonzero(template.stage == stage).tolist()}
        return np.array([by_kind.get(kind, -1) for kind in kinds], np.int64)

    def _give_slots(self, rows: Ints) -> None:
        new = rows[self._slot[rows] < 0]
        self._slot[new] = np.arange(self._num_slots, self._num_slots + new.size)
        self._num_slots += new.size


@dataclass(frozen=True, slots=True, eq=False)
class WhatIfAnswer:
    """The replay of the steps, and their times with the edits.

    `what_if_s` [steps] is in seconds, in the order of `replay.steps`. `edits` has the counts of
    changed operations.
    """

    replay: WindowReplay
    what_if_s: Floats
    edits: tuple[EditCounts, ...]

    @property
    def expected_s(self) -> Floats:
        """[steps], seconds that steps would really take: simulated, times recorded T / simulated T.

        A replay has no launch delays; steps with the edits keep their share of them. The mean is
        the recorded one times T_new / T.
        """
        launch_slowdown = self.replay.recorded_s.mean() / self.replay.simulated_s.mean()
        return np.asarray(self.what_if_s * launch_slowdown)

    @property
    def gpu_hours_saved(self) -> float:
        """GPU-hours of the window's recorded time that the edits would save; may be negative.

        recorded seconds x GPUs x (1 - T_new / T) / 3600
        """
        gpu_s = self.replay.recorded_s.sum() * self.replay.window.job.num_gpus
        return float(gpu_s * (1 - self.what_if_s.mean() / self.replay.simulated_s.mean()) / 3600)


@dataclass(frozen=True, slots=True, eq=False)
class Questions:
    """Answers about one window; shared work is done once."""

    replay: WindowReplay

    def answer(self, edits: Sequence[Edit]) -> WhatIfAnswer:
        """What if these edits were made, one after the other?

        Raises:
            InvalidRequest: an edit selects nothing, or names what the window does not have.
        """
        check_numbers(edits)
        chosen = [regions(self.replay, edit, number) for number, edit in enumerate(edits, 1)]
        changes = [edit.change for edit in edits]
        answers = [
            _group_answer(group, list(zip(changes, of_group, strict=True)))
            for group, *of_group in zip(self.replay.groups, *chosen, strict=True)
        ]
        in_order = iter(answers)
        what_if_s = self.replay.joined(lambda _: next(in_order)[0])
        if not np.isfinite(what_if_s).all():
            raise InvalidRequest("the edits together make a step last for ever: take less of them")
        counts = zip(*(of_edits for _, of_edits in answers), strict=True)
        totals = (EditCounts(*map(sum, zip(*of_groups, strict=True))) for of_groups in counts)
        return WhatIfAnswer(self.replay, what_if_s, tuple(totals))


def answer_as_json(answer: WhatIfAnswer) -> dict[str, Any]:
    """The answer as one object; n / 0 s is None.

    T_new is compared with T, the simulation of the recorded durations: neither has launch delays.
    """
    replay = answer.replay
    return {
        "window": replay.window.id,
        "steps": list(replay.steps),
        "skipped_steps": [{"step": skip.step, "reason": skip.reason} for skip in replay.skipped],
        "step_time_s": {
            "recorded": replay.recorded_s.tolist(),
            "simulated": replay.simulated_s.tolist(),
            "ideal": replay.ideal_s.tolist(),
            "what_if": answer.what_if_s.tolist(),
            "expected": answer.expected_s.tolist(),
        },
        "against_recorded": _against(answer.what_if_s, replay.simulated_s),
        "against_ideal": _against(answer.what_if_s, replay.ideal_s),
        "gpu_hours_saved": answer.gpu_hours_saved,
        "edits": [
            {"changed_ops": counts.changed, "ops_without_counterpart": counts.without_counterpart}
            for counts in answer.edits
        ],
    }


def _group_answer(
    group: Replayer, changes: Sequence[tuple[DurationChange, Region]]
) -> tuple[Floats, tuple[EditCounts, ...]]:
    """Step times of one group after the edits, and the counts of each edit."""
    if not any(region.rows.any() for _, region in changes):
        return group.simulated_s, tuple(EditCounts(0, 0) for _ in changes)
    durations = edited_durations(group, changes)
    return group.edited_s(durations.row_of, durations.times_s), durations.counts


def _against(what_if_s: Floats, other_s: Floats) -> dict[str, Any]:
    means = float(what_if_s.mean()), float(other_s.mean())
    pairs = list(zip(what_if_s.tolist(), other_s.tolist(), strict=True))
    return {
        "slowdown": _ratio(*means),
        "speed_up": _ratio(*reversed(means)),
        "per_step": {
            "slowdown": [_ratio(new_s, old_s) for new_s, old_s in pairs],
            "speed_up": [_ratio(old_s, new_s) for new_s, old_s in pairs],
        },
    }


def _ratio(above: float, below: float) -> float | None:
    return above / below if below > 0 else None
