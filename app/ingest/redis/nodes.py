"""Clients of the queue's servers, for threads and for an event loop: one, sentinels or a cluster.

Errors of Redis become ours in `translated`. Commands are never repeated here: an append that is
repeated could be in the queue twice, so the caller decides about another attempt.
"""

import asyncio
import time
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar

import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from redis import exceptions
from redis.asyncio import Redis
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import ClusterDownError, MovedError, OutOfMemoryError, RedisError
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError
from typing_extensions import override

from app.errors import QueueFull, QueueUnavailable
from app.ingest.redis.url import NodeAddress, QueueUrl, parse_queue_url, unusable_url_error

ASK_EVERY_S = 5.0
# Sentinels answer from memory, and a lost one must not delay new connections.
SENTINEL_TIMEOUT_S = 0.5


def newest_primary(
    service: str, answers: Sequence[Any], is_usable: Callable[[Any, str], bool]
) -> NodeAddress:
    """The primary by the answers, or errors, of all sentinels.

    An older one does not count, even where the newest ones say that their primary is down: what is
    written to the one of before would be lost.

    Raises:
        MasterNotFoundError: none of the newest is usable.
    """
    states = [
        answer[service] for answer in answers if isinstance(answer, Mapping) and service in answer
    ]
    newest = max((int(state["config-epoch"]) for state in states), default=0)
    for state in states:
        if int(state["config-epoch"]) == newest and is_usable(state, service):
            return state["ip"], state["port"]
    errors = ", ".join(f"{answer}" for answer in answers if isinstance(answer, BaseException))
    raise MasterNotFoundError(f"no sentinel names a primary of {service!r} that is up: {errors}")


class Sentinels(redis.sentinel.Sentinel):
    """Sentinels for threads: the answer with the newest configuration epoch counts."""

    @override
    def discover_master(self, service_name: str) -> NodeAddress:
        answers: list[Any] = []
        for sentinel in self.sentinels:
            try:
                answers.append(sentinel.sentinel_masters())
            except (RedisError, OSError) as error:
                answers.append(error)
        return newest_primary(service_name, answers, self.check_master_state)


class AsyncSentinels(redis.asyncio.sentinel.Sentinel):
    """The same for an event loop."""

    @override
    async def discover_master(self, service_name: str) -> NodeAddress:
        asked: list[Any] = [sentinel.sentinel_masters() for sentinel in self.sentinels]
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


class SlotMap:
    """Slots of a cluster and the addresses of their primaries.

    A cluster tells its slots when asked, and corrects a wrong address by MOVED.
    """

    def __init__(self, seeds: Iterable[NodeAddress]) -> None:
        self._seeds = list(seeds)
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._primaries: list[NodeAddress] = []
        self._moved: dict[int, NodeAddress] = {}
        self._doubts: dict[NodeAddress, int] = {}

    @property
    def is_known(self) -> bool:
        """Whether the slots were read since the last doubt."""
        return bool(self._starts)

    def to_ask(self) -> list[NodeAddress]:
        """Nodes that may know the slots, in the order to ask them in.

        One that is cut off from the others still calls itself the primary of its slots.
        """
        nodes = list(dict.fromkeys([*self._primaries, *self._seeds]))
        return sorted(nodes, key=lambda address: self._doubts.get(address, 0))

    def primaries(self) -> list[NodeAddress]:
        """Every primary, once."""
        return sorted({*self._primaries, *self._moved.values()})

    def learn(self, answer: Any, asked: NodeAddress) -> None:
        """Use the answer of `CLUSTER SLOTS`; a node without an address is the one asked."""
        rows = sorted((int(row[0]), int(row[1]), row[2]) for row in answer)
        self._starts = [first for first, _, _ in rows]
        self._ends = [last for _, last, _ in rows]
        self._primaries = [(_text(node[0]) or asked[0], int(node[1])) for _, _, node in rows]
        self._moved = {}

    def moved(self, slot: int, address: NodeAddress) -> None:
        """A node said that the slot is elsewhere."""
        self._moved[slot] = address

    def doubt(self, address: NodeAddress) -> None:
        """This node does not answer, or is no longer a primary: read the slots again."""
        self._starts = []
        # The one that was doubted last is asked last, so each gets its turn.
        self._doubts[address] = max(self._doubts.values(), default=0) + 1

    def primary_of(self, key: str) -> NodeAddress:
        """Address of the node that holds the key; raises ClusterDownError if no node does."""
        slot = key_slot(key.encode())
        if slot in self._moved:
            return self._moved[slot]
        row = bisect_right(self._starts, slot) - 1
        if row < 0 or slot > self._ends[row]:
            raise ClusterDownError("no node of the cluster holds the slot of this shard")
        return self._primaries[row]


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else (value or "")


TIMEOUT_S = 2.0
MAX_CONNECTIONS = 32  # further callers wait for one, up to TIMEOUT_S
IDLE_CHECK_S = 10

# An append that redis-py repeats by itself could be in the queue twice, and a dead server would
# hold a request for seconds: the caller decides about another attempt.
_TIMEOUTS = ("socket_timeout", "socket_connect_timeout")
_OPTIONS = {
    **dict.fromkeys(_TIMEOUTS, TIMEOUT_S),
    "health_check_interval": IDLE_CHECK_S,
    "protocol": 2,
}
_SENTINEL_OPTIONS = {**_OPTIONS, **dict.fromkeys(_TIMEOUTS, SENTINEL_TIMEOUT_S)}


def connect(where: QueueUrl, *, max_connections: int = MAX_CONNECTIONS) -> redis.Redis:
    """A client for threads, of one server or of the primary that the sentinels name."""
    kinds = redis.BlockingConnectionPool, Sentinels, SentinelPool
    retry = Retry(NoBackoff(), 0)
    return redis.Redis.from_pool(_pool(where, kinds, max_connections, retry))


def connect_async(
    where: QueueUrl, *, max_connections: int = MAX_CONNECTIONS
) -> redis.asyncio.Redis:
    """The same for an event loop."""
    kinds = redis.asyncio.BlockingConnectionPool, AsyncSentinels, AsyncSentinelPool
    retry = AsyncRetry(NoBackoff(), 0)
    return redis.asyncio.Redis.from_pool(_pool(where, kinds, max_connections, retry))


def close(client: redis.Redis) -> None:
    """Free every connection of the client, those to sentinels included."""
    client.close()
    client.connection_pool.disconnect()
    for sentinel in _sentinels(client):
        sentinel.close()


async def close_async(client: redis.asyncio.Redis) -> None:
    """The same for an event loop."""
    pool = client.connection_pool
    if isinstance(pool, AsyncSentinelPool):
        await pool.stop_following()
    await client.aclose()
    await pool.disconnect()
    for sentinel in _sentinels(client):
        await sentinel.aclose()


def _sentinels(client: Any) -> list[Any]:
    manager = getattr(client.connection_pool, "sentinel_manager", None)
    return manager.sentinels if manager else []


def _pool(where: QueueUrl, kinds: tuple[Any, Any, Any], max_connections: int, retry: Any) -> Any:
    """Connections to one server, or to the primary that the sentinels at these addresses name.

    `kinds` are the pool of one server, the sentinels, and the pool of their primary.
    """
    of_server, manager, of_primary = kinds
    options = {
        **_OPTIONS, "max_connections": max_connections, "timeout": TIMEOUT_S, "retry": retry
    }  # fmt: skip
    if where.kind == "sentinel":
        sentinel_options = {**_SENTINEL_OPTIONS, "retry": retry, **where.sentinel_options}
        sentinels = manager(where.addresses, sentinel_kwargs=sentinel_options)
        return of_primary(where.service, sentinels, **options, **where.options)
    try:
        return of_server.from_url(where.url, **options)
    except (ValueError, TypeError):
        raise unusable_url_error() from None


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
        # uvloop's way to say that a connection was lost between two writes.
        if "the handler is closed" not in str(error):
            raise
        raise QueueUnavailable(f"the event queue does not answer: {error}") from error


# After these, another node may be the primary.
STALE_SLOT_ERRORS = (
    ClusterDownError,
    exceptions.ConnectionError,  # BusyLoadingError is one
    exceptions.ReadOnlyError,
    exceptions.TimeoutError,
    OSError,
)

ResultT = TypeVar("ResultT")
ClientT = TypeVar("ClientT")


class ClusterClients(Generic[ClientT]):
    """A cluster's slots and the clients of its nodes; does no I/O itself.

    MOVED is followed once, anything else is for the caller. redis-py's own cluster client tries
    failed commands again, so an append could be there twice and a dead node would hold a request
    for seconds.
    """

    def __init__(self, where: QueueUrl, connect_node: Callable[[QueueUrl], ClientT]) -> None:
        self._where = where
        self._connect_node = connect_node
        self._clients: dict[NodeAddress, ClientT] = {}
        self.slots = SlotMap(where.addresses)

    def client(self, address: NodeAddress) -> ClientT:
        """The client of the node at this address."""
        if address not in self._clients:
            self._clients[address] = self._connect_node(self._where.of_node(address))
        return self._clients[address]

    def client_after_move(self, key: str, error: MovedError, asked: NodeAddress) -> ClientT:
        """The client to repeat a command on that `asked` answered with MOVED."""
        self.slots.moved(error.slot_id, (error.host or asked[0], error.port))
        return self.client(self.slots.primary_of(key))

    def primaries(self) -> list[ClientT]:
        """A client of every primary."""
        return [self.client(address) for address in self.slots.primaries()]

    def remove_all(self) -> list[ClientT]:
        """Forget the clients, for the caller to close; a further command makes new ones."""
        clients, self._clients = self._clients, {}
        return list(clients.values())

    @contextmanager
    def doubting(self, address: NodeAddress) -> Iterator[None]:
        """After an error that a failover explains, the slots are asked for again."""
        try:
            yield
        except STALE_SLOT_ERRORS:
            self.slots.doubt(address)
            raise


class _OneServer(Generic[ClientT]):
    def __init__(self, client: ClientT) -> None:
        self._client = client

    def run(self, key: str, command: Callable[[ClientT], ResultT]) -> ResultT:
        """The command's answer from the server that holds the key."""
        client: Any = self._client
        if isinstance(client.connection_pool, SentinelPool | AsyncSentinelPool):
            client.connection_pool.follow()
        return command(self._client)


class SingleNode(_OneServer[redis.Redis]):
    """One server, or whichever is the primary now that sentinels watch.

    All methods may raise RedisError. One command may read several shards (`reads_together`).
    """

    reads_together = True

    def primaries(self) -> Sequence[redis.Redis]:
        """Every server that takes entries."""
        return [self._client]

    def close(self) -> None:
        """Free the connections."""
        close(self._client)


class ClusterNodes:
    """The same for the primaries of a cluster: each command goes where its key is."""

    reads_together = False

    def __init__(self, where: QueueUrl, max_connections: int) -> None:
        self._cluster = ClusterClients(
            where, lambda node: connect(node, max_connections=max_connections)
        )

    def run(self, key: str, command: Callable[[redis.Redis], ResultT]) -> ResultT:
        """The command's answer from the server that holds the key."""
        self._find()
        address = self._cluster.slots.primary_of(key)
        try:
            with self._cluster.doubting(address):
                return command(self._cluster.client(address))
        except MovedError as error:
            return command(self._cluster.client_after_move(key, error, address))

    def primaries(self) -> Sequence[redis.Redis]:
        """Every server that takes entries."""
        self._find()
        return self._cluster.primaries()

    def _find(self) -> None:
        slots = self._cluster.slots
        if slots.is_known:
            return
        last: Exception | None = None
        for address in slots.to_ask():
            try:
                client: Any = self._cluster.client(address)
                slots.learn(client.execute_command("CLUSTER SLOTS"), address)
            except (RedisError, OSError) as error:
                last = error
            else:
                return
        raise last or ClusterDownError("the cluster names no node")

    def close(self) -> None:
        """Free the connections."""
        for client in self._cluster.remove_all():
            close(client)


class AsyncSingleNode(_OneServer[Redis]):
    """The same as `SingleNode` for an event loop; a command's answer is awaited."""

    async def home(self, key: str) -> str:
        """A name of the server that holds the key; two keys with one name share its memory."""
        return ""

    async def primaries(self) -> Sequence[Redis]:
        """Every server that takes entries."""
        return [self._client]

    async def close(self) -> None:
        """Free the connections; a further command makes new ones."""
        await close_async(self._client)


class AsyncClusterNodes:
    """The same as `ClusterNodes` for an event loop."""

    def __init__(self, where: QueueUrl, max_connections: int) -> None:
        self._cluster = ClusterClients(
            where, lambda node: connect_async(node, max_connections=max_connections)
        )

    async def run(self, key: str, command: Callable[[Redis], Awaitable[ResultT]]) -> ResultT:
        """The command's answer from the server that holds the key."""
        await self._find()
        address = self._cluster.slots.primary_of(key)
        try:
            with self._cluster.doubting(address):
                return await command(self._cluster.client(address))
        except MovedError as error:
            return await command(self._cluster.client_after_move(key, error, address))

    async def home(self, key: str) -> str:
        """A name of the server that holds the key; two keys with one name share its memory."""
        await self._find()
        host, port = self._cluster.slots.primary_of(key)
        return f"{host}:{port}"

    async def primaries(self) -> Sequence[Redis]:
        """Every server that takes entries."""
        await self._find()
        return self._cluster.primaries()

    async def _find(self) -> None:
        slots = self._cluster.slots
        if slots.is_known:
            return
        last: Exception | None = None
        for address in slots.to_ask():
            try:
                client: Any = self._cluster.client(address)
                slots.learn(await client.execute_command("CLUSTER SLOTS"), address)
            except (RedisError, OSError) as error:
                last = error
            else:
                return
        raise last or ClusterDownError("the cluster names no node")

    async def close(self) -> None:
        """Free the connections; a further command makes new ones."""
        for client in self._cluster.remove_all():
            await close_async(client)


def open_nodes(url: str, *, max_connections: int = MAX_CONNECTIONS) -> SingleNode | ClusterNodes:
    """The servers that a URL names, not yet connected; raises StartUpFailed if it is unusable."""
    where = parse_queue_url(url)
    if where.kind == "cluster":
        return ClusterNodes(where, max_connections)
    return SingleNode(connect(where, max_connections=max_connections))


def open_async_nodes(
    url: str, *, max_connections: int = MAX_CONNECTIONS
) -> AsyncSingleNode | AsyncClusterNodes:
    """The servers that a URL names, not yet connected; raises StartUpFailed if it is unusable."""
    where = parse_queue_url(url)
    if where.kind == "cluster":
        return AsyncClusterNodes(where, max_connections)
    return AsyncSingleNode(connect_async(where, max_connections=max_connections))
