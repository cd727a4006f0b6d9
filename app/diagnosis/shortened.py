"""Computations that took some times too long, as long as they should have taken."""

from dataclasses import dataclass

import numpy as np

from app.diagnosis.case import Case
from app.diagnosis.repair import Repaired
from app.engine.what_if import Replayer
from app.trace.window import Floats, Ints

# A computation so many times longer than usual has been interrupted.
_PAUSE = 3.0


@dataclass(frozen=True)
class Shortened:
    """A repair: divide forward and backward computations by factors [steps, dp, pp].

    What chance did to each computation is left in. Stages without any factor are left alone.
    """

    case: Case
    forward: Floats
    backward: Floats

    def __call__(self, group: Replayer) -> Repaired:
        """The group's computations without the factors."""
        features = self.case.group_of(group)
        at = self.case.at(features)
        rows, durations_s = [np.empty(0, np.int64)], [np.empty((0, group.grid.start_s.shape[1]))]
        for side, factor in (
            (features.forward, self.forward),
            (features.backward, self.backward),
        ):
            if side is None:
                continue
            for stage in np.flatnonzero((factor[at] != 1.0).any(axis=(0, 1))):
                of_stage = side.rows[stage][side.rows[stage] >= 0]
                lanes, usual_s = (
                    each[:, :, stage].T.ravel() for each in (factor[at], side.pace.mean_s)
                )
                recorded_s = group.durations.recorded_s[of_stage]
                rows.append(of_stage)
                durations_s.append(without(recorded_s, lanes, usual_s))
        return Repaired(np.concatenate(rows), np.concatenate(durations_s))


def without(recorded_s: Floats, factor: Floats, usual_s: Floats) -> Floats:
    """Durations by a factor shorter; one with a pause in it only by what is no pause.

    Args:
        recorded_s: [rows, lanes], seconds.
        factor: how many times too long they took, 1 = not at all.
        usual_s: seconds that such a computation takes, factor included.
    """
    shorter_s = recorded_s / factor
    has_pause = recorded_s > _PAUSE * usual_s
    if has_pause.any():
        shorter_s = np.where(has_pause, recorded_s - usual_s * (1 - 1 / factor), shorter_s)
    return shorter_s


def whole_stretch(usual: Ints, first: int, end: int, num_steps: int) -> slice:
    """Positions in all steps of a stretch [first, end) of usual ones.

    Odd steps before the first usual one, or after the last, belong to a stretch that begins or
    ends there.
    """
    return slice(
        0 if first == 0 else int(usual[first]),
        num_steps if end == usual.size else int(usual[end - 1]) + 1,
    )
