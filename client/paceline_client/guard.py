"""Keeps errors of Paceline's own code out of the training: one warning, and recording ends."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, TypeVar, cast

from . import shutdown

log = logging.getLogger("paceline_client")

CallT = TypeVar("CallT", bound=Callable[..., Any])

_has_warned = False


def give_up(error: Exception) -> None:
    """Record nothing more in this process; training goes on."""
    global _has_warned
    shutdown.stop_recording()
    if not _has_warned:
        _has_warned = True
        log.warning(
            "paceline: an error of its own, so nothing more is recorded by this process; training "
            "goes on. Please report it: %r",
            error,
            exc_info=error,
        )


def guarded(fallback: Any = None) -> Callable[[CallT], CallT]:
    """Decorator of what training calls: gives up on an error, and returns the fallback."""

    def wrapped(function: CallT) -> CallT:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except Exception as error:
                give_up(error)
                return fallback

        return cast(CallT, call)

    return wrapped
