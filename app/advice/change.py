"""The change of a job by a fix, so that several fixes can be simulated together.

Durations change first: what-if edits, then repairs, then reassignments, each on the result of those
before. A rebuilt pipeline comes last, and only one of a set of fixes may have one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from app.diagnosis.repair import Repair
from app.engine.questions.answer import edited_durations
from app.engine.questions.edits import MAX_EDITS, Edit
from app.engine.questions.selection import regions
from app.engine.replays import WindowReplay
from app.engine.what_if import RECORDED, Replayer
from app.trace.window import Floats, Ints


class ChangedDurations:
    """Own (transfer) durations of one group of steps, some of them changed.

    Rows are those of the group's graph, lanes are dp_rank * steps + step position.
    """

    def __init__(self, group: Replayer) -> None:
        self.group = group
        self._source = np.full(group.graph.num_rows, RECORDED, np.int32)
        self._changed_s = np.empty((0, group.durations.recorded_s.shape[1]))

    def of(self, rows: Ints) -> Floats:
        """[rows, lanes], seconds now, as a copy."""
        times_s, source = self.group.durations.recorded_s[rows], self._source[rows]
        times_s[source >= 0] = self._changed_s[source[source >= 0]]
        return times_s

    def set(self, rows: Ints, duration_s: Floats) -> None:
        """New durations [rows, lanes] of some operations, each once, and of their milestones."""
        self._store(rows, duration_s)
        graph = self.group.graph
        position = np.full(graph.num_ops, -1, np.int64)
        position[rows] = np.arange(rows.size)
        of_row = position[graph.milestone_of]
        inside = np.flatnonzero(of_row >= 0)
        if inside.size:
            share = graph.milestone_share[inside][:, None]
            self._store(graph.num_ops + inside, duration_s[of_row[inside]] * share)

    def edit(self, replay: WindowReplay, edits: Sequence[Edit]) -> None:
        """Apply what-if edits to the recorded durations; before all other changes."""
        at = next(n for n, group in enumerate(replay.groups) if group is self.group)
        changes = [
            (edit.change, regions(replay, edit, number)[at]) for number, edit in enumerate(edits, 1)
        ]
        edited = edited_durations(self.group, changes)
        self._source, self._changed_s = edited.row_of.copy(), edited.times_s

    def step_times(self) -> Floats:
        """[steps], seconds of the simulated steps."""
        if not len(self._changed_s):
            return self.group.simulated_s
        return self.group.edited_s(self._source, self._changed_s)

    def replayer(self) -> Replayer:
        """The group with these durations as its recorded ones."""
        if not len(self._changed_s):
            return self.group
        # Faster than `of` all rows: most are as recorded.
        times_s = self.group.durations.recorded_s.copy()
        changed = np.flatnonzero(self._source >= 0)
        times_s[changed] = self._changed_s[self._source[changed]]
        return replace(self.group, durations=replace(self.group.durations, recorded_s=times_s))

    def _store(self, rows: Ints, duration_s: Floats) -> None:
        if not rows.size:
            return
        size = len(self._changed_s)
        self._source[rows] = np.arange(size, size + rows.size)
        self._changed_s = np.concatenate([self._changed_s, duration_s])


@dataclass(frozen=True, slots=True)
class Change:
    """The change of the job by a fix.

    `edits` is the same as a what-if question. `repair` removes what a finding is about (of the
    operations of each group of steps of the replay). `reassign` moves work between dp ranks and
    micro-batches. `rebuild` returns the mean step in seconds of another pipeline, from groups of
    steps with the durations so far. `added_s`, seconds a step, is time that no operation shows.
    """

    edits: tuple[Edit, ...] = ()
    repair: Repair | None = None
    reassign: Callable[[ChangedDurations], None] | None = None
    rebuild: Callable[[Sequence[Replayer]], float] | None = None
    added_s: float = 0.0

    @property
    def is_question(self) -> bool:
        """Whether the edits say all of it, so that a what-if question has the same answer."""
        has_others = self.repair or self.reassign or self.rebuild or self.added_s
        return 0 < len(self.edits) <= MAX_EDITS and not has_others


def can_combine(changes: Sequence[Change]) -> bool:
    """Whether the changes can be made together: at most one rebuilds the pipeline."""
    return sum(change.rebuild is not None for change in changes) <= 1


def mean_step_s(replay: WindowReplay, changes: Sequence[Change]) -> float:
    """Seconds: the mean simulated step with all of these changes.

    Raises:
        InvalidRequest: an edit selects nothing.
        ValueError: two changes rebuild the pipeline.
    """
    if not can_combine(changes):
        raise ValueError("two changes rebuild the pipeline: simulate one of them")
    groups = [_changed(replay, group, changes) for group in replay.groups]
    added_s = sum(change.added_s for change in changes)
    for change in changes:
        if change.rebuild is not None:
            return change.rebuild([durations.replayer() for durations in groups]) + added_s
    in_order = iter(groups)
    return float(replay.joined(lambda _: next(in_order).step_times()).mean()) + added_s


def _changed(replay: WindowReplay, group: Replayer, changes: Sequence[Change]) -> ChangedDurations:
    durations = ChangedDurations(group)
    edits = [edit for change in changes for edit in change.edits]
    if edits:
        durations.edit(replay, edits)
    for change in changes:
        if change.repair is not None:
            _repair(durations, change.repair)
    for change in changes:
        if change.reassign is not None:
            change.reassign(durations)
    return durations


def _repair(durations: ChangedDurations, repair: Repair) -> None:
    """Shorten the durations by as much as the repair shortens the recorded ones."""
    repaired = repair(durations.group)
    recorded_s = durations.group.durations.recorded_s[repaired.rows]
    now_s = durations.of(repaired.rows)
    # Where an edit has replaced the operation, it may be shorter already.
    least_s = np.minimum(now_s, repaired.duration_s)
    durations.set(repaired.rows, np.maximum(least_s, now_s - (recorded_s - repaired.duration_s)))
