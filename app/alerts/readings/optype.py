"""How much slower the job is because operations of one type are slower than they could be."""

from collections.abc import Mapping

from typing_extensions import override

from app.alerts.facts import WindowFacts
from app.alerts.readings.culprits import Finding
from app.alerts.readings.figure import Figure, share_of_ratio
from app.alerts.readings.matching import matching
from app.alerts.rule import Rule


class OpType(Figure):
    """For each operation type by its name."""

    on = "optype"
    unit = "ratio"
    rest = 1.0
    has_subjects = True

    @override
    def values(self, rule: Rule, facts: WindowFacts) -> Mapping[str, float] | None:
        return matching(rule.of, facts.result["optype_slowdown"])

    @override
    def blame(self, facts: WindowFacts, subject: str) -> Finding | None:
        found = facts.findings or ()
        return next(
            (each for each in found if subject in each["evidence"].get("optypes", ())), None
        )

    @override
    def lost_share(self, facts: WindowFacts, value: float) -> float | None:
        return share_of_ratio(value)
