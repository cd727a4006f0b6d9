"""Answers that are dear to make, kept for a while: the longer it took, the longer."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TypeVar, cast

from app.api.key_locks import KeyLocks

T = TypeVar("T")

# So that making them takes at most one part in so many of the time, however often they are asked.
TIMES_AS_LONG = 100.0
MOST_KEPT = 256


@dataclass(frozen=True, slots=True)
class _Answer:
    value: object
    until_s: float


class Kept:
    """Answers by what was asked; used by several threads."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._answers: OrderedDict[Hashable, _Answer] = OrderedDict()
        self._lock = threading.Lock()
        self._making = KeyLocks()

    def get(self, asked: Hashable, make: Callable[[], T]) -> T:
        """The answer, made now unless it was not long ago: once, however many ask together."""
        known = self._fresh(asked)
        if known is not None:
            return cast(T, known.value)
        with self._making.of(asked):
            # Whoever waited here with the same wish as the one before finds it done.
            known = self._fresh(asked)
            return cast(T, known.value) if known is not None else self._made(asked, make)

    def _fresh(self, asked: Hashable) -> _Answer | None:
        with self._lock:
            known = self._answers.get(asked)
        return known if known is not None and self._monotonic() < known.until_s else None

    def _made(self, asked: Hashable, make: Callable[[], T]) -> T:
        began_s = self._monotonic()
        value = make()
        ended_s = self._monotonic()
        self._keep(asked, _Answer(value, ended_s + TIMES_AS_LONG * (ended_s - began_s)))
        return value

    def _keep(self, asked: Hashable, answer: _Answer) -> None:
        with self._lock:
            self._answers[asked] = answer
            self._answers.move_to_end(asked)
            while len(self._answers) > MOST_KEPT:
                self._answers.popitem(last=False)
