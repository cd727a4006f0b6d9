"""Change events for open pages, over Redis pub/sub.

In a cluster a message goes to every node, so speaker and listener need not use the same one.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress

import msgspec
from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.exceptions import RedisError
from typing_extensions import override

from app.ingest.queue import EVENTS_CHANNEL, Announcer, EventMessage, Listener
from app.ingest.redis.nodes import open_async_nodes, open_nodes

FIRST_RETRY_S = 0.1
LAST_RETRY_S = 2.0
CHECK_CLOSED_EVERY_S = 0.5  # how often a listener sees that it has been closed

_CONNECTION_ERRORS = (RedisError, OSError)


class RedisAnnouncer(Announcer):
    """Publishes to the listeners of the same server."""

    def __init__(self, url: str) -> None:
        self._nodes = open_nodes(url)

    @override
    def announce(self, message: EventMessage) -> None:
        text = msgspec.json.encode(message)
        try:
            self._nodes.run(EVENTS_CHANNEL, lambda client: client.publish(EVENTS_CHANNEL, text))
        except _CONNECTION_ERRORS:
            # A listener hears of its own lost connection, and looks everything up again.
            return

    def close(self) -> None:
        """Free the connections."""
        self._nodes.close()


class RedisListener(Listener):
    """Subscribes on one connection, and reconnects until it succeeds."""

    def __init__(self, url: str) -> None:
        self._nodes = open_async_nodes(url)
        self._closed = asyncio.Event()

    @override
    async def messages(self) -> AsyncIterator[EventMessage | None]:
        retry_s = FIRST_RETRY_S
        is_first = True
        try:
            while not self._closed.is_set():
                try:
                    pubsub = await self._nodes.run(EVENTS_CHANNEL, _subscribed)
                    retry_s = FIRST_RETRY_S
                    if not is_first:
                        yield None
                    async with aclosing(self._heard(pubsub)) as messages:
                        async for message in messages:
                            yield message
                except _CONNECTION_ERRORS:
                    await self._wait(retry_s)
                    retry_s = min(2 * retry_s, LAST_RETRY_S)
                is_first = False
        finally:
            await self._nodes.close()

    async def _heard(self, pubsub: PubSub) -> AsyncGenerator[EventMessage, None]:
        try:
            while not self._closed.is_set():
                message = await pubsub.get_message(timeout=CHECK_CLOSED_EVERY_S)
                if message is not None:
                    with suppress(msgspec.DecodeError):  # other programs may publish on our channel
                        yield msgspec.json.decode(message["data"], type=EventMessage)
        finally:
            await _close(pubsub)

    async def _wait(self, delay_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await self._closed.wait()

    @override
    async def close(self) -> None:
        # The connection is freed by `messages`, which may be in the middle of it.
        self._closed.set()


async def _subscribed(client: Redis) -> PubSub:
    pubsub = client.pubsub(ignore_subscribe_messages=True)
    try:
        await pubsub.subscribe(EVENTS_CHANNEL)
    except _CONNECTION_ERRORS:
        await _close(pubsub)
        raise
    return pubsub


async def _close(pubsub: PubSub) -> None:
    await pubsub.aclose()  # type: ignore[no-untyped-call]
