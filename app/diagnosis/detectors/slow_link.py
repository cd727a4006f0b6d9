"""Root cause: a link, a network card or a dp group's network is slow, and stays so."""

from typing_extensions import override

from app.diagnosis.case import Case
from app.diagnosis.detector import Detector, Suspicion
from app.diagnosis.finding import RuledOut
from app.diagnosis.slow_transfers import transfers


class SlowLink(Detector):
    """Transfers far above the usual one, all the time since they began to be."""

    cause = "slow-link"

    @override
    def detect(self, case: Case) -> Suspicion | RuledOut:
        return transfers(case, self.cause, steady=True)
