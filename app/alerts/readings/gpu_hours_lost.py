"""GPU-hours that stragglers waste in an hour of the job: the same share costs a large job more."""

from collections.abc import Mapping

from typing_extensions import override

from app.alerts.facts import WindowFacts
from app.alerts.readings.figure import Figure
from app.alerts.rule import Rule


class GpuHoursLost(Figure):
    """Of the whole job, its GPUs times the share that is wasted."""

    on = "gpu-hours-lost"
    unit = "GPU-hours an hour"

    @override
    def values(self, rule: Rule, facts: WindowFacts) -> Mapping[str, float] | None:
        return {"": facts.num_gpus * facts.result["gpu_time_wasted"]}
