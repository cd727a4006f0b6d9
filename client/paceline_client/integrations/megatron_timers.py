"""Megatron's timers, heard as operations: they bracket what no function of its own does.

A timer is asked for by name at each start and stop, whatever the level of logging; below that
level it is a dummy. What is asked for is handed on in a wrapper, and the timer keeps its ways.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Heard = Callable[[str, bool], None]  # the timer's name, and whether it starts

NAMES = frozenset(
    (
        "all-grads-sync",
        "batch-generator",
        "embedding-grads-all-reduce",
        "layernorm-grads-all-reduce",
        "non-tensor-parallel-grads-all-reduce",
        "params-all-gather",
        "save-checkpoint",
        "save-checkpoint-non-persistent",
    )
)


class HeardTimer:
    """One of Megatron's timers, whose starts and stops are heard."""

    def __init__(self, timer: Any, name: str, hear: Heard) -> None:
        self._timer = timer
        self._name = name
        self._hear = hear

    def start(self, *args: Any, **kwargs: Any) -> Any:
        """As the timer's, and heard once that is done: it may wait for all ranks first."""
        done = self._timer.start(*args, **kwargs)
        self._hear(self._name, True)
        return done

    def stop(self, *args: Any, **kwargs: Any) -> Any:
        """As the timer's, and heard before it: it may wait for the GPU or for all ranks."""
        self._hear(self._name, False)
        return self._timer.stop(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._timer, name)


class NoTimer:
    """Measures nothing."""

    def start(self, barrier: bool = False) -> None:
        """Nothing to start."""

    def stop(self, barrier: bool = False) -> None:
        """Nothing to stop."""


class OnlyHeard:
    """In place of Megatron's timers where a training script has none."""

    def __init__(self, hear: Heard) -> None:
        self._timers = {name: HeardTimer(NoTimer(), name, hear) for name in NAMES}
        self._other = NoTimer()

    def __call__(self, name: str, log_level: int | None = None) -> Any:
        """The timer of this name."""
        return self._timers.get(name, self._other)


def heard(original: Callable[..., Any], hear: Heard) -> Callable[..., Any]:
    """`Timers.__call__`, whose answers are heard."""

    def call(timers: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        timer = original(timers, name, *args, **kwargs)
        return HeardTimer(timer, name, hear) if name in NAMES else timer

    return call
