"""The step time against the run's own earlier one: everybody may have become slower alike.

What was usual is the level before the step time last rose for good, as the diagnosis sees it, and
the median of all earlier steps where it did not rise: so a job that stays slow stays slow.
"""

from collections.abc import Mapping

import numpy as np
from typing_extensions import override

from app.alerts.facts import WindowFacts
from app.alerts.readings.figure import Figure, share_of_ratio
from app.alerts.rule import Rule
from app.diagnosis.onset import latest_onset

# Fewer steps do not show what is usual: the first ones are slow in most jobs.
MIN_STEPS_BEFORE = 16


class StepTime(Figure):
    """The window's median step time by what was usual before, within one run."""

    on = "step-time"
    unit = "ratio"
    rest = 1.0
    is_of_run = True
    verdicts = frozenset({"ok", "low"})  # it is recorded, whatever the replay makes of it

    @override
    def values(self, rule: Rule, facts: WindowFacts) -> Mapping[str, float] | None:
        before_s, now_s = facts.earlier_step_s, np.asarray(facts.recorded_s)
        if before_s.size < MIN_STEPS_BEFORE or not now_s.size:
            return None
        onset = latest_onset(np.concatenate([before_s, now_s]))
        usual_s = float(np.median(before_s)) if onset is None else onset.before
        return {"": float(np.median(now_s)) / usual_s} if usual_s > 0 else None

    @override
    def lost_share(self, facts: WindowFacts, value: float) -> float | None:
        return share_of_ratio(value)
