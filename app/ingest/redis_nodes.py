"""The servers behind the event queue, for threads: one, or the primaries of a cluster."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import redis
from redis import exceptions
from redis.exceptions import ClusterDownError, MovedError, RedisError
from typing_extensions import override

from app.ingest.redis_connection import MAX_CONNECTIONS, close, connect
from app.ingest.redis_slots import SlotMap
from app.ingest.redis_url import Address, QueueUrl, parse

# After these, another node may be the primary.
STALE = (
    ClusterDownError,
    exceptions.ConnectionError,  # BusyLoadingError is one
    exceptions.ReadOnlyError,
    exceptions.TimeoutError,
    OSError,
)

ResultT = TypeVar("ResultT")


class Nodes(ABC):
    """Runs commands where their keys are. All methods may raise RedisError."""

    reads_together: bool
    """Whether one command may read several shards."""

    @abstractmethod
    def run(self, key: str, command: Callable[[redis.Redis], ResultT]) -> ResultT:
        """The command's answer from the server that holds the key."""

    @abstractmethod
    def primaries(self) -> Sequence[redis.Redis]:
        """Every server that takes entries."""

    @abstractmethod
    def close(self) -> None:
        """Free the connections."""


def open_nodes(url: str, *, max_connections: int = MAX_CONNECTIONS) -> Nodes:
    """The servers that a URL names; nothing is connected yet.

    Raises:
        StartUpFailed: the URL cannot be used.
    """
    where = parse(url)
    if where.kind == "cluster":
        return ClusterNodes(where, max_connections)
    return OneNode(connect(where, max_connections=max_connections))


class OneNode(Nodes):
    """One server, or whichever is the primary now that sentinels watch."""

    reads_together = True

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    @override
    def run(self, key: str, command: Callable[[redis.Redis], ResultT]) -> ResultT:
        return command(self._client)

    @override
    def primaries(self) -> Sequence[redis.Redis]:
        return [self._client]

    @override
    def close(self) -> None:
        close(self._client)


class ClusterNodes(Nodes):
    """The primaries of a cluster; MOVED is followed once, anything else is for the caller.

    redis-py's own cluster client tries failed commands again, so an append could be there twice
    and a dead node would hold a request for seconds.
    """

    reads_together = False

    def __init__(self, where: QueueUrl, max_connections: int) -> None:
        self._where = where
        self._max_connections = max_connections
        self._slots = SlotMap(where.addresses)
        self._clients: dict[Address, redis.Redis] = {}

    @override
    def run(self, key: str, command: Callable[[redis.Redis], ResultT]) -> ResultT:
        self._find()
        address = self._slots.primary_of(key)
        try:
            return command(self._client(address))
        except MovedError as error:
            self._slots.moved(error.slot_id, (error.host or address[0], error.port))
            return command(self._client(self._slots.primary_of(key)))
        except STALE:
            self._slots.doubt()
            raise

    @override
    def primaries(self) -> Sequence[redis.Redis]:
        self._find()
        return [self._client(address) for address in self._slots.primaries()]

    def _find(self) -> None:
        if self._slots.is_known:
            return
        last: Exception | None = None
        for address in self._slots.to_ask():
            try:
                client: Any = self._client(address)
                answer = client.execute_command("CLUSTER SLOTS")
            except (RedisError, OSError) as error:
                last = error
            else:
                self._slots.learn(answer, address)
                return
        raise last or ClusterDownError("the cluster names no node")

    def _client(self, address: Address) -> redis.Redis:
        if address not in self._clients:
            where = self._where.of_node(address)
            self._clients[address] = connect(where, max_connections=self._max_connections)
        return self._clients[address]

    @override
    def close(self) -> None:
        for client in self._clients.values():
            close(client)
        self._clients.clear()
