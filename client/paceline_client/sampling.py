"""Which steps are recorded: the server says it ahead, so that all ranks record the same ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

MAX_PLANS = 8  # the server changes its mind now and then; older plans are over


class Plan(NamedTuple):
    """From a step on: the first `steps` of every `every` steps, by step number; or none."""

    version: int
    from_step: int
    enabled: bool
    every: int
    steps: int

    def records(self, step: int) -> bool:
        """Whether the step is recorded, as far as this plan goes."""
        return self.enabled and step % self.every < self.steps

    def number(self, step: int) -> int:
        """Which of the recorded steps it is, by its own number alone: all ranks count alike."""
        turn, at = divmod(step, self.every)
        return turn * min(self.steps, self.every) + at


class Plans:
    """The plans heard of, newest first; before any of them begins, every step is recorded."""

    def __init__(self) -> None:
        # Replaced whole and never changed, so that training reads it without a lock.
        self._newest_first: tuple[Plan, ...] = ()

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
        """Whether what happens inside groups is recorded: in one of so many recorded steps."""
        for plan in self._newest_first:
            if step >= plan.from_step:
                return plan.records(step) and plan.number(step) % every == 0
        return step % every == 0

    def forget(self) -> None:
        """The run has begun anew at the server, and its plans are counted anew."""
        self._newest_first = ()

    def hear(self, answer: Any) -> None:
        """Take over the plans in a server's answer, those that are news."""
        known = {plan.version: plan for plan in self._newest_first}
        heard = {plan.version: plan for plan in parsed(answer) if plan.version not in known}
        if heard:
            versions = sorted({**known, **heard}, reverse=True)[:MAX_PLANS]
            self._newest_first = tuple({**known, **heard}[version] for version in versions)


def parsed(answer: Any) -> list[Plan]:
    """The plan that an answer holds under "recording", and those before it; none but good ones."""
    told = answer.get("recording") if isinstance(answer, Mapping) else None
    if not isinstance(told, Mapping):
        return []
    earlier = told.get("earlier")
    plans = [told, *(earlier[:MAX_PLANS] if isinstance(earlier, list) else [])]
    return [plan for plan in map(_plan, plans) if plan is not None]


def _plan(told: Any) -> Plan | None:
    if not isinstance(told, Mapping) or not isinstance(told.get("enabled"), bool):
        return None
    numbers = [told.get(name) for name in ("version", "from_step", "every", "steps")]
    version, from_step, every, steps = (_whole(number) for number in numbers)
    if version is None or from_step is None or every is None or steps is None or every < 1:
        return None
    return Plan(version, from_step, told["enabled"], every, steps)


def _whole(value: Any) -> int | None:
    is_whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return value if is_whole else None
