"""Named points between two deeds at which a process dies or stands still, put in by `launch`."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from app.ingest.queue import Entry
from app.ingest.redis_queue import RedisReader, RedisWriter
from app.store import shards
from app.store.engine import Connection, Store

API_POINTS = ("before_xadd", "after_xadd")
CONSUMER_POINTS = ("after_read", "before_commit", "after_commit_before_ack", "after_ack")
POINTS = API_POINTS + CONSUMER_POINTS

Reached = Callable[[str], None]


def crash_at(point: str, passes: int) -> str:
    """The patch that makes a process kill itself when it reaches the point for the nth time."""
    return f"{__name__}:stop_at:{point}:{passes}:{signal.SIGKILL:d}"


def freeze_at(point: str, passes: int) -> str:
    """The same for SIGSTOP: there it stands until somebody thaws it."""
    return f"{__name__}:stop_at:{point}:{passes}:{signal.SIGSTOP:d}"


def stop_at(point: str, passes: str, number: str) -> None:
    """Watch all points, and send this process the signal at one of them."""
    if point not in POINTS:
        raise ValueError(f"{point!r} is none of {POINTS}")
    left = iter(range(int(passes) - 1, -1, -1))
    lock = threading.Lock()

    def reached(name: str) -> None:
        if name != point:
            return
        with lock:
            if next(left, 1) == 0:
                os.kill(os.getpid(), int(number))

    _watch_api(reached)
    _watch_queue(reached)
    _watch_store(reached)


def _watch_api(reached: Reached) -> None:
    append = RedisWriter.append

    async def watched(self: RedisWriter, job_id: str, body: bytes) -> None:
        reached("before_xadd")
        await append(self, job_id, body)
        reached("after_xadd")

    _put(RedisWriter, "append", watched)


def _watch_queue(reached: Reached) -> None:
    read, done = RedisReader.read, RedisReader.done

    def watched_read(
        self: RedisReader, shards: Sequence[int], consumer: str, *, count: int, block_s: float
    ) -> list[Entry]:
        entries = read(self, shards, consumer, count=count, block_s=block_s)
        if entries:
            reached("after_read")
        return entries

    def watched_done(self: RedisReader, shard: int, entry_ids: Sequence[str]) -> None:
        reached("after_commit_before_ack")
        done(self, shard, entry_ids)
        reached("after_ack")

    _put(RedisReader, "read", watched_read)
    _put(RedisReader, "done", watched_done)


def _watch_store(reached: Reached) -> None:
    """Only of transactions that check their fence: those in which batches are taken."""
    write, check = Store.write, shards.check
    fenced: set[int] = set()

    def watched_check(conn: Connection, shard: int, owner: str, fence: int) -> None:
        check(conn, shard, owner, fence)
        fenced.add(id(conn))

    @contextmanager
    def watched_write(self: Store) -> Iterator[Connection]:
        with write(self) as conn:
            yield conn
            if id(conn) in fenced:
                fenced.discard(id(conn))
                reached("before_commit")

    _put(shards, "check", watched_check)
    _put(Store, "write", watched_write)


def _put(place: object, name: str, value: object) -> None:
    setattr(place, name, value)
