"""The ACL users of docs/queue.md have only the permissions they need; no stream is trimmed."""

import asyncio
import re
from contextlib import closing
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from app.errors import QueueUnavailable, StartUpFailed
from app.ingest.queue import stream_key
from app.ingest.redis.admission import GuardedWriter
from app.ingest.redis.events import RedisAnnouncer, RedisListener
from app.ingest.redis.queue import RedisReader, RedisWriter
from tests import redis_servers

ROOT = Path(__file__).parents[3]
LINES = re.findall(r"^ACL SETUSER .*$", (ROOT / "docs/queue.md").read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """A server with both users, and a connection that was made before the default one was off."""
    with (
        redis_servers.single(tmp_path_factory.mktemp("users")) as group,
        closing(group.servers[0].client()) as admin,
    ):
        for line in LINES:
            admin.execute_command(*line.split())
        yield group, admin


@pytest.fixture
def group(started):
    group, admin = started
    admin.flushall()
    return group


def url_of(group, user):
    port = group.servers[0].port
    return f"redis://paceline-{user}:{user.upper()}-PASSWORD@127.0.0.1:{port}"


def test_both_users_have_the_permissions_they_need(group):
    async def run():
        writer = GuardedWriter(url_of(group, "api"), 2, wait_replicas=0)
        await writer.check()
        await writer.append("job", b"x")
        assert sum((await writer.lag()).entries) == 1
        await writer.close()

    asyncio.run(run())
    reader = RedisReader(url_of(group, "consumer"))
    assert reader.weaknesses() == ()
    [entry] = reader.read(range(2), "a", count=9, block_s=0.1)
    assert reader.oldest(entry.shard) == reader.newest(entry.shard) == entry.entry_id
    [again] = reader.take_over(entry.shard, "b", min_idle_s=0)
    reader.done(entry.shard, [again.entry_id])
    assert reader.backlog(entry.shard) == 0
    reader.close()


def test_consumer_announcements_reach_the_api(group):
    async def run():
        listener = RedisListener(url_of(group, "api"))
        announcer = RedisAnnouncer(url_of(group, "consumer"))
        messages = listener.messages()
        first = asyncio.ensure_future(anext(messages))
        while not first.done():
            await asyncio.to_thread(announcer.announce, {"kind": "window"})
            await asyncio.wait([first], timeout=0.05)
        await listener.close()
        rest = [message async for message in messages]
        announcer.close()
        return [first.result(), *rest]

    assert all(message == {"kind": "window"} for message in asyncio.run(run()))


def test_an_append_of_the_api_may_wait_for_replicas(group):
    async def run():
        writer = RedisWriter(url_of(group, "api"), 1, wait_replicas=1)
        with pytest.raises(QueueUnavailable, match="fewer than 1 replicas"):
            await writer.append("job", b"x")
        await writer.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("user", "command"),
    [
        ("api", ["FLUSHALL"]),
        ("api", ["CONFIG", "SET", "appendfsync", "no"]),
        ("api", ["XREADGROUP", "GROUP", "consumers", "a", "STREAMS", stream_key(0), ">"]),
        ("api", ["XDEL", stream_key(0), "1-1"]),
        ("api", ["XADD", "other", "*", "a", "b"]),
        ("consumer", ["XADD", stream_key(0), "*", "job", "a"]),
        ("consumer", ["XTRIM", stream_key(0), "MAXLEN", "0"]),
        ("consumer", ["FLUSHALL"]),
        ("consumer", ["CONFIG", "SET", "appendfsync", "no"]),
        (
            "consumer",
            ["EVAL", "return redis.call('XADD', KEYS[1], '*', 'a', 'b')", "1", stream_key(0)],
        ),
    ],
)
def test_both_users_are_denied_other_commands(group, user, command):
    with (
        closing(redis.Redis.from_url(url_of(group, user))) as client,
        pytest.raises(redis.ResponseError, match=r"(?i)permission"),
    ):
        client.execute_command(*command)


def test_connections_without_a_user_are_refused(group):
    once = Retry(NoBackoff(), 0)
    with (
        closing(group.servers[0].client(retry=once)) as client,
        pytest.raises(redis.AuthenticationError),
    ):
        client.ping()


def test_hidden_configuration_is_refused_unless_lossy_is_allowed(tmp_path):
    async def check(url, *, allow_lossy):
        writer = RedisWriter(url, 1, allow_lossy=allow_lossy)
        try:
            await writer.check()
        finally:
            await writer.close()

    with redis_servers.single(tmp_path) as group:
        with closing(group.servers[0].client()) as admin:
            admin.execute_command("ACL", "SETUSER", "default", "-config")
        with pytest.raises(StartUpFailed, match=r"config\|get.*--allow-lossy"):
            asyncio.run(check(group.url, allow_lossy=False))
        asyncio.run(check(group.url, allow_lossy=True))


def test_nothing_in_the_service_trims_a_stream():
    """An acknowledged batch stays until a consumer is done with it, however many wait."""
    trims = re.compile(r"xtrim|maxlen\b|minid\b", re.IGNORECASE)
    texts = (path.read_text().replace("deque(maxlen", "") for path in (ROOT / "app").rglob("*.py"))
    assert [found for text in texts for found in trims.findall(text)] == []
