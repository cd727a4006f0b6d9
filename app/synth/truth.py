"""The faults of a simulated job and their true costs, by simulations without one of them."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from app.synth.job import SimulatedJob, StepProgress
from app.trace.window import Floats, Ints


@dataclass(frozen=True, slots=True)
class FaultStepTimes:
    """Recorded step times of a job with all of its faults, and without one of them.

    Shapes: `with_all_s` [steps]; `without_s` has one item [steps] per fault, None for faults that
    slow nothing down.
    """

    with_all_s: Floats
    without_s: tuple[Floats | None, ...]

    @classmethod
    def of(
        cls, job: SimulatedJob, steps: Sequence[int], progress: StepProgress = iter
    ) -> "FaultStepTimes":
        """Simulate the job, and again without one fault after the other, with the same seed.

        `progress` wraps the iteration over the steps of a simulation.
        """
        return cls(
            step_times(job, steps, progress),
            tuple(
                step_times(without_fault(job, index), steps, progress) if fault.is_slow else None
                for index, fault in enumerate(job.faults)
            ),
        )

    def costs(self, chosen: slice | Ints = slice(None)) -> list[float | None]:
        """Fractions of the job's time that the faults cost, over the steps at these positions.

            cost = (T - T_without) / T

        T is the mean step time. Overlapping effects count in full for every fault.
        """
        total_s = float(self.with_all_s[chosen].sum())
        return [
            None if without_s is None else 1.0 - float(without_s[chosen].sum()) / total_s
            for without_s in self.without_s
        ]


def without_fault(job: SimulatedJob, index: int) -> SimulatedJob:
    """The same job without one of its faults; the others keep their random numbers."""
    faults = list(job.faults)
    faults[index] = faults[index].baseline()
    return replace(job, faults=tuple(faults))


def step_times(job: SimulatedJob, steps: Sequence[int], progress: StepProgress = iter) -> Floats:
    """[steps], recorded seconds: latest end - earliest start, by the true clock."""
    return np.concatenate(
        [
            block.end_s.max(axis=(0, 2)) - block.start_s.min(axis=(0, 2))
            for block in job.blocks(steps, progress)
        ]
    )


def truth_of(
    job: SimulatedJob, steps: Sequence[int], progress: StepProgress = iter
) -> dict[str, Any]:
    """The job's faults for JSON: cause, culprits, severity, steps and cost.

    `cost` is over all of `steps`, `cost_while_it_lasts` over those with the fault.
    """
    times = FaultStepTimes.of(job, steps, progress)
    return {
        "schema": 1,
        "job": job.name,
        "seed": job.seed,
        "steps": [int(step) for step in steps],
        "step_time_s": times.with_all_s.tolist(),
        "faults": [_described(job, index, times, steps) for index in range(len(job.faults))],
    }


def _described(
    job: SimulatedJob, index: int, times: FaultStepTimes, steps: Sequence[int]
) -> dict[str, Any]:
    fault = job.faults[index]
    lasts = np.flatnonzero(fault.when.holds(np.asarray(steps)))
    without_s = times.without_s[index]
    return {
        "fault": fault.name,
        "cause": fault.cause,
        "culprits": [culprit.as_json() for culprit in fault.culprits(job.world)],
        "severity": {
            setting.name: getattr(fault, setting.name)
            for setting in fields(fault)
            if setting.name != "when"
        },
        "first_step": fault.when.first_step,
        "last_step": fault.when.last_step,
        "cost": times.costs()[index],
        "cost_while_it_lasts": times.costs(lasts)[index] if lasts.size else None,
        "step_time_without_s": None if without_s is None else without_s.tolist(),
    }
