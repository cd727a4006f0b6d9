"""Admission refuses batches before the queue is full, reopens, and shares room fairly."""

import asyncio
from contextlib import closing

import pytest

from app.errors import QueueFull, QueueUnavailable
from app.ingest.redis.admission import Admission, GuardedWriter, MemoryGauge, ServerMemory
from app.ingest.redis.queue import RedisReader
from tests import redis_servers

LIMIT = 100_000_000


class AdmissionHarness:
    """An admission with a server memory and a clock that the test sets."""

    def __init__(self):
        self.now_s = 0.0
        self.used_bytes = 0
        self.num_measurements = 0
        self.gauge = MemoryGauge(self._measure, lambda: self.now_s)
        self.admission = Admission(self._gauge_of, lambda: self.now_s)

    async def _measure(self):
        self.num_measurements += 1
        return ServerMemory(self.used_bytes, LIMIT)

    async def _gauge_of(self, _shard):
        return self.gauge

    async def send(self, size_bytes=1000, project="a"):
        async with self.admission.admitted(f"{project}/job", 0, size_bytes):
            pass

    async def is_refused(self, size_bytes=1000, project="a"):
        try:
            await self.send(size_bytes, project)
        except QueueFull:
            return True
        return False

    async def is_refused_at(self, used_bytes):
        """Whether a batch is refused once the server uses that many bytes."""
        self.now_s += 1.0
        self.used_bytes = used_bytes
        return await self.is_refused()


def test_admission_closes_at_80_percent_and_opens_below_70():
    async def run():
        harness = AdmissionHarness()
        levels = (0.5, 0.79, 0.8, 0.75, 0.7, 0.69, 0.75)
        return [await harness.is_refused_at(int(level * LIMIT)) for level in levels]

    assert asyncio.run(run()) == [False, False, True, True, True, False, False]


def test_burst_between_measurements_stops_at_the_limit():
    async def run():
        harness = AdmissionHarness()
        refused = [await harness.is_refused(1_000_000) for _ in range(100)]
        return refused.index(True), harness.num_measurements

    # 80 % of 100 MB at 1.25 MB each.
    assert asyncio.run(run()) == (63, 1)


def test_requests_under_way_count_after_the_next_measurement():
    async def run():
        harness = AdmissionHarness()
        async with harness.admission.admitted("a/job", 0, 60_000_000):
            harness.now_s += 1.0
            return await harness.is_refused(10_000_000)

    assert asyncio.run(run())


def test_one_project_cannot_fill_the_queue_for_the_others():
    async def run():
        harness = AdmissionHarness()
        await harness.send(1000, "small")
        refused = [await harness.is_refused(1_000_000, "greedy") for _ in range(100)]
        for _ in range(100):  # also on every retry
            assert await harness.is_refused(1_000_000, "greedy")
            await harness.send(10_000, "small")
        return refused.index(True)

    assert asyncio.run(run()) in (31, 32)  # 40 % of 100 MB


def test_projects_that_send_the_same_are_admitted_equally():
    async def run():
        harness = AdmissionHarness()
        sent = {"a": 0, "b": 0}
        for _ in range(31):
            for project in sent:
                await harness.send(1_000_000, project)
                sent[project] += 1
        return sent

    assert asyncio.run(run()) == {"a": 31, "b": 31}


def test_old_traffic_of_a_project_does_not_count():
    async def run():
        harness = AdmissionHarness()
        await harness.send(30_000_000, "a")
        harness.now_s += 60.0
        harness.used_bytes = int(0.5 * LIMIT)
        await harness.send(3_000, "b")
        await harness.send(1_000, "a")

    asyncio.run(run())


@pytest.fixture
def small_server(tmp_path):
    with redis_servers.single(tmp_path, maxmemory="32mb") as group:
        yield group


def test_real_server_refuses_before_full_and_accepts_once_drained(small_server):
    async def run():
        writer = GuardedWriter(small_server.url, 1)
        sent = await sent_until_full(writer)
        with closing(small_server.servers[0].client()) as client:
            memory = client.info("memory")
        assert 0.5 < memory["used_memory"] / memory["maxmemory"] < 0.9
        drained = drain(small_server.url)
        assert drained == sent
        async with asyncio.timeout(10):
            while True:
                try:
                    await writer.append("job", b"x")
                    break
                except QueueFull:
                    await asyncio.sleep(0.02)
        await writer.close()

    asyncio.run(run())


async def sent_until_full(writer):
    sent = 0
    try:
        while True:
            await writer.append("job", b"x" * 500_000)
            sent += 1
    except QueueFull:
        return sent


def drain(url):
    reader = RedisReader(url)
    drained = 0
    while entries := reader.read([0], "a", count=99, block_s=0.0):
        reader.done(0, [entry.entry_id for entry in entries])
        drained += len(entries)
    reader.close()
    return drained


def test_appends_are_refused_while_the_server_is_not_durable(small_server):
    async def run():
        with closing(small_server.servers[0].client()) as client:
            client.config_set("appendfsync", "everysec")
            writer = GuardedWriter(small_server.url, 1)
            with pytest.raises(QueueUnavailable, match="appendfsync always"):
                await writer.append("job", b"x")
            client.config_set("appendfsync", "always")
            await writer.append("job", b"x")
            await writer.close()

    asyncio.run(run())
    assert drain(small_server.url) == 1
