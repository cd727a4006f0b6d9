"""How far the simulated steps are from the recorded ones: above 5 % no other figure is trusted."""

from collections.abc import Mapping

from typing_extensions import override

from app.alerts.facts import WindowFacts
from app.alerts.readings.figure import Figure
from app.alerts.rule import Rule
from app.engine.metrics import MAX_DISCREPANCY


class LowFidelity(Figure):
    """The discrepancy as a share; the only figure for which windows of low fidelity count."""

    on = "low-fidelity"
    unit = "share"
    usual_above = MAX_DISCREPANCY
    is_exact = True
    verdicts = frozenset({"ok", "low"})

    @override
    def values(self, rule: Rule, facts: WindowFacts) -> Mapping[str, float] | None:
        discrepancy = facts.result["fidelity"]["discrepancy"]
        return None if discrepancy is None else {"": discrepancy}

    @override
    def lost_share(self, facts: WindowFacts, value: float) -> float | None:
        return None
