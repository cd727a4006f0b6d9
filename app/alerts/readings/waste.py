"""The share of the GPU time that stragglers waste, 1 - 1/S."""

from collections.abc import Mapping

from typing_extensions import override

from app.alerts.facts import WindowFacts
from app.alerts.readings.figure import Figure
from app.alerts.rule import Rule


class Waste(Figure):
    """Of the whole job, 0..1."""

    on = "waste"
    unit = "share"

    @override
    def values(self, rule: Rule, facts: WindowFacts) -> Mapping[str, float] | None:
        return {"": facts.result["gpu_time_wasted"]}
