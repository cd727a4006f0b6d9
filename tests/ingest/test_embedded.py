"""The embedded event queue is durable and ends with its parent process."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from app.errors import QueueUnavailable, StartUpFailed
from app.ingest.embedded import EmbeddedQueue
from app.ingest.redis.events import RedisAnnouncer, RedisListener
from app.ingest.redis.queue import RedisReader, RedisWriter
from tests.harness.processes import is_alive, wait_until

PARENT = """
import signal, sys, time
from pathlib import Path
from app.ingest.embedded import EmbeddedQueue
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore it
queue = EmbeddedQueue(Path(sys.argv[1]))
queue.start()
print(queue.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def queue(tmp_path):
    queue = EmbeddedQueue(tmp_path)
    yield queue
    queue.stop()


def append(url, *bodies):
    async def run():
        writer = RedisWriter(url, 1)
        await writer.check()
        for body in bodies:
            await writer.append("job", body)
        await writer.close()

    asyncio.run(run())


def bodies(url, consumer):
    reader = RedisReader(url)
    try:
        pending = reader.take_over(0, consumer, min_idle_s=0)
        return [e.body for e in [*pending, *reader.read([0], consumer, count=99, block_s=0.0)]]
    finally:
        reader.close()


def kill(queue):
    """Kills the server, and returns once it has ended."""
    os.kill(queue.pid, signal.SIGKILL)
    wait_until(lambda: not queue.alive(), "the server has ended", 10.0)


def test_entries_and_pending_deliveries_survive_server_kills(queue):
    url = queue.start()
    expected = []
    for number in range(3):
        body = str(number).encode()
        append(url, body)
        expected.append(body)
        assert bodies(url, "consumer") == expected
        kill(queue)
        assert queue.start() == url


def test_a_killed_server_is_unavailable_until_it_is_started_again(queue):
    url = queue.start()

    async def run():
        writer = RedisWriter(url, 1)
        await writer.append("job", b"1")
        kill(queue)
        with pytest.raises(QueueUnavailable):
            await writer.append("job", b"2")
        queue.start()
        await writer.append("job", b"3")
        await writer.close()

    asyncio.run(run())
    assert bodies(url, "consumer") == [b"1", b"3"]


def test_a_listener_reports_a_lost_server(queue):
    url = queue.start()

    async def run():
        listener, announcer = RedisListener(url), RedisAnnouncer(url)
        messages = listener.messages()
        first = asyncio.ensure_future(anext(messages))
        while not first.done():
            announcer.announce({"number": 1})
            await asyncio.wait([first], timeout=0.05)
        kill(queue)
        queue.start()
        # Announcements repeated before the first was received arrive repeatedly.
        while (missed := await asyncio.wait_for(anext(messages), 10)) == {"number": 1}:
            pass
        announcer.announce({"number": 2})
        after = await asyncio.wait_for(anext(messages), 10)
        await listener.close()
        assert [message async for message in messages] == []
        announcer.close()
        return missed, after

    assert asyncio.run(run()) == (None, {"number": 2})


def test_a_stopped_queue_keeps_its_entries(tmp_path):
    first = EmbeddedQueue(tmp_path)
    append(first.start(), b"x")
    first.stop()
    assert not first.alive()
    second = EmbeddedQueue(tmp_path)
    assert bodies(second.start(), "c") == [b"x"]
    second.stop()


def test_a_directory_in_use_is_refused(queue, tmp_path):
    queue.start()
    with pytest.raises(StartUpFailed, match=f"in use by process {os.getpid()}"):
        EmbeddedQueue(tmp_path).start()
    assert queue.alive()


def test_a_directory_with_a_long_path_works(tmp_path):
    deep = EmbeddedQueue(tmp_path / ("x" * 60) / ("y" * 60))
    url = deep.start()
    append(url, b"x")
    deep.stop()
    assert not Path(url.removeprefix("unix://")).parent.exists()


def test_server_start_failure_names_the_log_file(tmp_path):
    (tmp_path / "queue" / "appendonlydir").mkdir(parents=True)
    manifest = tmp_path / "queue" / "appendonlydir" / "appendonly.aof.manifest"
    manifest.write_text("not a manifest\n")
    broken = EmbeddedQueue(tmp_path)
    with pytest.raises(StartUpFailed, match=r"gave up; see .*server\.log"):
        broken.start()
    broken.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="children of a killed parent end on Linux only")
@pytest.mark.parametrize(
    "signal_",
    [
        signal.SIGKILL,
        *(
            pytest.param(each, marks=pytest.mark.nightly)
            for each in (signal.SIGTERM, signal.SIGINT)
        ),
    ],
)
def test_server_ends_with_its_parent_and_keeps_its_entries(tmp_path, signal_):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert parent.stdout is not None
    server = int(parent.stdout.readline())
    append(f"unix://{tmp_path}/queue/valkey.sock", b"kept")
    parent.send_signal(signal_)
    successor = EmbeddedQueue(tmp_path)
    parent.wait(10)
    wait_until(lambda: not is_alive(server), "the server has ended", 10.0)
    assert bodies(successor.start(), "successor") == [b"kept"]
    successor.stop()
    parent.stdout.close()
