"""Which steps are recorded: the server plans them ahead, so that all ranks record the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

MAX_PLANS = 8  # plans change now and then; older ones no longer apply


class RecordingPlan(NamedTuple):
    """From `from_step` on: the first `steps` of every `every` steps, by step number; or none."""

    version: int
    from_step: int
    enabled: bool
    every: int
    steps: int

    def records(self, step: int) -> bool:
        """Whether this plan records the step."""
        return self.enabled and step % self.every < self.steps

    def number(self, step: int) -> int:
        """Index among the recorded steps, from the step number alone, so that all ranks agree."""
        turn, at = divmod(step, self.every)
        return turn * min(self.steps, self.every) + at


class RecordingPlans:
    """The known plans, newest first; before the first one begins, every step is recorded."""

    def __init__(self) -> None:
        # Replaced as a whole, never changed, so that training reads it without a lock.
        self._newest_first: tuple[RecordingPlan, ...] = ()

    @property
    def version(self) -> int | None:
        """Version of the newest plan; None without any."""
        return self._newest_first[0].version if self._newest_first else None

    def records(self, step: int) -> bool:
        """Whether the step is recorded."""
        for plan in self._newest_first:
            if step >= plan.from_step:
                return plan.records(step)
        return True

    def records_groups(self, step: int, every: int) -> bool:
        """Whether group collectives are recorded: in one of `every` recorded steps."""
        for plan in self._newest_first:
            if step >= plan.from_step:
                return plan.records(step) and plan.number(step) % every == 0
        return step % every == 0

    def forget(self) -> None:
        """Drop all plans: the server has registered the run anew."""
        self._newest_first = ()

    def update(self, answer: Any) -> None:
        """Add the new plans of a server's answer."""
        known = {plan.version: plan for plan in self._newest_first}
        new = {plan.version: plan for plan in parse_plans(answer) if plan.version not in known}
        if new:
            versions = sorted({**known, **new}, reverse=True)[:MAX_PLANS]
            self._newest_first = tuple({**known, **new}[version] for version in versions)


def parse_plans(answer: Any) -> list[RecordingPlan]:
    """The valid plans of an answer: the one under "recording", and earlier ones."""
    current = answer.get("recording") if isinstance(answer, Mapping) else None
    if not isinstance(current, Mapping):
        return []
    earlier = current.get("earlier")
    plans = [current, *(earlier[:MAX_PLANS] if isinstance(earlier, list) else [])]
    return [plan for plan in map(_plan, plans) if plan is not None]


def _plan(fields: Any) -> RecordingPlan | None:
    if not isinstance(fields, Mapping) or not isinstance(fields.get("enabled"), bool):
        return None
    numbers = [fields.get(name) for name in ("version", "from_step", "every", "steps")]
    version, from_step, every, steps = (_whole(number) for number in numbers)
    if version is None or from_step is None or every is None or steps is None or every < 1:
        return None
    return RecordingPlan(version, from_step, fields["enabled"], every, steps)


def _whole(value: Any) -> int | None:
    is_whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return value if is_whole else None
