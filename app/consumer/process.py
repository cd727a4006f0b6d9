"""The consumer's loop: keep leases, read the queue, hand each shard its entries, mind the time."""

import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import structlog

from app.consumer.leases import Leases
from app.consumer.patience import Patience
from app.consumer.shard import ShardWork
from app.consumer.workplace import Workplace
from app.errors import LeaseLost, Unavailable
from app.ingest.queue import Entry
from app.store import totals

log = structlog.get_logger()

# A consumer that dies just after a refresh is replaced a lease and one refresh later: 18 s.
REFRESHES_A_LEASE = 5
_BATCHES_A_READ = 2048
_BLOCK_S = 0.5
_TICK_S = 1.0
# Entries that a frozen consumer took after it had lost its lease come back by this.
_STRAY_AFTER_S = 15.0


class Consumer:
    """Assembles and analyses the jobs of its share of the shards until told to stop."""

    def __init__(self, workplace: Workplace, name: str) -> None:
        self._work = workplace
        self._name = name
        self.leases = Leases(workplace, name)
        self._shards: dict[int, ShardWork] = {}
        self._next_lease_s = self._next_tick_s = self._next_stray_s = 0.0

    def run(self, stop: threading.Event, alive: Callable[[], None] = lambda: None) -> None:
        """Returns when `stop` is set; waits and goes on when the queue or the store is away.

        Calls `alive` before each of its turns.
        """
        patience = Patience(stop)
        while not stop.is_set():
            alive()
            try:
                self.turn(stop)
                patience.renew()
            except Unavailable as error:
                self._shards.clear()  # memory may be ahead of the store: load it again
                patience.wait(error)
        self._leave()

    def turn(self, stop: threading.Event) -> None:
        """One round: leases, entries, time."""
        now_s = self._work.monotonic()
        if now_s >= self._next_lease_s:
            self.leases.refresh()
            self._next_lease_s = now_s + self._work.lease_s / REFRESHES_A_LEASE
        self._open_shards()
        if not self._shards:
            stop.wait(_BLOCK_S)
            return
        entries = self._work.queue.read(
            sorted(self._shards), self._name, count=_BATCHES_A_READ, block_s=_BLOCK_S
        )
        self._hand_out(entries)
        if now_s >= self._next_stray_s:
            self._next_stray_s = now_s + _STRAY_AFTER_S / 3
            self._take_strays(_STRAY_AFTER_S)
        if now_s >= self._next_tick_s:
            self._next_tick_s = now_s + _TICK_S
            for shard in list(self._shards):
                self._guarded(shard, ShardWork.tick)

    def _open_shards(self) -> None:
        for shard in set(self._shards) - set(self.leases.held):
            del self._shards[shard]
        for shard in set(self.leases.held) - set(self._shards):
            self._shards[shard] = ShardWork(self._work, shard, self._name, self.leases.held[shard])
            self._take_strays(0.0, [shard])

    def _take_strays(self, min_idle_s: float, of_shards: list[int] | None = None) -> None:
        for shard in of_shards if of_shards is not None else list(self._shards):
            strays = self._work.queue.take_over(shard, self._name, min_idle_s=min_idle_s)
            if strays:
                log.info("entries taken over", shard=shard, entries=len(strays))
                self._hand_out(strays)

    def _hand_out(self, entries: list[Entry]) -> None:
        by_shard: dict[int, list[Entry]] = defaultdict(list)
        for entry in entries:
            by_shard[entry.shard].append(entry)
        for shard, mine in by_shard.items():
            more_waits = self._work.queue.backlog(shard) > len(mine)
            self._guarded(shard, partial(ShardWork.take, entries=mine, more_waits=more_waits))

    def _guarded(self, shard: int, deed: Callable[[ShardWork], None]) -> None:
        if shard not in self._shards:
            return
        try:
            deed(self._shards[shard])
        except LeaseLost as error:
            log.warning("shard lost", shard=shard, reason=str(error))
            self._count_fenced()
            self.leases.held.pop(shard, None)
            del self._shards[shard]

    def _count_fenced(self) -> None:
        with suppress(Unavailable), self._work.store.write() as conn:
            totals.add(conn, "fenced_commits", 1)

    def _leave(self) -> None:
        try:
            self.leases.release_all()
        except Unavailable as error:
            log.warning("leases left to lapse", reason=str(error))
