"""Who has fallen silent? Told from the time at which batches come, not from what is in them."""

from collections.abc import Iterable
from typing import NamedTuple


class Silence(NamedTuple):
    """Ranks of which nothing comes while others go on, or since when none sends; Unix times."""

    silent_ranks: tuple[int, ...] = ()
    silent_since_s: float | None = None
    stalled_since_s: float | None = None


SENDING = Silence()


class Watch:
    """When each rank of one run was last heard of, by a clock that never goes back."""

    def __init__(
        self, now_s: float, known: Iterable[int] = (), last_data_unix_s: float | None = None
    ) -> None:
        """Everybody who was heard of before counts as heard now: nobody listened meanwhile."""
        self._began_s = now_s
        self._heard_s = dict.fromkeys(known, now_s)
        self._newest_s = None if last_data_unix_s is None else now_s
        self._newest_unix_s = last_data_unix_s or 0.0

    def heard(self, rank: int, now_s: float, unix_s: float) -> None:
        """A batch of this rank came."""
        self._heard_s[rank] = self._newest_s = now_s
        self._newest_unix_s = unix_s

    def forgive(self, now_s: float) -> None:
        """We were not listening: everybody has been heard of just now."""
        self._began_s = now_s
        self._heard_s = dict.fromkeys(self._heard_s, now_s)
        if self._newest_s is not None:
            self._newest_s = now_s

    def silence(
        self, now_s: float, unix_s: float, patience_s: float, unheard: Iterable[int]
    ) -> Silence:
        """Who is silent, if that is whoever was not heard of for `patience_s`.

        `unheard` are ranks of which nothing ever came. A run of which nothing came since we look
        is not judged.
        """
        if self._newest_s is None:
            return SENDING
        if now_s - self._newest_s >= patience_s:
            return Silence(stalled_since_s=self._newest_unix_s)
        limit_s = now_s - patience_s
        silent = {rank: at_s for rank, at_s in self._heard_s.items() if at_s <= limit_s}
        if self._began_s <= limit_s:
            silent |= dict.fromkeys(unheard, self._began_s)
        if not silent:
            return SENDING
        since_s = unix_s - (now_s - min(silent.values()))
        return Silence(tuple(sorted(silent)), since_s)
