"""The one door to Redis or Valkey: how it is reached, and what its errors mean to us."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import OutOfMemoryError, RedisError
from redis.retry import Retry

from app.errors import QueueFull, QueueUnavailable
from app.ingest.redis_url import QueueUrl, unusable_url

TIMEOUT_S = 2.0
MAX_CONNECTIONS = 32  # further callers wait for one, up to TIMEOUT_S
IDLE_CHECK_S = 10

# An append that redis-py repeats by itself could be in the queue twice, and a dead server would
# hold a request for seconds: whoever called decides about another attempt.
_OPTIONS: dict[str, Any] = {
    "socket_timeout": TIMEOUT_S,
    "socket_connect_timeout": TIMEOUT_S,
    "health_check_interval": IDLE_CHECK_S,
    "protocol": 2,
}


class _SentinelPool(redis.sentinel.SentinelConnectionPool, redis.BlockingConnectionPool):
    """Connections to the primary that the sentinels name; further callers wait for one."""


class _AsyncSentinelPool(
    redis.asyncio.sentinel.SentinelConnectionPool, redis.asyncio.BlockingConnectionPool
):
    """The same for an event loop."""


def connect(where: QueueUrl, *, max_connections: int = MAX_CONNECTIONS) -> redis.Redis:
    """A client for threads, of one server or of the primary that the sentinels name."""
    options = {**_OPTIONS, **_pool(max_connections), "retry": Retry(NoBackoff(), 0)}
    if where.kind != "sentinel":
        return redis.Redis.from_pool(_pool_of(redis.BlockingConnectionPool, where, options))
    return redis.Redis.from_pool(_watched(redis.sentinel.Sentinel, _SentinelPool, where, options))


def connect_async(
    where: QueueUrl, *, max_connections: int = MAX_CONNECTIONS
) -> redis.asyncio.Redis:
    """The same for an event loop."""
    options = {**_OPTIONS, **_pool(max_connections), "retry": AsyncRetry(NoBackoff(), 0)}
    if where.kind != "sentinel":
        pool = _pool_of(redis.asyncio.BlockingConnectionPool, where, options)
        return redis.asyncio.Redis.from_pool(pool)
    pool = _watched(redis.asyncio.sentinel.Sentinel, _AsyncSentinelPool, where, options)
    return redis.asyncio.Redis.from_pool(pool)


def close(client: redis.Redis) -> None:
    """Free every connection of the client, those to sentinels included."""
    client.close()
    client.connection_pool.disconnect()
    for sentinel in _sentinels(client):
        sentinel.close()


async def close_async(client: redis.asyncio.Redis) -> None:
    """The same for an event loop."""
    await client.aclose()
    await client.connection_pool.disconnect()
    for sentinel in _sentinels(client):
        await sentinel.aclose()


def _sentinels(client: Any) -> list[Any]:
    manager = getattr(client.connection_pool, "sentinel_manager", None)
    return manager.sentinels if manager else []


def _pool(max_connections: int) -> dict[str, Any]:
    return {"max_connections": max_connections, "timeout": TIMEOUT_S}


def _watched(manager: Any, pool: Any, where: QueueUrl, options: dict[str, Any]) -> Any:
    """A pool of connections to the primary that the sentinels at these addresses name."""
    sentinels = manager(where.addresses, sentinel_kwargs={**_OPTIONS, **where.sentinel_options})
    return pool(where.service, sentinels, **options, **where.options)


def _pool_of(kind: Any, where: QueueUrl, options: dict[str, Any]) -> Any:
    try:
        return kind.from_url(where.url, **options)
    except (ValueError, TypeError):
        raise unusable_url() from None


@contextmanager
def translated() -> Iterator[None]:
    """Turns every error of Redis into one of ours."""
    try:
        yield
    except OutOfMemoryError as error:
        raise QueueFull("the event queue is full until the consumers have caught up") from error
    except (RedisError, OSError) as error:
        # LOADING, MISCONF (disk full), READONLY, CLUSTERDOWN, timeouts, refused connections: all
        # may pass by themselves.
        raise QueueUnavailable(f"the event queue does not answer: {error}") from error
    except RuntimeError as error:
        if not is_cut_off(error):
            raise
        raise QueueUnavailable(f"the event queue does not answer: {error}") from error


def is_cut_off(error: BaseException) -> bool:
    """Whether this is uvloop's way to say that a connection was lost between two writes."""
    return isinstance(error, RuntimeError) and "the handler is closed" in str(error)
