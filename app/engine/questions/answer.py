"""The answer to a user's own question: what each step would take."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from app.engine.questions.apply import EditCounts, edited_durations
from app.engine.questions.edits import DurationChange, Edit
from app.engine.questions.selection import Region, check_numbers, regions
from app.engine.replays import WindowReplay
from app.engine.what_if import Replayer, edited_step_times
from app.errors import InvalidRequest
from app.trace.window import Floats


@dataclass(frozen=True, slots=True, eq=False)
class WhatIfAnswer:
    """Times of the replayed steps with and without the edits.

    Shapes: all times [steps], seconds, in the order of `replay.steps`. `edits` has the counts of
    changed operations.
    """

    replay: WindowReplay
    recorded_s: Floats
    simulated_s: Floats
    ideal_s: Floats
    what_if_s: Floats
    edits: tuple[EditCounts, ...]

    @property
    def expected_s(self) -> Floats:
        """[steps], seconds that steps would really take: simulated, times recorded T / simulated T.

        A replay has no launch delays; steps with the edits keep their share of them. The mean is
        the recorded one times T_new / T.
        """
        launch_slowdown = self.recorded_s.mean() / self.simulated_s.mean()
        return np.asarray(self.what_if_s * launch_slowdown)

    @property
    def gpu_hours_saved(self) -> float:
        """GPU-hours of the window's recorded time that the edits would save; may be negative.

        recorded seconds x GPUs x (1 - T_new / T) / 3600
        """
        gpu_s = self.recorded_s.sum() * self.replay.window.job.num_gpus
        return float(gpu_s * (1 - self.what_if_s.mean() / self.simulated_s.mean()) / 3600)


class Questions:
    """Answers about one window; shared work is done once."""

    def __init__(self, replay: WindowReplay) -> None:
        self.replay = replay

    def answer(self, edits: Sequence[Edit]) -> WhatIfAnswer:
        """What if these edits were made, one after the other?

        Raises:
            InvalidRequest: an edit selects nothing, or names what the window does not have.
        """
        check_numbers(edits)
        chosen = [regions(self.replay, edit, number) for number, edit in enumerate(edits, 1)]
        asked = [
            _group_answer(
                group,
                [(edit.change, region) for edit, region in zip(edits, of_group, strict=True)],
            )
            for group, *of_group in zip(self.replay.groups, *chosen, strict=True)
        ]
        in_order = iter(asked)
        what_if_s = self.replay.joined(lambda _: next(in_order)[0])
        if not np.isfinite(what_if_s).all():
            raise InvalidRequest("the edits together make a step last for ever: take less of them")
        counts = zip(*(of_edits for _, of_edits in asked), strict=True)
        return WhatIfAnswer(
            self.replay,
            self.replay.recorded_s,
            self.replay.simulated_s,
            self.replay.ideal_s,
            what_if_s,
            tuple(EditCounts(*map(sum, zip(*of_groups, strict=True))) for of_groups in counts),
        )


def answer_as_json(answer: WhatIfAnswer) -> dict[str, Any]:
    """The answer as one object; n / 0 s is None.

    T_new is compared with T, the simulation of the recorded durations: neither has launch delays.
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
            "expected": answer.expected_s.tolist(),
        },
        "against_recorded": _against(answer.what_if_s, answer.simulated_s),
        "against_ideal": _against(answer.what_if_s, answer.ideal_s),
        "gpu_hours_saved": answer.gpu_hours_saved,
        "edits": [
            {"changed_ops": each.changed, "ops_without_counterpart": each.without_counterpart}
            for each in answer.edits
        ],
    }


def _group_answer(
    group: Replayer, changes: Sequence[tuple[DurationChange, Region]]
) -> tuple[Floats, tuple[EditCounts, ...]]:
    """Step times of one group after the edits, and the counts of each edit."""
    if not any(region.rows.any() for _, region in changes):
        return group.simulated_s, tuple(EditCounts(0, 0) for _ in changes)
    durations = edited_durations(group, changes)
    step_s = edited_step_times(
        group.graph, group.durations, durations.row_of, durations.times_s, group.peers
    )
    return step_s, durations.counts


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
