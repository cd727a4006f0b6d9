"""A window's facts as one rule sees them: who is over, and what a message would say of each."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.alerts.alert import Blame, Detail
from app.alerts.facts import WindowFacts
from app.alerts.look import Look
from app.alerts.readings.culprits import Finding
from app.alerts.readings.figure import Figure
from app.alerts.rule import Rule

_MOST_CULPRITS = 20


@dataclass(frozen=True, slots=True)
class SeenWindow:
    """The figures of one rule in one window; `values` are by subject."""

    rule: Rule
    figure: Figure
    facts: WindowFacts
    values: Mapping[str, float]

    def over(self, known: Collection[str]) -> list[str]:
        """Subjects over the threshold, the worst first, but for those `known` to have an alert."""
        above = self.rule.above
        over = [] if above is None else [
            subject
            for subject, value in self.values.items()
            if value >= above and subject not in known and self._is_sure(subject)
        ]  # fmt: skip
        return sorted(over, key=lambda subject: (-self.values[subject], subject))

    def cost(self, subject: str) -> float:
        """Share of the job's GPU time that one of them costs: what rules have in common."""
        return self.figure.lost_share(self.facts, self.values[subject]) or 0.0

    def look(self, subject: str, num_more: int = 0) -> Look:
        """What the window says of one of them."""
        value = self.values.get(subject)
        if value is None:
            return Look(None, detail=self._detail(None, None))
        finding = self.figure.blame(self.facts, subject)
        named = {} if finding is None else self.facts.accused.labels(finding)
        return Look(
            value,
            self._is_sure(subject),
            self.figure.is_found,
            replace(self._detail(value, finding), num_named=num_more),
            {**named, **self.figure.labels(self.facts, subject)},
        )

    def _is_sure(self, subject: str) -> bool:
        return self.figure.is_sure(self.rule, self.facts, subject)

    def _detail(self, value: float | None, finding: Finding | None) -> Detail:
        facts = self.facts
        share = None if value is None else self.figure.lost_share(facts, value)
        return Detail(
            on=self.rule.on,
            value=value,
            slowdown=facts.result["slowdown"],
            gpu_time_wasted=facts.result["gpu_time_wasted"],
            gpu_hours_lost_per_hour=None if share is None else share * facts.num_gpus,
            num_gpus=facts.num_gpus,
            since_step=None if finding is None else finding["onset_step"],
            window_id=facts.window_id,
            blame=None if finding is None else blame_of(finding),
        )


def blame_of(finding: Mapping[str, Any]) -> Blame:
    """A finding of a result, in short."""
    culprits = finding["culprits"]
    return Blame(
        cause=finding["cause"],
        sentence=finding["sentence"],
        cost=finding["cost"],
        confidence=finding["confidence"],
        culprits=tuple(culprits[:_MOST_CULPRITS]),
        num_culprits=len(culprits),
        since_step=finding["onset_step"],
    )
