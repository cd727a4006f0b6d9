"""Appends share connections and round trips, but each has its own outcome."""

import asyncio
import contextlib

import pytest
import redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import MovedError, OutOfMemoryError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from app.errors import QueueUnavailable
from app.ingest.redis.nodes import connect_async
from app.ingest.redis.queue import APPEND_GROUP_COUNT, APPEND_LANES, RedisAppender
from app.ingest.redis.url import parse_queue_url

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def server(valkey_url):
    with redis.Redis.from_url(valkey_url) as client:
        client.flushall()
        limit_bytes = client.config_get("maxmemory")["maxmemory"]
        yield client
        client.config_set("maxmemory", limit_bytes)
        client.flushall()


@pytest.fixture
async def client(valkey_url):
    client = connect_async(parse_queue_url(valkey_url))
    yield client
    await client.aclose()
    await client.connection_pool.disconnect()


def stored(server, key="stream"):
    return [(fields[b"job"], fields[b"body"]) for _, fields in server.xrange(key)]


async def outcomes(*appends):
    return await asyncio.gather(*appends, return_exceptions=True)


async def test_appended_entries_are_stored_unchanged(client, server):
    bodies = [b"", b"\x00\r\n\xff", b"x" * 1_000_000]
    appender = RedisAppender(client)
    for body in bodies:
        await appender.append("stream", "a/job", body)
    assert stored(server) == [(b"a/job", body) for body in bodies]


async def test_many_concurrent_appends_all_succeed_on_few_connections(client, server):
    appender = RedisAppender(client)
    num_appends = 5 * APPEND_LANES * APPEND_GROUP_COUNT
    connections = server.info("stats")["total_connections_received"]
    bodies = [b"%d" % number for number in range(num_appends)]
    found = await outcomes(*(appender.append("stream", "job", body) for body in bodies))
    assert found == [None] * num_appends
    assert sorted(body for _, body in stored(server)) == sorted(bodies)
    assert server.info("stats")["total_connections_received"] - connections <= APPEND_LANES


async def test_a_refused_append_affects_no_other(client, server):
    server.set("no stream", "x")
    appender = RedisAppender(client)
    keys = ["stream", "no stream", "stream"] * 10
    found = await outcomes(*(appender.append(key, "job", b"x") for key in keys))
    for key, outcome in zip(keys, found, strict=True):
        assert isinstance(outcome, ResponseError) if key == "no stream" else outcome is None
    assert len(stored(server)) == 20


async def test_full_server_refuses_and_accepts_again_with_room(client, server):
    appender = RedisAppender(client)
    server.config_set("maxmemory", 1)
    with pytest.raises(OutOfMemoryError):
        await appender.append("stream", "job", b"x")
    server.config_set("maxmemory", 0)
    await appender.append("stream", "job", b"x")
    assert len(stored(server)) == 1


async def test_too_few_replicas_fail_the_append(client, server):
    appender = RedisAppender(client, wait_replicas=1, wait_ms=1)
    found = await outcomes(*(appender.append("stream", "job", b"x") for _ in range(3)))
    assert [type(outcome) for outcome in found] == [QueueUnavailable] * 3


async def test_a_cancelled_append_affects_no_other(client, server):
    appender = RedisAppender(client)
    cancelled = asyncio.create_task(appender.append("stream", "job", b"cancelled"))
    other = asyncio.create_task(appender.append("stream", "job", b"other"))
    await asyncio.sleep(0)
    cancelled.cancel()
    await other
    assert (b"job", b"other") in stored(server)


async def test_connections_closed_by_the_server_are_reopened(client, server):
    appender = RedisAppender(client)
    await appender.append("stream", "job", b"1")
    server.client_kill_filter(_type="normal", skipme=True)
    for _ in range(3):  # turns of the event loop, to notice the closed connection
        await asyncio.sleep(0)
    await appender.append("stream", "job", b"2")
    assert len(stored(server)) == 2


@contextlib.asynccontextmanager
async def scripted_server(answer):
    """A client of a server with one answer to every append; None hangs up, b"" is silent."""

    async def serve(reader, writer):
        writers.append(writer)
        with contextlib.suppress(ConnectionError):
            while sent := await reader.read(1 << 16):
                writer.write(b"+OK\r\n" * sent.count(b"SETINFO") + b"+PONG\r\n" * (b"PING" in sent))
                if b"XADD" in sent and answer is None:
                    break
                writer.write(answer if b"XADD" in sent else b"")
        writer.close()

    writers: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(serve, "127.0.0.1")
    port = server.sockets[0].getsockname()[1]
    client = connect_async(parse_queue_url(f"redis://127.0.0.1:{port}"))
    async with server:
        yield client, writers
        await client.aclose()
        await client.connection_pool.disconnect()


async def test_all_appends_time_out_on_a_silent_server():
    async with scripted_server(b"") as (client, connections):
        appender = RedisAppender(client, timeout_s=0.05)
        many = 2 * APPEND_LANES * APPEND_GROUP_COUNT
        found = await outcomes(*(appender.append("stream", "job", b"x") for _ in range(many)))
    assert {type(outcome) for outcome in found} == {RedisTimeoutError}
    assert len({id(outcome) for outcome in found}) == many
    assert len(connections) == APPEND_LANES  # no retry


NO_PRIMARY = b"-ERR WAIT cannot be used with replica instances.\r\n"


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (b"-MOVED 7 127.0.0.1:2\r\n" + NO_PRIMARY, MovedError),
        (b"-OOM command not allowed\r\n:0\r\n", OutOfMemoryError),
        (b"$3\r\n1-0\r\n" + NO_PRIMARY, QueueUnavailable),
    ],
    ids=["moved", "full", "demoted between batch and wait"],
)
async def test_what_the_server_says_of_the_batch_counts_before_the_wait(answer, outcome):
    async with scripted_server(answer) as (client, _):
        appender = RedisAppender(client, wait_replicas=1)
        assert [type(each) for each in await outcomes(appender.append("stream", "job", b"x"))] == [
            outcome
        ]


@pytest.mark.parametrize(("wait", "of_stored"), [(b":1\r\n", None), (NO_PRIMARY, QueueUnavailable)])
async def test_a_batch_that_moved_and_one_that_is_stored_have_each_their_outcome(wait, of_stored):
    answers = b"$3\r\n1-0\r\n-MOVED 7 127.0.0.1:2\r\n" + wait
    async with scripted_server(answers) as (client, _):
        appender = RedisAppender(client, wait_replicas=1)
        stored, moved = await outcomes(*(appender.append("stream", "job", b"x") for _ in range(2)))
    assert isinstance(moved, MovedError)
    assert stored is None if of_stored is None else isinstance(stored, of_stored)


@pytest.mark.parametrize("answer", [None, b"no redis\r\n"], ids=["hangs up", "talks nonsense"])
async def test_broken_connection_fails_every_append(answer):
    async with scripted_server(answer) as (client, _):
        appender = RedisAppender(client)
        found = await outcomes(*(appender.append("stream", "job", b"x") for _ in range(100)))
    assert all(isinstance(outcome, RedisError) for outcome in found)
    assert not any(isinstance(outcome, RedisTimeoutError) for outcome in found)


async def test_unreachable_server_fails_every_append():
    client = connect_async(parse_queue_url("redis://127.0.0.1:1"))
    appender = RedisAppender(client)
    found = await outcomes(*(appender.append("stream", "job", b"x") for _ in range(100)))
    assert {type(outcome) for outcome in found} == {RedisConnectionError}
    await client.aclose()
