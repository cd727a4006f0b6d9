"""Closes recorders at the end of their process, and turns them off in forked children."""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Iterable
from typing import Protocol

EXIT_S = 2.0  # for all recorders of the process together
DELIVERING_SHARE = 0.75  # the rest is for writing the remainder to disk and ending the threads


class Closable(Protocol):
    """A recorder, as its process ends."""

    def hurry(self) -> None:
        """Send the queue at once."""

    def flush(self, timeout_s: float) -> bool:
        """Whether everything was delivered in time."""

    def begin_closing(self) -> None:
        """Record nothing more."""

    def wait_closed(self, timeout_s: float) -> None:
        """Wait for the sender's thread to end."""

    def turn_off(self) -> None:
        """Record nothing, as in a child process."""


# Strong references: a script whose `main` returns drops its recorder before the process ends.
_live: set[Closable] = set()


def track(recorder: Closable) -> None:
    """Keep a recorder that sends alive until it is closed."""
    _live.add(recorder)


def untrack(recorder: Closable) -> None:
    """Forget a closed recorder."""
    _live.discard(recorder)


def close_all(recorders: Iterable[Closable], timeout_s: float) -> None:
    """Close all recorders, delivering as much as possible within the timeout."""
    closing = list(recorders)
    began_s = time.monotonic()
    for recorder in closing:
        untrack(recorder)
        recorder.hurry()
    for recorder in closing:
        recorder.flush(began_s + DELIVERING_SHARE * timeout_s - time.monotonic())
    for recorder in closing:
        recorder.begin_closing()
    for recorder in closing:
        recorder.wait_closed(max(0.0, began_s + timeout_s - time.monotonic()))


@atexit.register
def _close_at_exit() -> None:
    close_all(list(_live), EXIT_S)


def _turn_off_in_child() -> None:
    for recorder in list(_live):
        recorder.turn_off()
    _live.clear()  # or the child would wait at exit for a thread that it does not have


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_turn_off_in_child)
