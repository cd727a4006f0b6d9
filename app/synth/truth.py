"""What is wrong with a made job, and what it really costs: the same job is made without it."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from app.synth.faults.fault import Fault
from app.synth.run import MadeJob, Watched
from app.trace.window import Floats, Ints


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Recorded step times of a job as it is, and as it would be without each of its faults.

    Shapes: `with_all_s` [steps]; `without_s` has [steps] for each fault, or None for one that
    makes nothing longer.
    """

    with_all_s: Floats
    without_s: tuple[Floats | None, ...]

    @classmethod
    def of(cls, made: MadeJob, steps: Sequence[int], watched: Watched = iter) -> "StepTimes":
        """The job is made once, and once more without each fault, from the same seed.

        `watched` sees each step of each of these jobs go by, for a progress bar.
        """
        return cls(
            step_times(made, steps, watched),
            tuple(
                step_times(without(made, index), steps, watched) if fault.is_slow else None
                for index, fault in enumerate(made.faults)
            ),
        )

    def costs(self, chosen: slice | Ints = slice(None)) -> list[float | None]:
        """Share of the job's time that each fault costs over the steps at these positions.

            cost = (T - T_without) / T

        T is the mean step time. Where faults share their effect, each counts as the last one.
        """
        total_s = float(self.with_all_s[chosen].sum())
        return [
            None if without_s is None else 1.0 - float(without_s[chosen].sum()) / total_s
            for without_s in self.without_s
        ]


def costs_of(made: MadeJob, steps: Sequence[int]) -> list[float | None]:
    """What each fault costs over these steps, as `StepTimes.costs` says."""
    return StepTimes.of(made, steps).costs()


def without(made: MadeJob, index: int) -> MadeJob:
    """The same job without one of its faults; the others strike as they did."""
    faults = list(made.faults)
    faults[index] = faults[index].undone()
    return replace(made, faults=tuple(faults))


def step_times(made: MadeJob, steps: Sequence[int], watched: Watched = iter) -> Floats:
    """[steps], recorded seconds of each step: latest end - earliest start, on the true clock."""
    return np.concatenate(
        [
            block.end_s.max(axis=(0, 2)) - block.start_s.min(axis=(0, 2))
            for block in made.blocks(steps, watched)
        ]
    )


def truth_of(made: MadeJob, steps: Sequence[int], watched: Watched = iter) -> dict[str, Any]:
    """The job's faults for JSON: cause, culprits, severity, when, and what each costs.

    `cost` is over all of `steps`, `cost_while_it_lasts` over those of them in which it lasts.
    """
    times = StepTimes.of(made, steps, watched)
    return {
        "schema": 1,
        "job": made.name,
        "seed": made.seed,
        "steps": [int(step) for step in steps],
        "step_time_s": times.with_all_s.tolist(),
        "faults": [_described(made, index, times, steps) for index in range(len(made.faults))],
    }


def _described(made: MadeJob, index: int, times: StepTimes, steps: Sequence[int]) -> dict[str, Any]:
    fault = made.faults[index]
    lasts = np.flatnonzero(fault.when.holds(np.asarray(steps)))
    without_s = times.without_s[index]
    return {
        "fault": fault.name,
        "cause": fault.cause,
        "culprits": [culprit.as_json() for culprit in fault.culprits(made.world)],
        "severity": severity(fault),
        "first_step": fault.when.first_step,
        "last_step": fault.when.last_step,
        "cost": times.costs()[index],
        "cost_while_it_lasts": times.costs(lasts)[index] if lasts.size else None,
        "step_time_without_s": None if without_s is None else without_s.tolist(),
    }


def severity(fault: Fault) -> dict[str, Any]:
    """The fault's own numbers, by their names."""
    return {each.name: getattr(fault, each.name) for each in fields(fault) if each.name != "when"}
