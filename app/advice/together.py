"""The best set of at most three fixes, simulated together: gains do not add up.

Two causes hide each other (a step waits for the slowest), or one fix makes another pointless.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from app.advice.change import can_combine
from app.advice.fix import AdviceCase, Fix

MAX_TOGETHER = 3
# Sets of the fixes that win most by themselves are simulated: at most 6 pairs and 4 triples.
MAX_CANDIDATES = 4
# A set must be so much faster than the best smaller one to be worth another fix.
MIN_MORE = 1.01
# Both say how many layers, or micro-batches, a stage or replica has: what is to be pasted for one
# contradicts the other.
CONFLICTS = (
    frozenset({"other-schedule", "resplit-stages"}),
    frozenset({"other-schedule", "move-microbatches"}),
)


@dataclass(frozen=True, slots=True)
class FixSet:
    """Fixes that are made together, and the mean step in seconds with all of them."""

    fixes: tuple[Fix, ...]
    step_s: float

    @property
    def before_s(self) -> float:
        """T, seconds."""
        return self.fixes[0].before_s

    @property
    def speed_up(self) -> float:
        """T / T_new."""
        return self.before_s / self.step_s

    @property
    def gpu_hours_per_day(self) -> float:
        """GPU-hours that a day of training needs less."""
        return 24.0 * self.fixes[0].num_gpus * (1 - self.step_s / self.before_s)


def best_together(case: AdviceCase, fixes: Sequence[Fix]) -> FixSet | None:
    """The fastest set of two or three of the fixes; None if no set beats the best one by 1 %.

    `fixes` are sorted: those that are to be considered first come first.
    """
    candidates, best = fixes[:MAX_CANDIDATES], None
    limit_s = min((each.step_s for each in fixes), default=0.0)
    for size in range(2, MAX_TOGETHER + 1):
        found = [
            FixSet(each, case.step_s_with(*(fix.change for fix in each)))
            for each in combinations(candidates, size)
            if _fit_together(each)
        ]
        fastest = min(found, key=lambda each: each.step_s, default=None)
        if fastest is None or fastest.step_s * MIN_MORE > limit_s:
            break
        best, limit_s = fastest, fastest.step_s
    return best


def _fit_together(fixes: Sequence[Fix]) -> bool:
    """Whether no two remove the same cause, contradict each other, or rebuild the pipeline."""
    causes = [each.cause for each in fixes if each.cause is not None]
    names = {each.name for each in fixes}
    return (
        len(set(causes)) == len(causes)
        and not any(conflict <= names for conflict in CONFLICTS)
        and can_combine([each.change for each in fixes])
    )
