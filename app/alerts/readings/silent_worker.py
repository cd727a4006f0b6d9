"""Nothing comes of some workers while the others go on."""

from typing_extensions import override

from app.alerts.alert import Detail
from app.alerts.facts import SilenceFacts
from app.alerts.readings.quiet import Quiet


class SilentWorker(Quiet):
    """No step is complete without them, so there are no figures meanwhile."""

    on = "silent-worker"

    @override
    def is_known(self, facts: SilenceFacts) -> bool:
        # Where nobody sends, those who fell silent first are silent still; and a worker that was
        # silent before a restart may be among those that have not come yet.
        if facts.stalled_since_s is not None or facts.is_starting:
            return False
        return facts.silent_since_s is not None or not facts.has_unheard

    @override
    def holds(self, facts: SilenceFacts) -> bool:
        return facts.silent_since_s is not None

    @override
    def detail(self, facts: SilenceFacts) -> Detail:
        return Detail(
            on=self.on,
            num_gpus=facts.num_gpus,
            since_step=facts.last_step,
            names=tuple(facts.names),
            num_named=facts.num_silent,
        )
