"""Which shards are this consumer's: a fair share of all, by leases that lapse with their holder."""

import threading
from contextlib import suppress

import structlog

from app.consumer.workplace import Workplace
from app.errors import LeaseLost
from app.ingest.wire import EXTENSIONS
from app.store import shards
from app.store.engine import Connection

log = structlog.get_logger()


class Leases:
    """The shards held by one consumer, with the fence number of each.

    Every consumer writes a heartbeat; with c of them alive, each takes at most ceil(shards / c)
    and lets go of what it has above that, so a new one gets its share within a lease.
    """

    def __init__(self, workplace: Workplace, name: str) -> None:
        self._workplace = workplace
        self._name = name
        self.held: dict[int, int] = {}
        self._lock = threading.Lock()  # nobody renews what is being given back
        self._is_over = False

    def refresh(self) -> None:
        """Renew what is held, let go of what is too much, take what is free."""
        work = self._workplace
        with work.store.write() as conn:
            now_s = work.database_time(conn)
            self._heartbeat(conn, now_s)
            num_live = max(1, shards.count_live(conn, now_s=now_s))
            fair = -(-work.num_shards // num_live)
            for shard in list(self.held):
                self._renew(conn, shard, keep=len(self.held) <= fair, now_s=now_s)
            for shard in range(work.num_shards):
                if shard not in self.held and len(self.held) < fair:
                    self._acquire(conn, shard, now_s)

    def renew(self) -> None:
        """Hold what is held for longer; may be called by another thread, in the midst of work.

        A shard that is lost already is left to its next commit, which fails.
        """
        work = self._workplace
        with work.store.write() as conn:
            now_s = work.database_time(conn)
            self._heartbeat(conn, now_s)
            for shard, fence in list(self.held.items()):
                with suppress(LeaseLost):
                    shards.renew(conn, shard, self._name, fence, now_s=now_s, lease_s=work.lease_s)

    def _heartbeat(self, conn: Connection, now_s: float) -> None:
        lease_s = self._workplace.lease_s
        shards.heartbeat(conn, self._name, now_s=now_s, lease_s=lease_s, knows=EXTENSIONS)

    def _renew(self, conn: Connection, shard: int, *, keep: bool, now_s: float) -> None:
        work, fence = self._workplace, self.held[shard]
        try:
            if not keep:
                shards.release(conn, shard, fence)
                raise LeaseLost(f"shard {shard} goes to another consumer")
            shards.renew(conn, shard, self._name, fence, now_s=now_s, lease_s=work.lease_s)
        except LeaseLost as reason:
            log.info("shard given up", shard=shard, reason=str(reason))
            del self.held[shard]

    def _acquire(self, conn: Connection, shard: int, now_s: float) -> None:
        lease_s = self._workplace.lease_s
        fence = shards.acquire(conn, shard, self._name, now_s=now_s, lease_s=lease_s)
        if fence is not None:
            log.info("shard taken", shard=shard, fence=fence)
            self.held[shard] = fence

    def release_all(self) -> None:
        """Let go of everything, so that others need not wait for the leases to lapse."""
        with self._lock:
            self._is_over = True
            with self._workplace.store.write() as conn:
                for shard, fence in self.held.items():
                    shards.release(conn, shard, fence)
                shards.forget(conn, self._name)
            self.held.clear()
