"""The one door to Redis or Valkey: how it is reached, and what its errors mean to us."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import OutOfMemoryError, RedisError
from redis.retry import Retry

from app.errors import QueueFull, QueueUnavailable

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


def connect(url: str) -> redis.Redis:
    """A client for threads."""
    pool = redis.BlockingConnectionPool.from_url(
        url,
        max_connections=MAX_CONNECTIONS,
        timeout=TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
        **_OPTIONS,
    )
    return redis.Redis.from_pool(pool)


def connect_async(url: str) -> redis.asyncio.Redis:
    """A client for an event loop."""
    pool = redis.asyncio.BlockingConnectionPool.from_url(
        url,
        max_connections=MAX_CONNECTIONS,
        timeout=TIMEOUT_S,
        retry=AsyncRetry(NoBackoff(), 0),
        **_OPTIONS,
    )
    return redis.asyncio.Redis.from_pool(pool)


@contextmanager
def translated() -> Iterator[None]:
    """Turns every error of Redis into one of ours."""
    try:
        yield
    except OutOfMemoryError as error:
        raise QueueFull("the event queue is full until the consumers have caught up") from error
    except (RedisError, OSError) as error:
        # LOADING, MISCONF (disk full), timeouts, refused connections: all may pass by themselves.
        raise QueueUnavailable(f"the event queue does not answer: {error}") from error
