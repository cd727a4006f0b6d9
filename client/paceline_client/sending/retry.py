"""When to retry: growing random delays, a retry budget, and a circuit breaker."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

BUDGET_SHARE = 0.1  # retries that each request adds to the budget
MAX_BUDGET = 10.0  # largest budget, in retries; also the initial one
BREAK_AFTER_FAILURES = 8  # in a row


class Backoff:
    """Growing delays between attempts, drawn at random so that workers spread out."""

    def __init__(self, first_s: float = 0.5, last_s: float = 30.0) -> None:
        self._first_s = first_s
        self.last_s = last_s
        self._attempts = 0

    def next_s(self, at_least_s: float = 0.0) -> float:
        """Delay before the next attempt; `at_least_s` is the server's Retry-After."""
        max_s = min(self.last_s, self._first_s * 2**self._attempts)
        self._attempts = min(self._attempts + 1, 30)
        return max(at_least_s, random.uniform(0.0, max_s))  # noqa: S311

    def reset(self) -> None:
        """Start over with short delays."""
        self._attempts = 0


class RetryBudget:
    """Limits retries to a tenth of the requests, so that they do not overload a failing server."""

    def __init__(self) -> None:
        self._saved = MAX_BUDGET

    def deposit(self) -> None:
        """Count a request that is sent for the first time."""
        self._saved = min(MAX_BUDGET, self._saved + BUDGET_SHARE)

    def spend(self) -> bool:
        """Take one retry from the budget; whether there was one."""
        if self._saved < 1.0:
            return False
        self._saved -= 1.0
        return True


class RetryPolicy:
    """Decides when the next request may be made.

    After `BREAK_AFTER_FAILURES` failures in a row, or with the budget spent, only one probe is
    sent per longest delay, until one succeeds.
    """

    def __init__(
        self, backoff: Backoff | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._backoff = backoff or Backoff()
        self._budget = RetryBudget()
        self._clock = clock
        self._failures = 0
        self._due_s = clock()

    @property
    def is_broken(self) -> bool:
        """Whether only rare probes are sent."""
        return self._failures >= BREAK_AFTER_FAILURES

    @property
    def is_waiting(self) -> bool:
        """Whether it is too early for the next attempt."""
        return self.wait_s() > 0

    def wait_s(self) -> float:
        """Seconds until the next attempt."""
        return max(0.0, self._due_s - self._clock())

    def first(self) -> None:
        """A new request is about to be sent."""
        self._budget.deposit()

    def succeeded(self) -> None:
        """The server has answered."""
        self._failures = 0
        self._backoff.reset()
        self._due_s = self._clock()

    def failed(self, retry_after_s: float = 0.0) -> None:
        """No answer, or one that asks to wait."""
        self._failures += 1
        paid = self._budget.spend()
        delay_s = self._backoff.next_s(retry_after_s)
        if self.is_broken or not paid:
            last_s = self._backoff.last_s
            delay_s = max(retry_after_s, random.uniform(0.5, 1.0) * last_s)  # noqa: S311
        self._due_s = self._clock() + delay_s
