"""Will the event queue keep what it has taken? Asked before anything is put into it."""

import redis.asyncio

from app.errors import StartUpFailed

OLDEST_VERSION = (7, 0)
# setting: (what it must be, what would happen otherwise)
REQUIRED = {
    "appendonly": ("yes", "a restart of the server would lose every batch"),
    "appendfsync": ("always", "a power cut would lose batches that were accepted"),
    "maxmemory-policy": ("noeviction", "a full server would throw batches away"),
}


async def check_durable(client: redis.asyncio.Redis, *, allow_lossy: bool) -> None:
    """Returns if the server loses nothing, or if losing is allowed and it answers.

    Raises:
        StartUpFailed: with the line of the server's configuration to change.
        RedisError: no answer.
    """
    await client.ping()
    if allow_lossy:
        return
    check_version(await client.info("server"))
    for name, (required, otherwise) in REQUIRED.items():
        found = (await client.config_get(name)).get(name)
        if found != required:
            raise StartUpFailed(
                f"the event queue has '{name} {found}', so {otherwise}: "
                f"put '{name} {required}' into the server's configuration"
            )


def check_version(server: dict[str, str]) -> None:
    """Raises StartUpFailed for a server that lacks what the queue uses."""
    version = str(server.get("redis_version", "0.0"))
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_VERSION:
        raise StartUpFailed(
            f"the event queue runs on version {version}: use Redis 7.0 or Valkey 7.2 or later"
        )
