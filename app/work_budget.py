"""Time limit of a caller's computation, which also ends once the caller has gone.

A thread cannot be ended from outside. So the handler of a request sets a `WorkBudget`, and all
loops that may be long call `checkpoint`: each round of a replay, each statement of the database,
each piece of a text. Where no budget is set, as in the consumer and on the command line, it does
nothing.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from app.errors import CallerGone, NoPlace, TooCostly

_ASK_EVERY_S = 0.2  # how soon one that waits for another notices that its caller has gone
_RETRY_AFTER_S = 5


class WorkBudget:
    """The time of one computation in seconds, from now; thread-safe."""

    def __init__(self, seconds: float, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._monotonic = monotonic
        self._until_s = monotonic() + seconds
        self._is_cancelled = False

    def cancel(self) -> None:
        """End the computation at its next checkpoint: nobody waits for it any more."""
        self._is_cancelled = True

    def check(self) -> None:
        """Return if the computation may go on.

        Raises:
            CallerGone: `cancel` was called.
            TooCostly: the time is used up.
        """
        if self._is_cancelled:
            raise CallerGone
        if self._monotonic() > self._until_s:
            raise TooCostly(self._seconds)


_budget: ContextVar[WorkBudget | None] = ContextVar("paceline_work_budget", default=None)


@contextmanager
def within(budget: WorkBudget | None) -> Iterator[None]:
    """Let all that the block computes, in whichever thread, keep to this budget; None lifts it."""
    token = _budget.set(budget)
    try:
        yield
    finally:
        _budget.reset(token)


def checkpoint() -> None:
    """Return if the present computation may go on, or has no budget; raises as `check` does."""
    budget = _budget.get()
    if budget is not None:
        budget.check()


@contextmanager
def hold(lock: threading.Lock) -> Iterator[None]:
    """Hold the lock; as long as another computation has it, wait within the budget.

    Raises:
        CallerGone: nobody waits for it any more.
        NoPlace: the time is used up, by others.
    """
    while not lock.acquire(timeout=_ASK_EVERY_S):
        try:
            checkpoint()
        except TooCostly as error:
            raise NoPlace(
                "others computed for so long that this could not begin: try again",
                retry_after_s=_RETRY_AFTER_S,
            ) from error
    try:
        yield
    finally:
        lock.release()
