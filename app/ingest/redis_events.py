"""What has changed, told to open pages over Redis pub/sub."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress

import msgspec
import redis.asyncio
from redis.exceptions import RedisError
from typing_extensions import override

from app.ingest.queue import EVENTS_CHANNEL, Announcer, Listener, Message
from app.ingest.redis_connection import connect, connect_async

FIRST_RETRY_S = 0.1
LAST_RETRY_S = 2.0
LOOK_UP_S = 0.5  # how often a listener sees that it has been closed

_LOST = (RedisError, OSError)


class RedisAnnouncer(Announcer):
    """Publishes to whoever listens on the same server."""

    def __init__(self, url: str) -> None:
        self._redis = connect(url)

    @override
    def announce(self, message: Message) -> None:
        try:
            self._redis.publish(EVENTS_CHANNEL, msgspec.json.encode(message))
        except _LOST:
            # A listener hears of its own lost connection, and looks everything up again.
            return

    def close(self) -> None:
        """Free the connections."""
        self._redis.close()
        self._redis.connection_pool.disconnect()


class RedisListener(Listener):
    """Subscribes on one connection, and makes it anew for as long as it takes."""

    def __init__(self, url: str) -> None:
        self._redis = connect_async(url)
        self._closed = asyncio.Event()

    @override
    async def messages(self) -> AsyncIterator[Message | None]:
        try:
            async with aclosing(self._over_connections()) as messages:
                async for message in messages:
                    yield message
        finally:
            await self._redis.aclose()

    async def _over_connections(self) -> AsyncGenerator[Message | None, None]:
        retry_s = FIRST_RETRY_S
        is_first = True
        while not self._closed.is_set():
            pubsub = self._redis.pubsub(ignore_subscribe_messages=True)
            try:
                await pubsub.subscribe(EVENTS_CHANNEL)
                retry_s = FIRST_RETRY_S
                if not is_first:
                    yield None
                is_first = False
                async with aclosing(self._heard(pubsub)) as messages:
                    async for message in messages:
                        yield message
            except _LOST:
                is_first = False
                await self._wait(retry_s)
                retry_s = min(2 * retry_s, LAST_RETRY_S)
            finally:
                await pubsub.aclose()  # type: ignore[no-untyped-call]

    async def _heard(self, pubsub: redis.asyncio.client.PubSub) -> AsyncGenerator[Message, None]:
        while not self._closed.is_set():
            message = await pubsub.get_message(timeout=LOOK_UP_S)
            if message is not None:
                with suppress(msgspec.DecodeError):  # whoever else speaks on our channel
                    yield msgspec.json.decode(message["data"], type=Message)

    async def _wait(self, delay_s: float) -> None:
        try:
            async with asyncio.timeout(delay_s):
                await self._closed.wait()
        except TimeoutError:
            return

    @override
    async def close(self) -> None:
        # The connection is freed by `messages`, which may be in the middle of it.
        self._closed.set()
