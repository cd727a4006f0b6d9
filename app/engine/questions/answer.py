"""The answer to a user's own question: what each step would take."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from app.engine.questions.apply import Counts, edited
from app.engine.questions.checks import check_numbers
from app.engine.questions.edits import Change, Edit
from app.engine.questions.selection import Region, regions
from app.engine.replays import WindowReplay
from app.engine.simulate import edited_step_times
from app.engine.what_if import Replayer
from app.errors import InvalidRequest
from app.trace.window import Floats


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """What the replayed steps take after all edits, beside what they take without.

    Shapes: all times [steps], seconds, in the order of `replay.steps`. `edits` says of each edit
    how many operations it changed.
    """

    replay: WindowReplay
    recorded_s: Floats
    simulated_s: Floats
    ideal_s: Floats
    what_if_s: Floats
    edits: tuple[Counts, ...]

    @property
    def gpu_hours_saved(self) -> float:
        """GPU-hours of the window's recorded time that the edits would win back; may be negative.

        recorded seconds x GPUs x (1 - T_new / T) / 3600
        """
        gpu_s = self.recorded_s.sum() * self.replay.window.job.num_gpus
        return float(gpu_s * (1 - self.what_if_s.mean() / self.simulated_s.mean()) / 3600)


class Questions:
    """Answers about one window; what they have in common is worked out once."""

    def __init__(self, replay: WindowReplay) -> None:
        self.replay = replay

    def answer(self, edits: Sequence[Edit]) -> Answer:
        """What if these edits were made, one after the other?

        Raises:
            InvalidRequest: an edit selects nothing, or names what the window does not have.
        """
        check_numbers(edits)
        chosen = [regions(self.replay, edit, number) for number, edit in enumerate(edits, 1)]
        asked = [
            _asked(group, [(edit.change, each) for edit, each in zip(edits, of_group, strict=True)])
            for group, *of_group in zip(self.replay.groups, *chosen, strict=True)
        ]
        in_order = iter(asked)
        what_if_s = self.replay.joined(lambda _: next(in_order).step_s)
        if not np.isfinite(what_if_s).all():
            raise InvalidRequest("the edits together make a step last for ever: take less of them")
        counts = zip(*(each.counts for each in asked), strict=True)
        return Answer(
            self.replay,
            self.replay.recorded_s,
            self.replay.simulated_s,
            self.replay.ideal_s,
            what_if_s,
            tuple(_sum(of_groups) for of_groups in counts),
        )


def as_json(answer: Answer) -> dict[str, Any]:
    """The answer as one object; what cannot be said (n / 0 s) is None.

    Like is compared with like: recorded durations mean the simulation of them (T), in which no
    operation is launched late, as none is in the simulation of the edited ones (T_new).
    """
    window = answer.replay.window
    return {
        "window": window.id,
        "steps": list(answer.replay.steps),
        "skipped_steps": [
            {"step": skip.step, "reason": skip.reason} for skip in answer.replay.skipped
        ],
        "step_time_s": {
            "recorded": answer.recorded_s.tolist(),
            "simulated": answer.simulated_s.tolist(),
            "ideal": answer.ideal_s.tolist(),
            "what_if": answer.what_if_s.tolist(),
        },
        "against_recorded": _against(answer.what_if_s, answer.simulated_s),
        "against_ideal": _against(answer.what_if_s, answer.ideal_s),
        "gpu_hours_saved": answer.gpu_hours_saved,
        "edits": [
            {"changed_ops": each.changed, "ops_without_counterpart": each.without_counterpart}
            for each in answer.edits
        ],
    }


class _Asked(NamedTuple):
    """What came of the edits in one group: its step times, and what each edit did."""

    step_s: Floats
    counts: tuple[Counts, ...]


def _asked(group: Replayer, changes: Sequence[tuple[Change, Region]]) -> _Asked:
    if not any(region.rows.any() for _, region in changes):
        return _Asked(group.simulated_s, tuple(Counts(0, 0) for _ in changes))
    durations = edited(group, changes)
    step_s = edited_step_times(
        group.graph, group.durations, durations.row_of, durations.times_s, group.peers
    )
    return _Asked(step_s, durations.counts)


def _sum(counts: Sequence[Counts]) -> Counts:
    return Counts(
        sum(each.changed for each in counts), sum(each.without_counterpart for each in counts)
    )


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
