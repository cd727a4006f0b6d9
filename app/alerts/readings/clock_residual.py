"""How far apart the ends of one collective are, once the hosts' clocks have been set right."""

from collections.abc import Mapping

from typing_extensions import override

from app.alerts.facts import WindowFacts
from app.alerts.readings.figure import Figure
from app.alerts.rule import Rule


class ClockResidual(Figure):
    """In seconds; windows in which there is nothing to tell it from say nothing."""

    on = "clock-residual"
    unit = "seconds"
    is_exact = True

    @override
    def values(self, rule: Rule, facts: WindowFacts) -> Mapping[str, float] | None:
        residual_ms = facts.result["clocks"]["residual_ms"]
        return None if residual_ms is None else {"": residual_ms / 1e3}

    @override
    def lost_share(self, facts: WindowFacts, value: float) -> float | None:
        return None
