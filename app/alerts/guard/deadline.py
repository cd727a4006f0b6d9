"""One moment by which everything has to be over, however slowly it goes on."""

import time
from collections.abc import Callable


class Deadline:
    """The moment `total_s` from now."""

    def __init__(self, total_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._end_s = monotonic() + total_s

    def left_s(self) -> float:
        """Seconds until then, more than 0.

        Raises:
            TimeoutError: none are left.
        """
        left_s = self._end_s - self._monotonic()
        if left_s <= 0:
            raise TimeoutError("out of time")
        return left_s
