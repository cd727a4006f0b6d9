import asyncio
import contextlib
import json

import pytest
from starlette.types import Message

from app.api.routes.events import EventStream
from app.api.service.hub import MAX_WAITING, EventHub, EventSubscription, StreamEvent
from app.errors import StoreUnavailable, StreamLimit, TooManyRequests
from app.ingest.queue import Listener
from tests.api.server import TOKEN
from tests.ingest.memory_queue import MemoryQueue

pytestmark = pytest.mark.anyio

EVERY_OPTION = EventStream.__init__.__kwdefaults__ or {}
SOON = {"check_every_s": 0.001}


class Reader:
    """A page that reads one stream, message by message."""

    def __init__(self):
        self.sent: asyncio.Queue[Message] = asyncio.Queue()
        self.disconnected = asyncio.Event()

    async def receive(self):
        await self.disconnected.wait()
        return {"type": "http.disconnect"}

    async def start(self):
        message = await self.sent.get()
        assert message["type"] == "http.response.start"
        return message["status"], dict(message["headers"])

    async def part(self):
        return (await self.sent.get())["body"].decode()

    async def event(self):
        event_id, name, data = (await self.part()).removesuffix("\n\n").split("\n")
        self.last_id = event_id.removeprefix("id: ")
        return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


def scope(token=TOKEN):
    return {
        "type": "http",
        "method": "GET",
        "path": "/api/v1/events",
        "raw_path": b"/api/v1/events",
        "query_string": b"",
        "scheme": "http",
        "root_path": "",
        "server": ("localhost", 80),
        "headers": [(b"host", b"localhost"), (b"authorization", f"Bearer {token}".encode())],
    }


@contextlib.asynccontextmanager
async def reading(app):
    reader = Reader()
    task = asyncio.create_task(app(scope(), reader.receive, reader.sent.put))
    try:
        yield reader
    finally:
        reader.disconnected.set()
        async with asyncio.timeout(5):
            await task


async def always():
    return True


async def waiting(subscription):
    """The next event, which must be available."""
    event = await subscription.next(1)
    assert event is not None
    return event


async def test_stream_sends_a_snapshot_and_then_events_in_order(api):
    await api.register("job-a")
    async with reading(api.app) as reader:
        status, headers = await reader.start()
        assert status == 200
        assert headers[b"content-type"].startswith(b"text/event-stream")
        assert headers[b"cache-control"] == b"no-store"
        name, snapshot = await reader.event()
        assert name == "snapshot"
        assert [job["job_id"] for job in snapshot["items"]] == ["job-a"]
        await api.register("job-b")
        assert await reader.event() == ("job", {"job_id": "job-b"})
        for step in (0, 8):
            window = {"job_id": "job-b", "window": f"1-{step}"}
            api.queue.announcer.announce({"event": "window", **window})
            assert await reader.event() == ("window", window)


async def test_lost_queue_connection_sends_a_resync(api):
    async with reading(api.app) as reader:
        await reader.start()
        await reader.event()
        api.queue.listeners[0].lose_connection()
        assert await reader.event() == ("resync", {})


async def test_malformed_event_is_dropped(api):
    async with reading(api.app) as reader:
        await reader.start()
        await reader.event()
        api.queue.announcer.announce({"event": "evil\ndata: x", "job_id": "a"})
        api.queue.announcer.announce({})
        api.queue.announcer.announce({"event": "alert", "job_id": "a"})
        assert await reader.event() == ("alert", {"job_id": "a"})


async def test_closed_page_frees_its_stream(api):
    hub = api.app.state.service.hub
    async with reading(api.app) as reader:
        await reader.start()
        await reader.event()
        assert hub.num_streams == 1
    assert hub.num_streams == 0


async def test_streams_end_when_the_server_stops(api):
    async with reading(api.app) as reader:
        await reader.start()
        await reader.event()
        api.app.state.service.hub.close()
        assert (await reader.sent.get())["more_body"] is False


async def test_streams_of_one_project_leave_room_for_others():
    hub = EventHub(MemoryQueue(1).listener(), max_streams_of_project=1)
    with contextlib.ExitStack() as streams:
        streams.enter_context(hub.subscription("research"))
        with pytest.raises(StreamLimit):
            streams.enter_context(hub.subscription("research"))
        streams.enter_context(hub.subscription("default"))


class FixedListener(Listener):
    """A listener with these messages."""

    def __init__(self, *given):
        self._given = given

    async def messages(self):
        for message in self._given:
            yield message

    async def close(self):
        pass


async def test_stream_has_events_of_its_own_project_only():
    ours, theirs = ({"event": "job", "job_id": key} for key in ("default/b", "research/a"))
    hub = EventHub(FixedListener(theirs, ours, {"event": "job"}))
    with hub.subscription("default") as own, hub.subscription("research") as other:
        await hub.run()
        assert (await waiting(own)).data == {"job_id": "b"}
        assert (await waiting(other)).data == {"job_id": "a"}
        assert await own.next(0) is None
        assert await other.next(0) is None


async def test_idle_stream_sends_heartbeats():
    hub = EventHub(MemoryQueue(1).listener())
    reader = Reader()
    stream = EventStream(hub, "default", dict, may_go_on=always, heartbeat_s=0.01)
    task = asyncio.create_task(stream(scope(), reader.receive, reader.sent.put))
    await reader.start()
    await reader.event()
    assert (await reader.part()).startswith(":")
    hub.close()
    await task


async def test_stream_ends_when_its_caller_becomes_invalid():
    hub, reader = EventHub(MemoryQueue(1).listener()), Reader()
    answers = iter([True, StoreUnavailable("down"), False])

    async def may_go_on():
        if isinstance(answer := next(answers), StoreUnavailable):
            raise answer
        return answer

    stream = EventStream(hub, "default", dict, may_go_on=may_go_on, check_every_s=0.001)
    async with asyncio.timeout(5):
        await stream(scope(), reader.receive, reader.sent.put)
    assert list(answers) == []
    assert hub.num_streams == 0


@pytest.mark.parametrize("way", ["revoked", "over"])
async def test_stream_ends_after_token_revocation_or_expiry(api, monkeypatch, way):
    monkeypatch.setattr(EventStream.__init__, "__kwdefaults__", {**EVERY_OPTION, **SOON})
    token_id, text = api.token("read", expires_s=api.clock() + 60)
    reader = Reader()
    following = asyncio.create_task(api.app(scope(text), reader.receive, reader.sent.put))
    await reader.start()
    await reader.event()
    if way == "revoked":
        assert (await api.client.delete(f"/api/v1/tokens/{token_id}")).status_code == 204
    else:
        api.clock.now_s += 60
    async with asyncio.timeout(5):
        await following


async def test_closed_stream_accepts_no_event():
    subscription = EventSubscription("default")
    subscription.close()
    subscription.offer(StreamEvent("window"))
    assert await subscription.next(1) is None


async def test_frozen_reader_is_disconnected():
    hub = EventHub(MemoryQueue(1).listener())
    stream = EventStream(hub, "default", dict, may_go_on=always, send_within_s=0.01)
    never = asyncio.Event()

    async def frozen(message):
        if message["type"] == "http.response.body":
            await never.wait()

    await stream(scope(), Reader().receive, frozen)
    assert hub.num_streams == 0


async def test_slow_page_gets_one_resync_for_missed_events():
    subscription = EventSubscription("default")
    for number in range(MAX_WAITING + 3):
        subscription.offer(StreamEvent("window", {"number": number}))
    found = [await waiting(subscription) for _ in range(3)]
    assert [event.name for event in found] == ["resync", "window", "window"]
    assert found[1].data == {"number": MAX_WAITING + 1}
    assert await subscription.next(0.01) is None


async def test_full_hub_refuses_with_a_reason():
    hub = EventHub(MemoryQueue(1).listener(), max_streams=1)
    with hub.subscription("default"), pytest.raises(TooManyRequests), hub.subscription("default"):
        pass


async def test_broken_listener_is_reconnected():
    class Broken(Listener):
        """Fails once, then has one message."""

        def __init__(self):
            self.calls = 0

        async def messages(self):
            self.calls += 1
            if self.calls == 1:
                raise RuntimeError("broken")
            yield {"event": "job", "job_id": "a"}

        async def close(self):
            pass

    hub = EventHub(Broken(), listen_again_s=0)
    with hub.subscription("default") as subscription:
        await hub.run()
        found = [await waiting(subscription) for _ in range(2)]
    assert [event.name for event in found] == ["resync", "job"]
