"""Resumed event streams get each missed event once, or start with a snapshot."""

import asyncio
import json

import pytest

from app.api.routes.events import EventStream
from app.api.service.hub import MAX_WAITING, EventHub, RecentEvents, StreamEvent
from tests.api.routes.test_events import Reader, always, reading, scope
from tests.ingest.memory_queue import MemoryQueue

pytestmark = pytest.mark.anyio


def hub_with(num_events, project="default"):
    hub = EventHub(MemoryQueue(1).listener())
    for number in range(1, num_events + 1):
        hub.publish(StreamEvent("window", {"number": number}, project))
    return hub


def id_of(hub, number):
    """Id of the hub's event of this number."""
    return f"{hub.last_id.partition('-')[0]}-{number}"


async def resumed_events(hub, after, project="default"):
    """Events of a page that resumes after this id, as (name, data)."""
    reader = Reader()
    hub.close()
    stream = EventStream(hub, project, lambda: {"items": []}, may_go_on=always, last_event_id=after)
    async with asyncio.timeout(5):
        await stream(scope(), reader.receive, reader.sent.put)
    await reader.start()
    text = ""
    while not reader.sent.empty():
        text += await reader.part()
    blocks = [block.split("\n") for block in text.split("\n\n") if "event: " in block]
    fields = [dict(line.split(": ", 1) for line in block if line[0] != ":") for block in blocks]
    return [(field["event"], json.loads(field["data"])) for field in fields]


async def test_resumed_stream_gets_missed_events_and_no_snapshot():
    hub = hub_with(5)
    found = await resumed_events(hub, id_of(hub, 3))
    assert found == [("window", {"number": 4}), ("window", {"number": 5})]


async def test_resumed_stream_repeats_no_event():
    hub = hub_with(5)
    assert await resumed_events(hub, hub.last_id) == []


@pytest.mark.parametrize("after", ["", "x", "abc-1", "-3", "0" * 500, "{boot}-6", "{boot}--1"])
async def test_unknown_event_id_starts_with_a_snapshot(after):
    hub = hub_with(5)
    after = after.replace("{boot}", hub.last_id.partition("-")[0])
    assert await resumed_events(hub, after) == [("snapshot", {"items": []})]


async def test_missed_events_of_another_project_are_not_sent():
    hub = hub_with(5, project="research")
    assert await resumed_events(hub, id_of(hub, 0)) == []


async def test_too_many_missed_events_give_one_resync():
    hub = hub_with(MAX_WAITING + 1)
    assert await resumed_events(hub, id_of(hub, 0)) == [("resync", {})]


def test_forgotten_events_are_reported_as_unknown():
    recent = RecentEvents(max_events=3)
    first = [recent.keep(StreamEvent("window", {"number": number})) for number in range(5)]
    assert recent.since(first[0].event_id) is None
    assert recent.since(first[1].event_id) == first[2:]
    assert recent.since(first[4].event_id) == []
    # After a restart of the service the same number is another event.
    again = RecentEvents(max_events=3)
    again.keep(StreamEvent("window", {"number": 0}))
    assert again.since(first[0].event_id) is None


async def test_heartbeat_advances_the_id_past_other_projects():
    hub = EventHub(MemoryQueue(1).listener())
    reader = Reader()
    stream = EventStream(hub, "default", dict, may_go_on=always, heartbeat_s=0.01)
    task = asyncio.create_task(stream(scope(), reader.receive, reader.sent.put))
    await reader.start()
    await reader.event()
    hub.publish(StreamEvent("window", {}, "research"))
    while f"id: {hub.last_id}\nevent: heartbeat\n" not in await reader.part():
        pass
    hub.close()
    async with asyncio.timeout(5):
        await task


async def test_stream_resumes_by_header_and_by_query(api):
    await api.register("job-a")
    async with reading(api.app) as reader:
        await reader.start()
        await reader.event()
        api.queue.announcer.announce(
            {"event": "window", "job_id": "default/job-a", "window": "1-0"}
        )
        await reader.event()
        last_id = reader.last_id
    api.queue.announcer.announce({"event": "window", "job_id": "default/job-a", "window": "1-8"})
    wanted = ("window", {"job_id": "job-a", "window": "1-8"})
    header = {"headers": [*scope()["headers"], (b"last-event-id", last_id.encode())]}
    address = {"query_string": f"after={last_id}".encode()}
    for changes in (header, address):
        reader = Reader()
        asked = api.app(scope() | changes, reader.receive, reader.sent.put)
        task = asyncio.create_task(asked)
        await reader.start()
        assert (await reader.part()).startswith(":")
        assert await reader.event() == wanted
        reader.disconnected.set()
        await task
