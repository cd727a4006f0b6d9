"""Root cause: a link or a network card goes up and down."""

from typing_extensions import override

from app.diagnosis.case import Case
from app.diagnosis.detector import Detector, Suspicion
from app.diagnosis.finding import RuledOut
from app.diagnosis.slow_transfers import transfers


class FlappingLink(Detector):
    """Transfers far above the usual one in bursts, and as usual between them."""

    cause = "flapping-link"

    @override
    def detect(self, case: Case) -> Suspicion | RuledOut:
        return transfers(case, self.cause, steady=False)
