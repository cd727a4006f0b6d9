"""Closes recorders at the end of their process, and turns them off in forked children."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
from collections.abc import Iterable
from typing import Any, Protocol

from .ending.process_end import how_it_ends, reporter

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

    def stop_recording(self) -> None:
        """Record nothing more, but send what there is."""

    def turn_off(self) -> None:
        """Record nothing, as in a child process."""


# Strong references: a script whose `main` returns drops its recorder before the process ends.
_live: set[Closable] = set()


def track(recorder: Closable) -> None:
    """Keep a recorder that sends alive until it is closed."""
    _live.add(recorder)
    _close_at_end_of_worker()


def stop_recording() -> None:
    """Have all recorders of the process record nothing more."""
    for recorder in list(_live):
        recorder.stop_recording()


def untrack(recorder: Closable) -> None:
    """Forget a closed recorder."""
    _live.discard(recorder)


def close_all(recorders: Iterable[Closable], timeout_s: float, *, at_exit: bool = False) -> None:
    """Close all recorders, delivering as much as possible within the timeout.

    `at_exit`: the process is ending, by a status that is not known yet.
    """
    closing = list(recorders)
    ending = [each for each in closing if each in _live]  # the others have ended before
    began_s = time.monotonic()

    def left_s() -> float:
        return max(0.0, began_s + timeout_s - time.monotonic())

    ended = how_it_ends()
    for recorder in closing:
        untrack(recorder)
        recorder.hurry()
    if not ended.is_clean:  # the job may end before its last operations come
        for recorder in ending:
            reporter.tell(id(recorder), ended, timeout_s=left_s())
    for recorder in closing:
        recorder.flush(began_s + DELIVERING_SHARE * timeout_s - time.monotonic())
    if ended.is_clean:
        for recorder in ending:
            reporter.tell(id(recorder), ended, at_exit=at_exit, timeout_s=left_s())
    for recorder in closing:
        recorder.begin_closing()
    for recorder in closing:
        recorder.wait_closed(left_s())
    if ending:
        reporter.wait_told(left_s())


@atexit.register
def _close_at_exit() -> None:
    with contextlib.suppress(Exception):  # the exit status is the training's
        close_all(list(_live), EXIT_S, at_exit=True)


def _close_at_end_of_worker() -> None:
    """In a process of `multiprocessing`, which ends without what is registered with `atexit`."""
    process = sys.modules.get("multiprocessing.process")
    util: Any = sys.modules.get("multiprocessing.util")
    if process is not None and util is not None and process.parent_process() is not None:
        util.Finalize(None, _close_at_exit, exitpriority=100)


def _turn_off_in_child() -> None:
    for recorder in list(_live):
        recorder.turn_off()
    reporter.forget_in_child()
    _live.clear()  # or the child would wait at exit for a thread that it does not have


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_turn_off_in_child)
