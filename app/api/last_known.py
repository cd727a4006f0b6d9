"""What the database last said, for while it does not answer."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

# Every request that asks a database that hangs waits for seconds: one a second finds out.
ASK_AGAIN_S = 1.0

T = TypeVar("T")


class LastKnown(Generic[T]):
    """Answers by key, each good for `good_for_s` after the database gave it.

    May be used from any thread: each method is one step on the dictionary.
    """

    def __init__(self, *, good_for_s: float, max_kept: int, monotonic: Callable[[], float]) -> None:
        self._good_for_s = good_for_s
        self._max_kept = max_kept
        self._monotonic = monotonic
        self._kept: OrderedDict[str, tuple[T, float]] = OrderedDict()
        self._away_until_s = float("-inf")

    def keep(self, key: str, value: T) -> None:
        """The database has just said this."""
        self._away_until_s = float("-inf")
        self._kept[key] = value, self._monotonic() + self._good_for_s
        while len(self._kept) > self._max_kept:
            self._kept.popitem(last=False)

    def forget(self, key: str) -> None:
        """It has changed, or is no more."""
        self._kept.pop(key, None)

    def note_away(self) -> None:
        """The database has just not answered."""
        self._away_until_s = self._monotonic() + ASK_AGAIN_S

    def while_away(self, key: str) -> T | None:
        """What was known of it, if the database was away a moment ago."""
        return self.of(key) if self._monotonic() < self._away_until_s else None

    def of(self, key: str) -> T | None:
        """What was known of it, if that is still good."""
        value, until_s = self._kept.get(key, (None, 0.0))
        return value if self._monotonic() < until_s else None
