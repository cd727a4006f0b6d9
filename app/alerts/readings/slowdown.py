"""The slowdown S: how many times longer steps take than without stragglers."""

from collections.abc import Mapping

from typing_extensions import override

from app.alerts.facts import WindowFacts
from app.alerts.readings.figure import Figure
from app.alerts.rule import Rule


class Slowdown(Figure):
    """Of the whole job."""

    on = "slowdown"
    unit = "ratio"
    rest = 1.0

    @override
    def values(self, rule: Rule, facts: WindowFacts) -> Mapping[str, float] | None:
        return {"": facts.result["slowdown"]}
