"""Is the queue's server the one that it was a moment ago?"""

from collections.abc import Callable, Sequence

import redis
import structlog

log = structlog.get_logger()

LOOK_EVERY_S = 5.0


class ServerWatch:
    """Writes into the log, once each, that a server was started anew or lost its data.

    What was wiped or restored is no error here: groups are made again, and batches that come a
    second time are known by their keys. Somebody should know of it, that is all.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._next_s = 0.0
        self._run_ids: frozenset[str] = frozenset()
        self._groups: set[int] = set()

    def look(self, primaries: Callable[[], Sequence[redis.Redis]]) -> None:
        """Compare the servers' run ids, at most every 5 s. May raise RedisError."""
        now_s = self._monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + LOOK_EVERY_S
        found = frozenset(str(node.info("server")["run_id"]) for node in primaries())
        if self._run_ids and found - self._run_ids:
            log.warning(
                "event queue restarted or replaced",
                run_ids=sorted(found - self._run_ids),
                before=sorted(self._run_ids - found),
            )
        self._run_ids = found

    def made_group(self, shard: int) -> None:
        """A shard's consumer group was not there, and is now."""
        if shard in self._groups:
            log.warning("event queue was wiped or restored", shard=shard)
        self._groups.add(shard)

    def saw_groups(self, shards: Sequence[int]) -> None:
        """The groups of these shards are there."""
        self._groups.update(shards)
