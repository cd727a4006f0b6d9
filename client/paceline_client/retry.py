"""When to try again: growing random delays, within a budget, and rarely once nobody answers."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

BUDGET_SHARE = 0.1  # retries that each request pays for
BUDGET_MOST = 10.0  # retries that may be saved up; also what there is to begin with
BREAKS_AFTER = 8  # failures in a row


class Backoff:
    """Growing delays between attempts, each drawn at random so that workers spread out."""

    def __init__(self, first_s: float = 0.5, last_s: float = 30.0) -> None:
        self._first_s = first_s
        self.last_s = last_s
        self._attempts = 0

    def next_s(self, at_least_s: float = 0.0) -> float:
        """Delay before the next attempt; `at_least_s` is what the server asked for."""
        most_s = min(self.last_s, self._first_s * 2**self._attempts)
        self._attempts = min(self._attempts + 1, 30)
        return max(at_least_s, random.uniform(0.0, most_s))  # noqa: S311

    def reset(self) -> None:
        """Begin again with short delays."""
        self._attempts = 0


class Budget:
    """Keeps retries to a tenth of the requests: a server in need is not hit harder still."""

    def __init__(self) -> None:
        self._saved = BUDGET_MOST

    def deposit(self) -> None:
        """Something was sent for the first time."""
        self._saved = min(BUDGET_MOST, self._saved + BUDGET_SHARE)

    def spend(self) -> bool:
        """Whether a retry is paid for."""
        if self._saved < 1.0:
            return False
        self._saved -= 1.0
        return True


class Attempts:
    """Decides when the next request may be made.

    After `BREAKS_AFTER` failures in a row, or with the budget spent, the circuit is broken: there
    is one probe per longest delay, until one succeeds.
    """

    def __init__(
        self, backoff: Backoff | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._backoff = backoff or Backoff()
        self._budget = Budget()
        self._clock = clock
        self._failures = 0
        self._due_s = clock()

    @property
    def is_broken(self) -> bool:
        """Whether only a probe now and then is made."""
        return self._failures >= BREAKS_AFTER

    @property
    def is_waiting(self) -> bool:
        """Whether it is too early for the next attempt."""
        return self.wait_s() > 0

    def wait_s(self) -> float:
        """Time until the next attempt."""
        return max(0.0, self._due_s - self._clock())

    def first(self) -> None:
        """Something is about to be sent that was never sent before."""
        self._budget.deposit()

    def succeeded(self) -> None:
        """There was an answer that makes sense."""
        self._failures = 0
        self._backoff.reset()
        self._due_s = self._clock()

    def failed(self, retry_after_s: float = 0.0) -> None:
        """There was none, or one that asks for patience."""
        self._failures += 1
        paid = self._budget.spend()
        delay_s = self._backoff.next_s(retry_after_s)
        if self.is_broken or not paid:
            last_s = self._backoff.last_s
            delay_s = max(retry_after_s, random.uniform(0.5, 1.0) * last_s)  # noqa: S311
        self._due_s = self._clock() + delay_s
