"""Who has fallen silent? Told from the time at which batches come, not from what is in them."""

from collections.abc import Iterable
from typing import NamedTuple


class Silence(NamedTuple):
    """Ranks of which nothing comes while others go on, or since when none sends; Unix times.

    `silent_workers` are the same ranks' workers, as the roll numbers them.
    """

    silent_ranks: tuple[int, ...] = ()
    silent_workers: tuple[int, ...] = ()
    silent_since_s: float | None = None
    stalled_since_s: float | None = None


SENDING = Silence()
_LONG_AGO_S = -1e12  # before any clock's beginning
# Where nobody sends for so much of the time after which one is silent, the job pauses.
_PAUSE = 0.5


class Watch:
    """When each rank of one run was last heard of, by a clock that never goes back.

    The run `has_begun` once something of it came.
    """

    def __init__(
        self,
        now_s: float,
        registered_unix_s: float,
        known: Iterable[int] = (),
        last_data_unix_s: float | None = None,
        told: Silence = SENDING,
        waited_s: float = 0.0,
    ) -> None:
        """Everybody who was heard of before counts as heard now: nobody listened meanwhile.

        But whoever was `told` to be silent is so until something comes: a restart is no news. Of a
        run of which nothing ever came, something has been waited for `waited_s` before `now_s`.
        """
        self._began_s = now_s
        self._heard_s = dict.fromkeys(known, now_s) | dict.fromkeys(told.silent_ranks, _LONG_AGO_S)
        self.has_begun = last_data_unix_s is not None or bool(self._heard_s)
        self._newest_s = now_s if self.has_begun else now_s - waited_s
        if told.stalled_since_s is not None:
            self._newest_s = _LONG_AGO_S
        self._newest_unix_s = registered_unix_s if last_data_unix_s is None else last_data_unix_s
        self._silent_before_pause_s: float | None = None

    def heard(self, rank: int, now_s: float, unix_s: float) -> None:
        """A batch of this rank came."""
        if not self.has_begun:
            # Only now the others are late: before, they were all still starting.
            self._began_s = now_s
            self.has_begun = True
        self._heard_s[rank] = self._newest_s = now_s
        self._newest_unix_s = unix_s

    def forgive(self, now_s: float) -> None:
        """We were not listening: everybody has been heard of just now who ever was."""
        self._began_s = now_s
        self._heard_s = dict.fromkeys(self._heard_s, now_s)
        if self.has_begun:
            self._newest_s = now_s

    def silence(
        self, now_s: float, unix_s: float, patience_s: float, unheard: Iterable[int]
    ) -> Silence:
        """Who is silent, if that is whoever was not heard of for `patience_s`.

        `unheard` are ranks of which nothing ever came; as long as nothing came of any, none of
        them is silent, but the run may have stalled.
        """
        limit_s = self._limit_s(now_s, patience_s)
        if now_s - self._newest_s >= patience_s:
            return Silence(stalled_since_s=self._newest_unix_s)
        if not self.has_begun:
            return SENDING
        silent = {rank: at_s for rank, at_s in self._heard_s.items() if at_s <= limit_s}
        if self._began_s <= limit_s:
            silent |= dict.fromkeys(unheard, self._began_s)
        if not silent:
            return SENDING
        since_s = unix_s - (now_s - min(silent.values()))
        return Silence(tuple(sorted(silent)), silent_since_s=since_s)

    def _limit_s(self, now_s: float, patience_s: float) -> float:
        """Whoever was not heard of since then is silent.

        After a pause of all, the first to send again does not make the others late: their time
        begins anew. Those that had been silent before it are silent still.
        """
        limit_s, before_s = now_s - patience_s, self._silent_before_pause_s
        if now_s - self._newest_s >= _PAUSE * patience_s:
            self._silent_before_pause_s = limit_s if before_s is None else before_s
            return self._silent_before_pause_s
        if before_s is not None:
            self._heard_s = {
                rank: at_s if at_s <= before_s else now_s for rank, at_s in self._heard_s.items()
            }
            self._began_s = self._began_s if self._began_s <= before_s else now_s
            self._silent_before_pause_s = None
        return limit_s
