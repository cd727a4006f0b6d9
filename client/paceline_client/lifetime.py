"""Recorders at the end of their process, and in the children that it forks."""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .recorder import Recorder

EXIT_S = 2.0  # for all recorders of the process together
DELIVERING_SHARE = 0.75  # the rest is for what is left: to disk, and the threads to end

# Not weakly: a script whose `main` returns lets go of its recorder before the process ends.
_live: set[Recorder] = set()


def began(recorder: Recorder) -> None:
    """A recorder has begun to send: it is held until it is closed."""
    _live.add(recorder)


def ended(recorder: Recorder) -> None:
    """A recorder has nothing left to do at the end."""
    _live.discard(recorder)


def close(recorders: Iterable[Recorder], timeout_s: float) -> None:
    """Deliver what can be delivered in the time, of all recorders at once, and end them."""
    closing = list(recorders)
    began_s = time.monotonic()
    for recorder in closing:
        ended(recorder)
        recorder.hurry()
    for recorder in closing:
        recorder.flush(began_s + DELIVERING_SHARE * timeout_s - time.monotonic())
    for recorder in closing:
        recorder.begin_closing()
    for recorder in closing:
        recorder.wait_closed(max(0.0, began_s + timeout_s - time.monotonic()))


@atexit.register
def _close_all() -> None:
    close(list(_live), EXIT_S)


def _forked() -> None:
    for recorder in list(_live):
        recorder.turn_off()
    _live.clear()  # or the child would wait at its exit for a thread that it does not have


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
