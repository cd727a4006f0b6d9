"""Which server the sentinels call the primary, also while the network is split.

redis-py believes the first sentinel that answers, and asks again only when a connection is lost. A
sentinel that is cut off together with the old primary goes on naming it, and whoever reaches both
sides would push to that one, in vain, until the network is whole again. So all sentinels are
asked, at each new connection and every few seconds, and the answer with the newest configuration
epoch counts: sentinels number their failovers.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError
from typing_extensions import override

from app.ingest.redis.url import NodeAddress

ASK_EVERY_S = 5.0
# Sentinels answer from memory. No retries: a lost sentinel must not delay new connections.
SENTINEL_TIMEOUT_S = 0.5
_LIMITS = {
    "socket_timeout": SENTINEL_TIMEOUT_S,
    "socket_connect_timeout": SENTINEL_TIMEOUT_S,
}
SENTINEL_OPTIONS: dict[str, Any] = {**_LIMITS, "retry": Retry(NoBackoff(), 0)}
ASYNC_SENTINEL_OPTIONS: dict[str, Any] = {**_LIMITS, "retry": AsyncRetry(NoBackoff(), 0)}


def newest_primary(
    service: str, answers: Sequence[Any], is_usable: Callable[[Any, str], bool]
) -> NodeAddress:
    """The primary by the answers, or errors, of all sentinels.

    An older one does not count, even where the newest ones say that their primary is down: what is
    written to the one of before would be lost.

    Raises:
        MasterNotFoundError: none of the newest is usable.
    """
    states = [each[service] for each in answers if isinstance(each, Mapping) and service in each]
    newest = max((int(state["config-epoch"]) for state in states), default=0)
    for state in states:
        if int(state["config-epoch"]) == newest and is_usable(state, service):
            return state["ip"], state["port"]
    errors = ", ".join(f"{each}" for each in answers if isinstance(each, BaseException))
    raise MasterNotFoundError(f"no sentinel names a primary of {service!r} that is up: {errors}")


class Sentinels(redis.sentinel.Sentinel):
    """Sentinels for threads: the answer with the newest configuration epoch counts."""

    @override
    def discover_master(self, service_name: str) -> NodeAddress:
        answers: list[Any] = []
        for each in self.sentinels:
            try:
                answers.append(each.sentinel_masters())
            except (RedisError, OSError) as error:
                answers.append(error)
        return newest_primary(service_name, answers, self.check_master_state)


class AsyncSentinels(redis.asyncio.sentinel.Sentinel):
    """The same for an event loop."""

    @override
    async def discover_master(self, service_name: str) -> NodeAddress:
        asked: list[Any] = [each.sentinel_masters() for each in self.sentinels]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        return newest_primary(service_name, answers, self.check_master_state)


class SentinelPool(redis.sentinel.SentinelConnectionPool, redis.BlockingConnectionPool):
    """Connections to the primary that the sentinels name; further callers wait for one."""

    _ask_at_s = 0.0

    def follow(self) -> None:
        """Ask the sentinels every few seconds; connections to a former primary are given up."""
        if time.monotonic() >= self._ask_at_s:
            self._ask_at_s = time.monotonic() + ASK_EVERY_S
            pool: Any = self
            with suppress(RedisError, OSError):
                pool.get_master_address()


class AsyncSentinelPool(
    redis.asyncio.sentinel.SentinelConnectionPool, redis.asyncio.BlockingConnectionPool
):
    """The same for an event loop."""

    _ask_at_s = 0.0
    _asking: asyncio.Task[None] | None = None

    def follow(self) -> None:
        """The same, beside the callers: a frozen sentinel keeps no push waiting."""
        is_asking = self._asking is not None and not self._asking.done()
        if time.monotonic() >= self._ask_at_s and not is_asking:
            self._ask_at_s = time.monotonic() + ASK_EVERY_S
            self._asking = asyncio.create_task(self._ask())

    async def stop_following(self) -> None:
        """End the last question."""
        if self._asking is not None and not self._asking.done():
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    async def _ask(self) -> None:
        pool: Any = self
        before = pool.master_address
        with suppress(RedisError, OSError, RuntimeError):  # uvloop's of a lost connection
            if await pool.get_master_address() != before:
                # redis-py gives up idle connections alone; those in use end with their exchange.
                await pool.update_active_connections_for_reconnect()
