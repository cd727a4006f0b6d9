"""Limits of failed logins by address, concurrent expensive work, and messages sent by hand.

Limits of requests and bytes are in `bodies.py`.
"""

import math
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from app.errors import TestLimit, TooManyRequests, Unavailable
from app.store import audit
from app.store.database import Connection


class FailureLimit:
    """Counts failures by client address, and refuses an address with too many."""

    def __init__(
        self,
        now_s: Callable[[], float],
        *,
        max_failures: int = 10,
        within_s: float = 60.0,
        attempts: str = "tokens",
    ) -> None:
        self._now_s = now_s
        self._max_failures = max_failures
        self._within_s = within_s
        self._attempts = attempts
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def check(self, address: str) -> None:
        """Raise TooManyRequests, with the time to wait, unless the address may try again."""
        failures = self._failures.get(address, deque())
        now_s = self._now_s()
        while failures and failures[0] <= now_s - self._within_s:
            failures.popleft()
        if len(failures) >= self._max_failures:
            wait_s = int(failures[0] + self._within_s - now_s) + 1
            raise TooManyRequests(
                f"too many unknown {self._attempts} from this address: wait", retry_after_s=wait_s
            )

    def add(self, address: str) -> None:
        """Count one failure; raises as `check` does, if there were too many before it."""
        self.check(address)
        self.note(address)

    def note(self, address: str) -> None:
        """Count one failure; the latest 10,000 addresses are kept."""
        self._failures.setdefault(address, deque()).append(self._now_s())
        self._failures.move_to_end(address)
        while len(self._failures) > 10_000:
            self._failures.popitem(last=False)


class ConcurrencyLimit:
    """Caps concurrent expensive work, and refuses all others; thread-safe."""

    def __init__(self, num_slots: int, refusal: str) -> None:
        self._slots = threading.BoundedSemaphore(num_slots)
        self._refusal = refusal

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Hold a slot for the length of the block; raises Unavailable if no slot is free."""
        if not self._slots.acquire(blocking=False):
            raise Unavailable(self._refusal)
        try:
            yield
        finally:
            self._slots.release()


MAX_MANUAL_SENDS = 10
MANUAL_SENDS_S = 600.0
_MANUAL_ACTIONS = ("endpoint.test", "delivery.replay")


def check_manual_send(conn: Connection, project: str, now_s: float) -> None:
    """Return if the project may send one more by hand, so that it cannot flood a receiver.

    Raises:
        TestLimit: the project has used up its allowance for now.
    """
    done_s = audit.times(conn, project, _MANUAL_ACTIONS, since_s=now_s - MANUAL_SENDS_S)
    if len(done_s) >= MAX_MANUAL_SENDS:
        wait_s = math.ceil(done_s[-MAX_MANUAL_SENDS] + MANUAL_SENDS_S - now_s)
        raise TestLimit(
            f"a project may send {MAX_MANUAL_SENDS} tests and replays in {MANUAL_SENDS_S / 60:g} "
            "minutes",
            retry_after_s=max(1, wait_s),
        )
