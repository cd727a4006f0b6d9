"""One trial: a simulated job, a prediction, and the same job with the fix really applied.

The job with the fix is simulated with another seed, so with other noise. Errors are points of the
step time before the fix: 100 * |T_new predicted - T_new achieved| / T.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

import numpy as np

from app.advice.advise import advise
from app.advice.facts import Facts
from app.advice.fix import AdviceCase, Fix
from app.advice.resplit_stages import megatron_layout
from app.engine.replays import prepare
from app.monitor import advice_case
from app.synth.job import SimulatedJob
from app.trace.window import Window

STEPS = 24
AFTER = range(STEPS, 2 * STEPS)
MAX_MEDIAN, MAX_P95, MAX_ERROR, MAX_SLOWER = 2.0, 4.0, 8.0, 1.0


class Prediction(Protocol):
    """A fix, or several together."""

    @property
    def step_s(self) -> float:
        """Predicted mean step, seconds."""


PredictionT = TypeVar("PredictionT", bound=Prediction)


@dataclass(frozen=True)
class Trial(Generic[PredictionT]):
    """A job's window, what its owner knows, the fix to ask for, and the step it takes with it.

    `predict` gives None where the fix is not advised; `achieved_s` is in seconds.
    """

    kind: str
    window: Window
    facts: Facts
    predict: Callable[[AdviceCase], PredictionT | None]
    achieved_s: Callable[[PredictionT], float]

    def outcome(self) -> "Outcome":
        """Predict, apply, compare."""
        case = advice_case(prepare(self.window), self.facts)
        fix = self.predict(case)
        if fix is None:
            return Outcome(self.kind, None, None)
        return Outcome(
            self.kind,
            100 * (1 - fix.step_s / case.step_s),
            100 * (1 - self.achieved_s(fix) / case.step_s),
        )


@dataclass(frozen=True)
class Outcome:
    """Points of the step before; both None where the fix was not advised."""

    kind: str
    predicted: float | None
    achieved: float | None

    @property
    def error(self) -> float | None:
        """Points between predicted and achieved."""
        if self.predicted is None or self.achieved is None:
            return None
        return abs(self.predicted - self.achieved)


def summary(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Number of jobs and of advised ones, errors in points, and jobs that became slower by 1 %."""
    errors = [each.error for each in outcomes if each.error is not None]
    slower = sum(each.achieved is not None and each.achieved < -MAX_SLOWER for each in outcomes)
    return {
        "jobs": len(outcomes),
        "advised": len(errors),
        "median": float(np.median(errors)) if errors else 0.0,
        "p95": float(np.percentile(errors, 95)) if errors else 0.0,
        "max": max(errors, default=0.0),
        "slower": slower,
    }


def is_within_limits(found: dict[str, float]) -> bool:
    """Whether the errors of a summary hold."""
    return (
        found["median"] <= MAX_MEDIAN
        and found["p95"] <= MAX_P95
        and found["max"] <= MAX_ERROR
        and found["slower"] == 0
    )


def advised(name: str) -> Callable[[AdviceCase], Fix | None]:
    """Asks for all fixes and takes the one of this name."""
    return lambda case: next((each for each in advise(case).fixes if each.name == name), None)


def recorded(job: SimulatedJob) -> Window:
    """The first steps of a job."""
    return job.record(range(STEPS)).window()


def simulated_step_s(job: SimulatedJob, steps: Sequence[int] = AFTER) -> float:
    """Seconds: mean simulated step, with other noise than the job's own."""
    window = replace(job, seed=job.seed + 1).record(steps).window()
    return float(prepare(window).simulated_s.mean())


def layers_of(layout: str) -> list[int]:
    """Layers of each stage in a layout of Megatron-LM that `megatron_layout` made."""
    stages = [stage.strip("EL") for stage in layout.split("|")]
    found = [0 if not each else int(each[2:] or 1) for each in stages]
    if megatron_layout(found) != layout:
        raise ValueError(f"not a layout of ours: {layout}")
    return found


def pasted_layers(fix: Fix) -> list[int]:
    """Layers of each stage in what a re-split says to paste."""
    return layers_of(fix.paste[0].text.split('"')[1])
