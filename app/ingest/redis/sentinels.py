"""Which server the sentinels call the primary, also while the network is split.

redis-py believes the first sentinel that answers, and asks again only when a connection is lost. A
sentinel that is cut off together with the old primary goes on naming it, and whoever reaches both
sides would push to that one, in vain, until the network is whole again. So all sentinels are
asked, the one with the newest configuration is believed (they number their failovers), and they
are asked again every few seconds. https://redis.io/docs/latest/operate/oss_and_stack/management/sentinel/
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from redis.exceptions import RedisError
from redis.sentinel import MasterNotFoundError
from typing_extensions import override

from app.ingest.redis.url import NodeAddress

ASK_EVERY_S = 5.0
# They answer from memory; a frozen one keeps a reader waiting for so long.
SENTINEL_TIMEOUT_S = 1.0


def _newest(
    service: str, answers: Iterable[Any], is_usable: Callable[[Any, str], bool]
) -> NodeAddress:
    """The primary by the sentinel that knows of the last failover; answers may be errors."""
    states = [
        each[service]
        for each in answers
        if isinstance(each, Mapping) and service in each and is_usable(each[service], service)
    ]
    if not states:
        errors = ", ".join(f"{each}" for each in answers if isinstance(each, BaseException))
        raise MasterNotFoundError(f"no sentinel names a primary of {service!r}: {errors}")
    found = max(states, key=lambda state: int(state["config-epoch"]))
    return found["ip"], found["port"]


class Sentinels(redis.sentinel.Sentinel):
    """Sentinels for threads, of which the best informed one is believed."""

    @override
    def discover_master(self, service_name: str) -> NodeAddress:
        answers: list[Any] = []
        for each in self.sentinels:
            try:
                answers.append(each.sentinel_masters())
            except (RedisError, OSError) as error:
                answers.append(error)
        return _newest(service_name, answers, self.check_master_state)


class AsyncSentinels(redis.asyncio.sentinel.Sentinel):
    """The same for an event loop."""

    @override
    async def discover_master(self, service_name: str) -> NodeAddress:
        asked: list[Any] = [each.sentinel_masters() for each in self.sentinels]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        return _newest(service_name, answers, self.check_master_state)


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
        if time.monotonic() >= self._ask_at_s:
            self._ask_at_s = time.monotonic() + ASK_EVERY_S
            self._asking = asyncio.create_task(self._ask())

    async def stop_following(self) -> None:
        """Wait for the last question."""
        if self._asking is not None:
            await self._asking

    async def _ask(self) -> None:
        pool: Any = self
        with suppress(RedisError, OSError):
            await pool.get_master_address()
