"""Says once, early, that the server does not answer and what to do; and once that it does again."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..recording.wire import Worker

# The server may be starting at the same moment.
SAY_AFTER_S = 3.0
SAY_AFTER_FAILURES = 4
SPEAK_LATE_S = 30.0  # ranks that leave the first word to another

CHECK = "`python -m paceline_client` checks address, token and clocks from this machine"

log = logging.getLogger("paceline_client")


class FirstContact:
    """Whether the server has answered lately; one warning an outage.

    Rank 0 warns early. Others may see the same: one of each host warns much later, the rest never.
    """

    def __init__(
        self, address: str, worker: Worker, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._address = address
        self._clock = clock
        self._is_first = worker.rank == 0
        self.speaks = self._is_first or not worker.local_rank
        self._tried_s = clock()
        self._since_s: float | None = None  # begin of the first attempt that failed
        self._failures = 0
        self._said = False
        self._reason = ""

    def trying(self) -> None:
        """A request is about to be sent."""
        self._tried_s = self._clock()

    def failed(self, reason: str, *, is_answer: bool = False) -> None:
        """No answer, or one that asks to try again (`is_answer`), as a busy server's may."""
        self._since_s = self._tried_s if self._since_s is None else self._since_s
        self._failures += 1
        self._reason = reason
        failing_s = self._clock() - self._since_s
        is_enough = failing_s >= SAY_AFTER_S or self._failures >= SAY_AFTER_FAILURES
        if failing_s >= SPEAK_LATE_S or (self._is_first and is_enough and not is_answer):
            self._say()

    def ended(self) -> None:
        """The recorder ends, and what it still had is not accepted."""
        if self._failures:
            self._say()

    def _say(self) -> None:
        if self._said or not self.speaks:
            return
        self._said = True
        log.warning(
            "paceline: %s cannot be used (%s). Training goes on; operations are kept while there "
            "is room, and sent once it answers. Is PACELINE_URL right, and the server up? %s",
            self._address,
            self._reason,
            CHECK,
        )

    def succeeded(self) -> None:
        """The server has answered."""
        if self._said:
            log.warning("paceline: %s answers again", self._address)
        self._since_s, self._failures, self._said = None, 0, False


def advice_on(status: int) -> str:
    """What to do about a refusal, by its HTTP status."""
    if status == 401:
        return f"Is PACELINE_TOKEN a token of this server, and still valid? {CHECK}"
    if status == 403:
        return "Use a token with the scope ingest (`paceline token create --help`)"
    if status == 409:
        return "Give all ranks of one start the same run_key, and each new start a new one"
    return CHECK
