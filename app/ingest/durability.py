"""Will the event queue keep what it has taken? Asked before anything is put into it."""

from collections.abc import Iterable, Mapping
from typing import Any

import redis.asyncio
from redis.exceptions import NoPermissionError, ResponseError

from app.errors import StartUpFailed

OLDEST_VERSION = (7, 0)
# setting: (what it must be, what would happen otherwise)
REQUIRED = {
    "appendonly": ("yes", "a restart of the server would lose every batch"),
    "appendfsync": ("always", "a power cut would lose batches that were accepted"),
    "no-appendfsync-on-rewrite": (
        "no",
        "a power cut while it rewrites its file would lose batches that were accepted",
    ),
    "maxmemory-policy": ("noeviction", "a full server would throw batches away"),
}
_NAMES = (*REQUIRED, "maxmemory")
_UNASKED = (
    "the event queue does not say how it is configured (CONFIG GET is refused), so nobody knows "
    f"whether it keeps batches: allow '+config|get' to this user, and see to {', '.join(_NAMES)}"
)


def ask(client: redis.Redis) -> tuple[str, ...]:
    """Why this server might lose batches; may raise RedisError."""
    if old := _old(client.info("server")):
        return old
    try:
        return _weak(client.config_get(*_NAMES))
    except ResponseError as error:
        return _not_told(error)


async def ask_async(client: redis.asyncio.Redis) -> tuple[str, ...]:
    """The same in an event loop."""
    if old := _old(await client.info("server")):
        return old
    try:
        return _weak(await client.config_get(*_NAMES))
    except ResponseError as error:
        return _not_told(error)


def refuse(weaknesses: Iterable[str], *, allow_lossy: bool) -> None:
    """Returns if there are none, or if losing batches is allowed.

    Raises:
        StartUpFailed: with every sentence, in one line.
    """
    if (found := list(weaknesses)) and not allow_lossy:
        raise StartUpFailed(f"{'; '.join(found)} (or start with --allow-lossy)")


def _not_told(error: ResponseError) -> tuple[str, ...]:
    # Managed servers have no such command at all.
    if isinstance(error, NoPermissionError) or str(error).startswith("unknown command"):
        return (_UNASKED,)
    raise error


def _old(server: Any) -> tuple[str, ...]:
    version = str(server.get("redis_version", "0.0"))
    if tuple(int(part) for part in version.split(".")[:2]) >= OLDEST_VERSION:
        return ()
    return (f"the event queue runs on version {version}: use Redis 7.0 or Valkey 7.2 or later",)


def _weak(config: Any) -> tuple[str, ...]:
    return (*_lossy(config), *_boundless(config))


def _lossy(config: Mapping[str, str]) -> Iterable[str]:
    for name, (required, otherwise) in REQUIRED.items():
        if (found := config.get(name)) != required:
            yield (
                f"the event queue has '{name} {found}', so {otherwise}: "
                f"put '{name} {required}' into the server's configuration"
            )


def _boundless(config: Mapping[str, str]) -> Iterable[str]:
    if int(config.get("maxmemory") or 0) == 0:
        yield (
            "the event queue has 'maxmemory 0', so the system would end it when memory is full: "
            "put 'maxmemory 1gb' into the server's configuration, or what the machine has for it"
        )
