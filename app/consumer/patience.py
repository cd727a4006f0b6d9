"""Waiting for a queue or a database that is away, longer each time in a row."""

import threading
from itertools import chain, repeat

import structlog

from app.errors import Unavailable

log = structlog.get_logger()

_RETRY_DELAYS_S = (0.2, 0.5, 1.0, 2.0)
_LONGEST_DELAY_S = 5.0


class Patience:
    """Counts the failures in a row; waits no longer than until `stop` is set."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self.renew()

    def renew(self) -> None:
        """All is well: the next failure is a first one."""
        self._delays_s = chain(_RETRY_DELAYS_S, repeat(_LONGEST_DELAY_S))

    def wait(self, error: Unavailable) -> None:
        """Say why, and return when it is time to try again."""
        delay_s = next(self._delays_s)
        log.warning("waiting", reason=str(error), retry_in_s=delay_s)
        self._stop.wait(delay_s)
