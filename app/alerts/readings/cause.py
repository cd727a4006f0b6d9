"""A cause that was found, by the share of the job's GPU time that it costs."""

from collections.abc import Mapping
from fnmatch import fnmatchcase

from typing_extensions import override

from app.alerts.facts import WindowFacts
from app.alerts.readings.culprits import Finding
from app.alerts.readings.figure import Figure
from app.alerts.rule import Rule


class Cause(Figure):
    """For each cause the most costly finding; one of unknown cost has no loss to show."""

    on = "cause"
    unit = "share"
    # A cause that is rare costs another share in each window. What costs less is not found at all.
    is_found = True
    usual_clear = 0.02
    has_subjects = True
    # Where the replay is too far from the record, the diagnosis itself withholds its findings.
    verdicts = frozenset({"ok", "low"})

    @override
    def values(self, rule: Rule, facts: WindowFacts) -> Mapping[str, float] | None:
        if facts.findings is None:
            return None
        found: dict[str, float] = {}
        for finding in facts.findings:
            if finding["cost"] is not None and fnmatchcase(finding["cause"], rule.of):
                found.setdefault(finding["cause"], finding["cost"])
        return found

    @override
    def is_sure(self, rule: Rule, facts: WindowFacts, subject: str) -> bool:
        finding = self.blame(facts, subject)
        return finding is not None and bool(finding["confidence"] >= rule.min_confidence)

    @override
    def blame(self, facts: WindowFacts, subject: str) -> Finding | None:
        named = (each for each in facts.findings or () if each["cause"] == subject)
        return next((each for each in named if each["cost"] is not None), None)

    @override
    def lost_share(self, facts: WindowFacts, value: float) -> float | None:
        return value

    @override
    def labels(self, facts: WindowFacts, subject: str) -> Mapping[str, str]:
        return {"cause": subject}
