"""The servers behind the event queue, for an event loop: one, or the primaries of a cluster."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from redis.asyncio import Redis
from redis.exceptions import ClusterDownError, MovedError, RedisError
from typing_extensions import override

from app.ingest.redis_connection import MAX_CONNECTIONS, close_async, connect_async
from app.ingest.redis_nodes import STALE
from app.ingest.redis_slots import SlotMap
from app.ingest.redis_url import Address, QueueUrl, parse

ResultT = TypeVar("ResultT")


class AsyncNodes(ABC):
    """Runs commands where their keys are. All methods may raise RedisError."""

    @abstractmethod
    async def run(self, key: str, command: Callable[[Redis], Awaitable[ResultT]]) -> ResultT:
        """The command's answer from the server that holds the key."""

    @abstractmethod
    async def home(self, key: str) -> str:
        """A name of the server that holds the key; two keys with one name share its memory."""

    @abstractmethod
    async def primaries(self) -> Sequence[Redis]:
        """Every server that takes entries."""

    @abstractmethod
    async def close(self) -> None:
        """Free the connections; a further command makes new ones."""


def open_async_nodes(url: str, *, max_connections: int = MAX_CONNECTIONS) -> AsyncNodes:
    """The servers that a URL names; nothing is connected yet.

    Raises:
        StartUpFailed: the URL cannot be used.
    """
    where = parse(url)
    if where.kind == "cluster":
        return AsyncClusterNodes(where, max_connections)
    return AsyncOneNode(connect_async(where, max_connections=max_connections))


class AsyncOneNode(AsyncNodes):
    """One server, or whichever is the primary now that sentinels watch."""

    def __init__(self, client: Redis) -> None:
        self._client = client

    @override
    async def run(self, key: str, command: Callable[[Redis], Awaitable[ResultT]]) -> ResultT:
        return await command(self._client)

    @override
    async def home(self, key: str) -> str:
        return ""

    @override
    async def primaries(self) -> Sequence[Redis]:
        return [self._client]

    @override
    async def close(self) -> None:
        await close_async(self._client)


class AsyncClusterNodes(AsyncNodes):
    """The primaries of a cluster; MOVED is followed once, anything else is for the caller."""

    def __init__(self, where: QueueUrl, max_connections: int) -> None:
        self._where = where
        self._max_connections = max_connections
        self._slots = SlotMap(where.addresses)
        self._clients: dict[Address, Redis] = {}

    @override
    async def run(self, key: str, command: Callable[[Redis], Awaitable[ResultT]]) -> ResultT:
        await self._find()
        address = self._slots.primary_of(key)
        try:
            return await command(self._client(address))
        except MovedError as error:
            self._slots.moved(error.slot_id, (error.host or address[0], error.port))
            return await command(self._client(self._slots.primary_of(key)))
        except STALE:
            self._slots.doubt()
            raise

    @override
    async def home(self, key: str) -> str:
        await self._find()
        host, port = self._slots.primary_of(key)
        return f"{host}:{port}"

    @override
    async def primaries(self) -> Sequence[Redis]:
        await self._find()
        return [self._client(address) for address in self._slots.primaries()]

    async def _find(self) -> None:
        if self._slots.is_known:
            return
        last: Exception | None = None
        for address in self._slots.to_ask():
            try:
                client: Any = self._client(address)
                answer = await client.execute_command("CLUSTER SLOTS")
            except (RedisError, OSError) as error:
                last = error
            else:
                self._slots.learn(answer, address)
                return
        raise last or ClusterDownError("the cluster names no node")

    def _client(self, address: Address) -> Redis:
        if address not in self._clients:
            where = self._where.of_node(address)
            self._clients[address] = connect_async(where, max_connections=self._max_connections)
        return self._clients[address]

    @override
    async def close(self) -> None:
        clients, self._clients = self._clients, {}
        for client in clients.values():
            await close_async(client)
