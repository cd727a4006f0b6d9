"""The consumer's loop: renew leases, read the queue, pass each shard its entries, tick.

Another thread renews the leases, so that they outlast long work; a watchdog (`watchdog.py`) ends a
process that hangs in one job's work. While the queue or the database is unavailable, the loop
waits, with backoff.
"""

import math
import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import chain, repeat

import structlog

from app.consumer.context import ConsumerContext
from app.consumer.shard import ShardWork
from app.errors import DiskFull, LeaseLost, QueueUnavailable, Unavailable
from app.ingest.queue import Entry
from app.ingest.wire.body import EXTENSIONS
from app.store import as_of, runs, shards

log = structlog.get_logger()

# A consumer that dies just after a refresh is replaced a lease and one refresh later: 18 s.
REFRESHES_A_LEASE = 5
_READ_BATCHES = 2048
_BLOCK_S = 1.0
_TICK_S = 1.0
# Where nothing comes, most of a tick is questions that have the same answers. Less than `as_of`
# may lag behind (BEHIND_AFTER_S), with what it is saved later.
_TICK_WHILE_IDLE_S = 3.0
_IDLE_AFTER_S = 120.0
# Reclaims entries that a frozen consumer took after it had lost its lease.
_STALE_AFTER_S = 15.0
# How often it is saved up to when all is taken: more often while that is long ago.
_AS_OF_EVERY_S = 5.0
_AS_OF_WHILE_BEHIND_S = 1.0
# The queue may answer others, to whom a consumer leaves its shards after so long.
CUT_OFF_AFTER_S = 30.0


class Consumer:
    """Assembles and analyses the jobs of its share of the shards."""

    def __init__(self, context: ConsumerContext, name: str) -> None:
        self._context = context
        self._name = name
        self.leases = Leases(context, name)
        self._shards: dict[int, ShardWork] = {}
        self._next_lease_s = self._next_tick_s = self._next_claim_s = self._next_as_of_s = 0.0
        self._turned_s = self._read_s = context.monotonic()
        self._is_cut_off = False

    def run(self, stop: threading.Event) -> None:
        """Run until `stop` is set; retry while the queue or the store is unavailable."""
        backoff = Backoff(stop)
        while not stop.is_set():
            self._context.note_progress()
            try:
                self.turn(stop)
                backoff.renew()
            except Unavailable as error:
                self._shards.clear()  # memory may be ahead of the store: load it again
                if isinstance(error, QueueUnavailable):
                    self._leave_shards_if_cut_off()
                backoff.wait(error)
        self._leave(for_good=True)

    def turn(self, stop: threading.Event) -> None:
        """One round: leases, entries, tick.

        Raises:
            DiskFull: nothing could be written; no entry was read, which the queue would log, too.
        """
        self._context.disk.refuse_writes()
        now_s = self._context.monotonic()
        if self._is_cut_off:
            for shard in range(self._context.num_shards):
                self._context.queue.backlog(shard)
            self._is_cut_off, self._turned_s = False, now_s
        if now_s >= self._next_lease_s:
            self.leases.refresh()
            self._next_lease_s = now_s + self._context.lease_s / REFRESHES_A_LEASE
        self._open_shards()
        if not self._shards:
            self._turned_s = now_s
            stop.wait(_BLOCK_S)
            return
        entries = self._context.queue.read(
            sorted(self._shards), self._name, count=_READ_BATCHES, block_s=_BLOCK_S
        )
        self._dispatch(entries)
        if now_s >= self._next_claim_s:
            self._next_claim_s = now_s + _STALE_AFTER_S / 3
            self._claim_stale(_STALE_AFTER_S)
        if now_s >= self._next_tick_s:
            is_idle = now_s - self._read_s > _IDLE_AFTER_S
            self._next_tick_s = now_s + (_TICK_WHILE_IDLE_S if is_idle else _TICK_S)
            with self._context.shared.round():
                for shard in list(self._shards):
                    self._run_fenced(shard, ShardWork.tick)
        self._note_taken()
        self.leases.has_turned = True
        self._turned_s = self._context.monotonic()

    def _note_taken(self) -> None:
        """Save up to when all of every shard is taken: missing data are judged by that."""
        now_s = self._context.monotonic()
        if now_s < self._next_as_of_s:
            return
        before_s = {
            shard: taken_s
            for shard, work in self._shards.items()
            if (taken_s := work.taken_before_s()) is not None
        }
        stuck = {job_id for work in self._shards.values() for job_id in work.stuck_jobs}
        with self._context.store.write() as conn:
            at_s = self._context.database_time(conn)
            as_of.note_taken(conn, self._name, before_s, now_s=at_s)
            as_of.note_refused(conn, stuck, now_s=at_s)
        longest_s = max(before_s.values(), default=0.0)
        is_behind = len(before_s) < len(self._shards) or longest_s > _AS_OF_EVERY_S
        self._next_as_of_s = now_s + (_AS_OF_WHILE_BEHIND_S if is_behind else _AS_OF_EVERY_S)

    def _leave_shards_if_cut_off(self) -> None:
        """Let others have the shards once no turn has been finished for CUT_OFF_AFTER_S.

        Leases would be renewed without end: the database answers. The queue is asked before any is
        taken again.
        """
        if self._is_cut_off or self._context.monotonic() - self._turned_s < CUT_OFF_AFTER_S:
            return
        log.warning("shards left to other consumers", shards=sorted(self.leases.held))
        self._leave(for_good=False)
        self._is_cut_off, self._next_lease_s = True, 0.0

    def _open_shards(self) -> None:
        for shard in set(self._shards) - set(self.leases.held):
            del self._shards[shard]
        for shard in set(self.leases.held) - set(self._shards):
            fence = self.leases.held[shard]
            self._shards[shard] = ShardWork(self._context, shard, self._name, fence)
            self._claim_stale(0.0, [shard])

    def _claim_stale(self, min_idle_s: float, of_shards: list[int] | None = None) -> None:
        for shard in of_shards if of_shards is not None else list(self._shards):
            entries = self._context.queue.take_over(shard, self._name, min_idle_s=min_idle_s)
            if entries:
                log.info("entries taken over", shard=shard, entries=len(entries))
                self._dispatch(entries)

    def _dispatch(self, entries: list[Entry]) -> None:
        by_shard: dict[int, list[Entry]] = defaultdict(list)
        if entries:
            self._read_s = now_s = self._context.monotonic()
            self._next_tick_s = min(self._next_tick_s, now_s + _TICK_S)
        for entry in entries:
            by_shard[entry.shard].append(entry)
        for shard, of_shard in by_shard.items():
            more_waits = self._context.queue.backlog(shard) > len(of_shard)
            take = partial(ShardWork.take, entries=of_shard, more_waits=more_waits)
            self._run_fenced(shard, take)

    def _run_fenced(self, shard: int, action: Callable[[ShardWork], None]) -> None:
        if shard not in self._shards:
            return
        try:
            action(self._shards[shard])
        except LeaseLost as error:
            log.warning("shard lost", shard=shard, reason=str(error))
            with suppress(Unavailable), self._context.store.write() as conn:
                runs.add_to_total(conn, "fenced_commits", 1)
            self.leases.held.pop(shard, None)
            del self._shards[shard]

    def _leave(self, *, for_good: bool) -> None:
        try:
            self.leases.release_all(for_good=for_good)
        except Unavailable as error:
            log.warning("leases left to lapse", reason=str(error))


class Leases:
    """The shards held by one consumer, with the fence number of each.

    Every consumer writes a heartbeat. With c of them alive, each holds at most ceil(shards / c)
    shards and releases the others, so that a new consumer gets its share within a lease.
    """

    def __init__(self, context: ConsumerContext, name: str) -> None:
        self._context = context
        self._name = name
        self.held: dict[int, int] = {}
        # A turn with shards is finished since the last refresh: the API tells people when no
        # consumer does that any more, though its heartbeats may go on.
        self.has_turned = False
        self._lock = threading.Lock()  # no lease is renewed while it is released
        self._are_released = False
        self._renewed_s = -math.inf
        self._heartbeat = partial(shards.heartbeat, owner=name, knows=EXTENSIONS)

    def refresh(self) -> None:
        """Renew held shards, release those above the fair share, acquire free ones."""
        context = self._context
        self._are_released, began_s = False, context.monotonic()
        with context.store.write() as conn:
            now_s = context.database_time(conn)
            self._heartbeat(conn, now_s=now_s, lease_s=context.lease_s, has_turned=self.has_turned)
            num_live = max(1, shards.count_live(conn, now_s=now_s))
            fair = -(-context.num_shards // num_live)
            lease = {"now_s": now_s, "lease_s": context.lease_s}
            for shard, fence in list(self.held.items()):
                try:
                    if len(self.held) > fair:
                        shards.release(conn, shard, fence)
                        raise LeaseLost(f"shard {shard} goes to another consumer")
                    shards.renew(conn, shard, self._name, fence, **lease)
                except LeaseLost as reason:
                    log.info("shard given up", shard=shard, reason=str(reason))
                    del self.held[shard]
            for shard in range(context.num_shards):
                if shard in self.held or len(self.held) >= fair:
                    continue
                acquired = shards.acquire(conn, shard, self._name, **lease)
                if acquired is not None:
                    log.info("shard taken", shard=shard, fence=acquired)
                    self.held[shard] = acquired
        self.has_turned = False
        self._renewed_s = began_s

    def renew(self) -> None:
        """Renew the leases of all held shards; safe to call from another thread.

        A lost shard is skipped: its next commit fails. From `release_all` to the next `refresh`
        nothing is renewed, nor where a refresh has just done it.
        """
        context = self._context
        if context.monotonic() - self._renewed_s < context.lease_s / REFRESHES_A_LEASE:
            return
        with self._lock, context.store.write() as conn:
            if self._are_released:
                return
            now_s = context.database_time(conn)
            lease = {"now_s": now_s, "lease_s": context.lease_s}
            self._heartbeat(conn, now_s=now_s, lease_s=context.lease_s)
            for shard, fence in list(self.held.items()):
                with suppress(LeaseLost):
                    shards.renew(conn, shard, self._name, fence, **lease)

    def release_all(self, *, for_good: bool = True) -> None:
        """Release all shards, so that others need not wait for the leases to lapse.

        Until the next `refresh`, this consumer counts as dead; `for_good`, its row is deleted.
        """
        with self._lock:
            self._are_released = True
            with self._context.store.write() as conn:
                for shard, fence in self.held.items():
                    shards.release(conn, shard, fence)
                if for_good:
                    shards.forget_consumer(conn, self._name)
                else:
                    self._heartbeat(conn, now_s=self._context.database_time(conn), lease_s=0.0)
            self.held.clear()


def keep_renewing(leases: Leases, every_s: float, stop: threading.Event) -> None:
    """Renew the leases until `stop` is set, independent of the work in other threads.

    A process that is frozen or dead renews nothing, so its shards go to others.
    """
    while not stop.wait(every_s):
        try:
            leases.renew()
        except Unavailable as error:
            log.warning("leases not renewed", reason=str(error))


_RETRY_DELAYS_S = (0.2, 0.5, 1.0, 2.0)
_MAX_DELAY_S = 5.0
_DISK_DELAY_S = 2.0  # asking costs nothing, and everything waits for the answer


class Backoff:
    """Waits longer after each failure in a row, or until `stop` is set."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self.renew()

    def renew(self) -> None:
        """Reset the delay."""
        self._delays_s = chain(_RETRY_DELAYS_S, repeat(_MAX_DELAY_S))

    def wait(self, error: Unavailable) -> None:
        """Log the error, and wait until the next attempt is due."""
        delay_s = next(self._delays_s)
        if isinstance(error, DiskFull):
            delay_s = min(delay_s, _DISK_DELAY_S)
        log.warning("waiting", reason=str(error), retry_in_s=delay_s)
        self._stop.wait(delay_s)
