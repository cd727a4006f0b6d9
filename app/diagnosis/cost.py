"""What does a cause cost? The steps are replayed as they would be without it.

    cost = (T' - T'_repaired) / T'

T' is the mean step time with recorded durations, and with the launch delays that some suspicion
is about put back before their computations; T'_repaired the same with only that suspicion's
operations repaired. T' = T where no such suspicion is held and no step is odd: an evaluation is
part of the time that a job takes, so both have what a replay leaves out of odd steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from app.diagnosis.case import Case
from app.diagnosis.detector import Suspicion
from app.diagnosis.repair import Repair, Repaired
from app.engine.parallel import all_of
from app.engine.replays import WindowReplay
from app.engine.simulate import RECORDED, edited_step_times
from app.engine.what_if import Replayer
from app.trace.window import Floats, Ints


@dataclass(frozen=True, slots=True)
class Costs:
    """Step times with blamed launch delays put back, T', and without each suspicion.

    Shapes: `blamed_s` [steps]; `repaired_s` [steps] for each suspicion, None where it has nothing
    to repair.
    """

    blamed_s: Floats
    repaired_s: tuple[Floats | None, ...]

    def of(self, index: int) -> float | None:
        """Share of the job's time that a suspicion costs; None where it has nothing to repair."""
        repaired_s = self.repaired_s[index]
        if repaired_s is None:
            return None
        return float(1.0 - repaired_s.mean() / self.blamed_s.mean())


def costs(case: Case, suspicions: Sequence[Suspicion]) -> Costs:
    """What each suspicion costs by itself."""
    replay, delays = case.replay, [each.delays for each in suspicions]
    blamed_s = _step_times(replay, delays, None)
    found = all_of(
        replay.size,
        [
            partial(_step_times, replay, _but(delays, index), each.repair)
            for index, each in enumerate(suspicions)
            if _is_replayed(each)
        ],
    )
    left_out_s = np.where(case.is_usual, 0.0, np.maximum(0.0, replay.recorded_s - blamed_s))
    answers = iter(found)
    return Costs(
        blamed_s + left_out_s,
        tuple(next(answers) + left_out_s if _is_replayed(each) else None for each in suspicions),
    )


def cost_once_others_are_mended(
    case: Case, suspicions: Sequence[Suspicion], index: int
) -> float | None:
    """What a suspicion would cost if all others were mended; None where it is not replayed.

    Where two are about the same operation, the one asked about decides what it should take.
    """
    mine, others = suspicions[index], [*suspicions[:index], *suspicions[index + 1 :]]
    if not _is_replayed(mine):
        return None
    repairs = [each.repair for each in others if each.repair is not None]
    delays = [mine.delays] if mine.delays is not None else []
    with_it = case.replay.joined(lambda group: _of_group(group, delays, repairs))
    if mine.repair is not None:
        repairs = [*repairs, mine.repair]
    without = case.replay.joined(lambda group: _of_group(group, [], repairs))
    return float(1.0 - without.mean() / with_it.mean())


def _is_replayed(suspicion: Suspicion) -> bool:
    return suspicion.repair is not None or suspicion.delays is not None


def _but(delays: Sequence[Repair | None], index: int) -> list[Repair | None]:
    """Those of all suspicions but one."""
    return [None if at == index else each for at, each in enumerate(delays)]


def _step_times(
    replay: WindowReplay, delays: Sequence[Repair | None], repair: Repair | None
) -> Floats:
    """[steps], seconds, with delays put back and one repair done."""
    put_back = [each for each in delays if each is not None]
    if not put_back and repair is None:
        return replay.simulated_s
    repairs = [] if repair is None else [repair]
    return replay.joined(lambda group: _of_group(group, put_back, repairs))


def _of_group(group: Replayer, delays: list[Repair], repairs: list[Repair]) -> Floats:
    edited = _Edited(group)
    for repair in repairs:
        edited.take(repair(group))
    for each in delays:
        edited.add(each(group))
    return edited.step_times()


class _Edited:
    """Durations of some rows that are not those recorded."""

    def __init__(self, group: Replayer) -> None:
        self._group = group
        self._source = np.full(group.graph.num_rows, RECORDED, np.int32)
        self._edited_s = np.empty((0, group.durations.recorded_s.shape[1]))

    def take(self, repaired: Repaired) -> None:
        """New durations; moments inside an operation come as much sooner as it is shorter."""
        inside, of_row = self._inside(repaired.rows)
        share = self._group.graph.milestone_share[inside][:, None]
        moments_s = repaired.duration_s[of_row] * share
        self._append(repaired.rows, repaired.duration_s)
        self._append(self._group.graph.num_ops + inside, moments_s)

    def add(self, delays: Repaired) -> None:
        """Seconds by which operations begin later, and all moments inside them come later."""
        inside, of_row = self._inside(delays.rows)
        rows = np.concatenate([delays.rows, self._group.graph.num_ops + inside])
        new = rows[self._source[rows] == RECORDED]
        self._append(new, self._group.durations.recorded_s[new])
        later_s = np.concatenate([delays.duration_s, delays.duration_s[of_row]])
        self._edited_s[self._source[rows]] += later_s

    def step_times(self) -> Floats:
        """[steps], seconds."""
        group = self._group
        if not len(self._edited_s):
            return group.simulated_s
        return edited_step_times(
            group.graph, group.durations, self._source, self._edited_s, group.peers
        )

    def _inside(self, rows: Ints) -> tuple[Ints, Ints]:
        """Milestones inside these operations, and the position in `rows` of each one's own."""
        milestone_of = self._group.graph.milestone_of
        if not milestone_of.size:
            return milestone_of, milestone_of
        position = np.full(self._group.graph.num_ops, -1, np.int64)
        position[rows] = np.arange(rows.size)
        of_row = position[milestone_of]
        inside = np.flatnonzero(of_row >= 0)
        return inside, of_row[inside]

    def _append(self, rows: Ints, duration_s: Floats) -> None:
        if not rows.size:
            return
        size = len(self._edited_s)
        self._source[rows] = np.arange(size, size + rows.size)
        own_s = np.ascontiguousarray(duration_s)
        self._edited_s = np.concatenate([self._edited_s, own_s]) if size else own_s.copy()
