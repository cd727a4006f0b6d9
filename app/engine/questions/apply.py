"""Durations after some edits; only rows that differ from the recorded ones are stored.

Before an edit the durations of row r are `level_s[r]` in all lanes or, where that is NaN, row
`before[r]` of `edited_s` or, where that is negative, row r of `recorded_s`. After it they are row
`after[r]` of `edited_s`. Of row r the lanes are changed where `mask[stage[r]]` holds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from app.engine.kernels import in_parallel, kernel
from app.engine.questions.edits import Add, DurationChange, Factor, FromWorker, Ideal, Set
from app.engine.questions.selection import Mask, Region
from app.engine.what_if import RECORDED, Replayer, Sources
from app.trace.window import Floats, Ints


@kernel
def change_rows(  # type: ignore[no-untyped-def]
    recorded_s, edited_s, rows, level_s, before, after, mask, reach, stage,
    factor, shift_s, least_s,
):  # fmt: skip
    """Some `rows`: `factor` times as long and `shift_s[row]` longer, but at least `least_s`.

    Values already below `least_s` may stay below. `reach` [stages, 2] is the range of lanes in the
    mask.
    """
    for row in rows:
        here, mine = stage[row], after[row]
        if not np.isnan(level_s[row]):
            edited_s[mine, :] = level_s[row]
        elif before[row] < 0:
            for lane in range(edited_s.shape[1]):
                edited_s[mine, lane] = recorded_s[row, lane]
        for lane in range(reach[here, 0], reach[here, 1]):
            was_s = edited_s[mine, lane]
            changed_s = max(min(least_s, was_s), was_s * factor + shift_s[row])
            edited_s[mine, lane] = changed_s if mask[here, lane] else was_s


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
        # A row to itself and a level for each, at most; memory not written to costs nothing.
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
        self._change_lanes(affine, region, np.flatnonzero(region.rows & ~levelled))
        was_s = level_s[levelled] * affine.factor if affine.factor else 0.0
        least_s = np.fmin(affine.least_s, level_s[levelled])
        level_s[levelled] = np.maximum(least_s, was_s + affine.shift_s[levelled])

    def _change_lanes(self, affine: _Affine, region: Region, rows: Ints) -> None:
        before, mask, stage = self._slot.copy(), _by_lane(region), self._template.stage
        self._give_slots(rows)
        reach = _reach(mask)
        in_parallel(
            rows.size * mask.shape[1],
            rows.size,
            lambda first, end: change_rows(
                self._recorded_s, self._times_s, rows[first:end], self._level_s, before,
                self._slot, mask, reach, stage, affine.factor, affine.shift_s, affine.least_s,
            ),
        )  # fmt: skip
        self._level_s[rows] = np.nan

    def _copy(self, change: FromWorker, region: Region) -> int:
        """Copy durations of counterparts; returns the number of operations without one."""
        twin, stage = self._twins(change.stage), self._template.stage
        with_twin, without = region.rows & (twin >= 0), region.rows & (twin < 0)
        rows, before, mask = np.flatnonzero(with_twin), self._slot.copy(), _by_lane(region)
        self._give_slots(rows)
        num_steps = len(self._group.steps)
        theirs = slice(change.dp_rank * num_steps, (change.dp_rank + 1) * num_steps)

        def copy(first: int, end: int) -> None:
            for some in np.array_split(rows[first:end], 1 + (end - first) // _ROWS_AT_ONCE):
                # What is copied from is only given what it has, so the order of rows is no matter.
                copied_s = np.tile(
                    self._durations_s(twin[some], before, theirs), self._group.dp_size
                )
                kept_s = self._durations_s(some, before, slice(None))
                self._times_s[self._slot[some]] = np.where(mask[stage[some]], copied_s, kept_s)

        in_parallel(rows.size * mask.shape[1], rows.size, copy)
        self._level_s[rows] = np.nan
        return Region(without, region.lanes).num_ops(stage)

    def _durations_s(self, rows: Ints, before: Ints, lanes: slice) -> Floats:
        """[rows, lanes], durations; `before` [graph rows] are the rows in `_times_s`."""
        found = self._recorded_s[rows, lanes]
        own, levelled = before[rows] >= 0, ~np.isnan(self._level_s[rows])
        found[own] = self._times_s[before[rows[own]], lanes]
        found[levelled] = self._level_s[rows[levelled], None]
        return found

    def _twins(self, stage: int) -> Ints:
        """[ops], the operation of a stage with the same type and `seq_id`; -1 is none."""
        template = self._template
        kinds = np.stack([template.optype, template.seq_id], axis=1).tolist()
        there = np.flatnonzero(template.stage == stage).tolist()
        found = {tuple(kinds[op]): op for op in there}
        return np.array([found.get(tuple(kind), -1) for kind in kinds], np.int64)

    def _give_slots(self, rows: Ints) -> None:
        new = rows[self._slot[rows] < 0]
        self._slot[new] = np.arange(self._num_slots, self._num_slots + new.size)
        self._num_slots += new.size


def _by_lane(region: Region) -> Mask:
    """[pp, lanes], whether a stage's operations are selected there."""
    return region.lanes.reshape(region.lanes.shape[0], -1)


def _reach(mask: Mask) -> Ints:
    """[pp, 2], the first lane that is selected on a stage and the end of the last one."""
    from_start, from_end = mask.argmax(axis=1), mask[:, ::-1].argmax(axis=1)
    ends = np.where(mask.any(axis=1), mask.shape[1] - from_end, from_start)
    return np.stack([from_start, ends], axis=1).astype(np.int64)
