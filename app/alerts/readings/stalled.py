"""Nothing comes of any worker: the job has ended, hangs or lost its network."""

from typing_extensions import override

from app.alerts.alert import Detail
from app.alerts.facts import SilenceFacts
from app.alerts.readings.quiet import Quiet


class Stalled(Quiet):
    """All of its GPUs do nothing that we know of."""

    on = "stalled"

    @override
    def is_known(self, facts: SilenceFacts) -> bool:
        # A job that hung and was started again sends nothing yet: it may hang again.
        return facts.is_only_scored or not facts.is_starting

    @override
    def holds(self, facts: SilenceFacts) -> bool:
        return facts.stalled_since_s is not None

    @override
    def detail(self, facts: SilenceFacts) -> Detail:
        return Detail(
            on=self.on,
            gpu_hours_lost_per_hour=float(facts.num_gpus),
            num_gpus=facts.num_gpus,
            since_step=facts.last_step,
        )
