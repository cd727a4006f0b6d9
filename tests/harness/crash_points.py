"""Named points at which a process kills or stops itself, patched in at start-up.

    python -m tests.harness.crash_points MODULE:FUNCTION[:ARG]... -- COMMAND ...

runs a Paceline command after these patches: a process can die between any two actions, or violate a
guarantee on purpose, without a hook in production code.
"""

import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from app.cli import main
from app.ingest.queue import Entry
from app.ingest.redis.queue import RedisReader, RedisWriter
from app.store import shards
from app.store.alerting import outbox
from app.store.database import Connection, Store

API_POINTS = ("before_xadd", "after_xadd")
CONSUMER_POINTS = ("after_read", "before_commit", "after_commit_before_ack", "after_ack")
POINTS = API_POINTS + CONSUMER_POINTS
# Of dispatcher and sender; reached only when there is a notification.
NOTIFICATION_POINTS = (
    "before_plan_commit",
    "after_plan_commit",
    "after_claim",
    "after_post_before_mark",
)

Reached = Callable[[str], None]


def command(patches: Sequence[str], *arguments: str) -> list[str]:
    """Command line of a Paceline process with these patches."""
    if not patches:
        return [sys.executable, "-m", "app.cli", *arguments]
    return [sys.executable, "-m", "tests.harness.crash_points", *patches, "--", *arguments]


def apply(patch: str) -> None:
    """Call the function that a patch names with its arguments."""
    module, function, *arguments = patch.split(":")
    getattr(importlib.import_module(module), function)(*arguments)


def crash_at(point: str, passes: int) -> str:
    """The patch that makes a process kill itself when it reaches the point for the nth time."""
    return f"{__name__}:stop_at:{point}:{passes}:{signal.SIGKILL:d}"


def freeze_at(point: str, passes: int) -> str:
    """The same with SIGSTOP: the process stands still until it gets SIGCONT."""
    return f"{__name__}:stop_at:{point}:{passes}:{signal.SIGSTOP:d}"


def stop_at(point: str, passes: str, number: str) -> None:
    """Patch all points; send this process the signal at one of them."""
    if point not in POINTS + NOTIFICATION_POINTS:
        raise ValueError(f"{point!r} is none of {POINTS + NOTIFICATION_POINTS}")
    passes_left = iter(range(int(passes) - 1, -1, -1))
    lock = threading.Lock()

    def reached(name: str) -> None:
        if name != point:
            return
        with lock:
            if next(passes_left, 1) == 0:
                os.kill(os.getpid(), int(number))

    _watch_api(reached)
    _watch_queue(reached)
    _watch_store(reached)
    _watch_outbox(reached)


def _watch_api(reached: Reached) -> None:
    append = RedisWriter.append

    async def watched(self: RedisWriter, job_id: str, body: bytes) -> None:
        reached("before_xadd")
        await append(self, job_id, body)
        reached("after_xadd")

    _set_attribute(RedisWriter, "append", watched)


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

    _set_attribute(RedisReader, "read", watched_read)
    _set_attribute(RedisReader, "done", watched_done)


def _watch_store(reached: Reached) -> None:
    """Only transactions that check their fence: the consumer's commits of batches."""
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

    _set_attribute(shards, "check", watched_check)
    _set_attribute(Store, "write", watched_write)


def _watch_outbox(reached: Reached) -> None:
    """Only transactions in which messages are added or claimed."""
    write, add, claim, delivered = Store.write, outbox.add, outbox.claim, outbox.mark_delivered
    planned: set[int] = set()
    claimed: set[int] = set()

    def watched_add(conn: Connection, **given: Any) -> str | None:
        planned.add(id(conn))
        return add(conn, **given)

    def watched_claim(conn: Connection, **given: Any) -> list[outbox.Delivery]:
        found = claim(conn, **given)
        if found:
            claimed.add(id(conn))
        return found

    def watched_delivered(conn: Connection, delivery: outbox.Delivery, *, now_s: float) -> None:
        reached("after_post_before_mark")
        delivered(conn, delivery, now_s=now_s)

    @contextmanager
    def watched_write(self: Store) -> Iterator[Connection]:
        number = None
        with write(self) as conn:
            number = id(conn)
            yield conn
            if number in planned:
                reached("before_plan_commit")
        if number in planned:
            planned.discard(number)
            reached("after_plan_commit")
        if number in claimed:
            claimed.discard(number)
            reached("after_claim")

    _set_attribute(outbox, "add", watched_add)
    _set_attribute(outbox, "claim", watched_claim)
    _set_attribute(outbox, "mark_delivered", watched_delivered)
    _set_attribute(Store, "write", watched_write)


def _set_attribute(target: object, name: str, value: object) -> None:
    getattr(target, name)  # A renamed function must fail here, not leave its point unreached.
    setattr(target, name, value)


if __name__ == "__main__":
    end = sys.argv.index("--")
    for patch in sys.argv[1:end]:
        apply(patch)
    sys.argv = ["paceline", *sys.argv[end + 1 :]]
    main()
