"""Durability settings of the queue's servers; detection of restarts and data loss."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import redis
import redis.asyncio
import structlog
from redis.exceptions import NoPermissionError, ResponseError

from app.errors import StartUpFailed

OLDEST_VERSION = (7, 0)
# setting: (what it must be, what would happen otherwise)
REQUIRED_SETTINGS = {
    "appendonly": ("yes", "a restart of the server would lose every batch"),
    "appendfsync": ("always", "a power cut would lose batches that were accepted"),
    "no-appendfsync-on-rewrite": (
        "no",
        "a power cut while it rewrites its file would lose batches that were accepted",
    ),
    "maxmemory-policy": ("noeviction", "a full server would throw batches away"),
}
_SETTINGS = (*REQUIRED_SETTINGS, "maxmemory")
_CONFIG_REFUSED = (
    "the event queue does not say how it is configured (CONFIG GET is refused), so it is not known "
    f"whether it keeps batches: allow '+config|get' to this user, and see to {', '.join(_SETTINGS)}"
)


def find_weaknesses(client: redis.Redis) -> tuple[str, ...]:
    """Why this server might lose batches; may raise RedisError."""
    if old := _version_weakness(client.info("server")):
        return old
    try:
        return _weaknesses(client.config_get(*_SETTINGS))
    except ResponseError as error:
        return _config_refused(error)


async def find_weaknesses_async(client: redis.asyncio.Redis) -> tuple[str, ...]:
    """The same in an event loop."""
    if old := _version_weakness(await client.info("server")):
        return old
    try:
        return _weaknesses(await client.config_get(*_SETTINGS))
    except ResponseError as error:
        return _config_refused(error)


def refuse_weaknesses(weaknesses: Iterable[str], *, allow_lossy: bool) -> None:
    """Raise StartUpFailed with every sentence, unless losing batches is allowed."""
    if (sentences := list(weaknesses)) and not allow_lossy:
        raise StartUpFailed(f"{'; '.join(sentences)} (or start with --allow-lossy)")


def _config_refused(error: ResponseError) -> tuple[str, ...]:
    # Managed servers have no such command at all.
    if isinstance(error, NoPermissionError) or str(error).startswith("unknown command"):
        return (_CONFIG_REFUSED,)
    raise error


def _version_weakness(server: Any) -> tuple[str, ...]:
    version = str(server.get("redis_version", "0.0"))
    if tuple(int(part) for part in version.split(".")[:2]) >= OLDEST_VERSION:
        return ()
    return (f"the event queue runs on version {version}: use Redis 7.0 or Valkey 7.2 or later",)


def _weaknesses(config: Any) -> tuple[str, ...]:
    weaknesses = [
        f"the event queue has '{name} {config.get(name)}', so {otherwise}: "
        f"put '{name} {required}' into the server's configuration"
        for name, (required, otherwise) in REQUIRED_SETTINGS.items()
        if config.get(name) != required
    ]
    if int(config.get("maxmemory") or 0) == 0:
        weaknesses.append(
            "the event queue has 'maxmemory 0', so the system would end it when memory is full: "
            "put 'maxmemory 1gb' into the server's configuration, or what the machine has for it"
        )
    return tuple(weaknesses)


log = structlog.get_logger()

COMPARE_EVERY_S = 5.0


class ServerWatch:
    """Logs, once each, that a server was restarted or lost its data.

    That is no error: consumer groups are created again, and repeated batches are recognised.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._next_s = 0.0
        self._run_ids: frozenset[str] = frozenset()
        self._groups: set[int] = set()

    def compare(self, primaries: Callable[[], Sequence[redis.Redis]]) -> None:
        """Compare the servers' run ids, at most every 5 s. May raise RedisError."""
        now_s = self._monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + COMPARE_EVERY_S
        run_ids = frozenset(str(node.info("server")["run_id"]) for node in primaries())
        if self._run_ids and run_ids - self._run_ids:
            log.warning(
                "event queue restarted or replaced",
                run_ids=sorted(run_ids - self._run_ids),
                before=sorted(self._run_ids - run_ids),
            )
        self._run_ids = run_ids

    def created_group(self, shard: int) -> None:
        """A shard's missing consumer group was created."""
        if shard in self._groups:
            log.warning("event queue was wiped or restored", shard=shard)
        self._groups.add(shard)

    def note_groups(self, shards: Sequence[int]) -> None:
        """The groups of these shards exist."""
        self._groups.update(shards)
