"""Ends what has no time limit of its own, as looking up the name of a server."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

log = logging.getLogger("paceline_client")

T = TypeVar("T")


def within(timeout_s: float, call: Callable[[], T]) -> T | None:
    """What the call returns; None if it takes longer (seconds), or raises an exception.

    It then goes on, on a daemon thread that does not keep the process from ending.
    """
    found: list[T] = []

    def run() -> None:
        try:
            found.append(call())
        except Exception:  # a thread's uncaught error would be printed beside training's
            log.debug("paceline: a request failed", exc_info=True)

    thread = threading.Thread(target=run, name="paceline-request", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the process may have no more threads, or is at its very end
        return None
    thread.join(timeout_s)
    return found[0] if found else None
