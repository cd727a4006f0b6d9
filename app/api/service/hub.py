"""Server-sent events: one listener of the process fans out to every open stream.

The newest events are kept with ids, for pages that reconnect. A page that reads too slowly gets a
resync.
"""

import asyncio
import json
import re
import secrets
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice

import structlog
from pydantic.config import JsonValue

from app.errors import StreamLimit, TooManyRequests
from app.ingest.queue import EventMessage, Listener
from app.trace.job import job_of, project_of

MAX_RECENT = 1024  # of all projects: minutes of a busy service, longer than a reconnect takes
_EVENT_ID = re.compile(r"(?P<boot>[0-9a-f]{1,32})-(?P<number>[0-9]{1,15})")


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One server-sent event, for one project or (None) for all.

    `event_id` is the id after which a page can resume; "" if there is none yet.
    """

    name: str
    data: Mapping[str, JsonValue] = field(default_factory=dict)
    project: str | None = None
    event_id: str = ""

    def encoded(self) -> bytes:
        """The event as bytes of the stream."""
        data = json.dumps(self.data, allow_nan=False, separators=(",", ":"))
        own = f"id: {self.event_id}\n" if self.event_id else ""
        return f"{own}event: {self.name}\ndata: {data}\n\n".encode()


class RecentEvents:
    """Numbers events from 1 and keeps the last ones.

    An id is "<boot>-<number>". Each process start has another boot, so that ids of another process
    are never taken for its own.
    """

    def __init__(self, *, max_events: int = MAX_RECENT) -> None:
        self._boot = secrets.token_hex(6)
        self._number = 0
        self._kept: deque[StreamEvent] = deque(maxlen=max_events)

    @property
    def last_id(self) -> str:
        """The id of the latest event; before the first event, an id that precedes all."""
        return f"{self._boot}-{self._number}"

    def keep(self, event: StreamEvent) -> StreamEvent:
        """Keep the event; returns it with its id."""
        self._number += 1
        kept = replace(event, event_id=self.last_id)
        self._kept.append(kept)
        return kept

    def since(self, last_id: str) -> list[StreamEvent] | None:
        """Events after this id, oldest first; None if they are no longer known."""
        match = _EVENT_ID.fullmatch(last_id)
        if match is None or match["boot"] != self._boot:
            return None
        num_missed = self._number - int(match["number"])
        if not 0 <= num_missed <= len(self._kept):
            return None
        return list(islice(self._kept, len(self._kept) - num_missed, None))


log = structlog.get_logger()

MAX_STREAMS = 1000
MAX_STREAMS_OF_PROJECT = 100
MAX_WAITING = 256  # events; a page that is further behind gets a resync
RELISTEN_AFTER_S = 1.0
EVENT_TYPES = {"window", "job", "alert"}


RESYNC = StreamEvent("resync")


class EventSubscription:
    """Queue of one project's events for one page.

    `is_resumed`: the page resumes after the last event that it received, and needs no snapshot.
    """

    def __init__(self, project: str, *, is_resumed: bool = False) -> None:
        self.project = project
        self.is_resumed = is_resumed
        self._waiting: deque[StreamEvent] = deque()
        self._news = asyncio.Event()
        self.is_closed = False

    def offer(self, event: StreamEvent) -> None:
        """Queue an event; when too many wait, one resync replaces them.

        A closed stream takes none.
        """
        if self.is_closed or event.project not in (None, self.project):
            return
        if len(self._waiting) >= MAX_WAITING:
            self._waiting.clear()
            event = replace(RESYNC, event_id=event.event_id)
        self._waiting.append(event)
        self._news.set()

    @property
    def has_waiting(self) -> bool:
        """Whether an event waits to be sent."""
        return bool(self._waiting)

    def close(self) -> None:
        """End the stream after the events that wait."""
        self.is_closed = True
        self._news.set()

    async def next(self, within_s: float) -> StreamEvent | None:
        """The next event; None after the timeout, or if the stream is closed."""
        try:
            async with asyncio.timeout(within_s):
                await self._news.wait()
        except TimeoutError:
            return None
        event = self._waiting.popleft() if self._waiting else None
        if not self._waiting and not self.is_closed:
            self._news.clear()
        return event


class EventHub:
    """Listens to the queue once, and publishes to all streams of the process."""

    def __init__(
        self,
        listener: Listener,
        *,
        max_streams: int = MAX_STREAMS,
        max_streams_of_project: int = MAX_STREAMS_OF_PROJECT,
        listen_again_s: float = RELISTEN_AFTER_S,
    ) -> None:
        self._listener = listener
        self._listen_again_s = listen_again_s
        self._max_streams = max_streams
        self._max_streams_of_project = max_streams_of_project
        self._subscriptions: set[EventSubscription] = set()
        self._recent = RecentEvents()
        self._is_closed = False

    @property
    def num_streams(self) -> int:
        """Number of open streams."""
        return len(self._subscriptions)

    @property
    def last_id(self) -> str:
        """The id of the latest event of all projects."""
        return self._recent.last_id

    @contextmanager
    def subscription(self, project: str, after: str = "") -> Iterator[EventSubscription]:
        """A new stream of one project's events; removed at the end of the block.

        It starts after the event with the id `after`, if that is still known.

        Raises:
            StreamLimit: too many streams of the project are open.
            TooManyRequests: too many streams are open.
        """
        own = sum(stream.project == project for stream in self._subscriptions)
        if own >= self._max_streams_of_project:
            raise StreamLimit(f"this project has {own} event streams open", retry_after_s=10)
        if self.num_streams >= self._max_streams:
            raise TooManyRequests("too many event streams are open", retry_after_s=10)
        missed = self._recent.since(after)
        subscription = EventSubscription(project, is_resumed=missed is not None)
        for event in missed or ():
            subscription.offer(event)
        if self._is_closed:
            subscription.close()
        self._subscriptions.add(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions.discard(subscription)

    async def run(self) -> None:
        """Publish events until cancelled, or until the listener is closed."""
        while not self._is_closed:
            try:
                async for message in self._listener.messages():
                    self.publish(RESYNC if message is None else _stream_event(message))
                return
            except Exception:
                log.exception("listening for events failed; trying again")
            await asyncio.sleep(self._listen_again_s)
            self.publish(RESYNC)

    def publish(self, event: StreamEvent | None) -> None:
        """Send an event to every stream of its project, and keep it for resumed streams."""
        if event is not None:
            kept = self._recent.keep(event)
            for subscription in self._subscriptions:
                subscription.offer(kept)

    def tell(self, event: StreamEvent) -> None:
        """Send an event to every stream that is open now; one that resumes is not told."""
        for subscription in self._subscriptions:
            subscription.offer(event)

    def close(self) -> None:
        """End all streams, so that the server can stop."""
        self._is_closed = True
        for subscription in self._subscriptions:
            subscription.close()

    async def close_listener(self) -> None:
        """Close the listener's connection, once `run` has ended."""
        await self._listener.close()


def _stream_event(message: EventMessage) -> StreamEvent | None:
    name = message.get("event")
    if name not in EVENT_TYPES:
        log.warning("unknown event", name=str(name)[:64])
        return None
    data = {field: value for field, value in message.items() if field not in ("event", "project")}
    match message:
        case {"job_id": str(key)}:
            return StreamEvent(name, data | {"job_id": job_of(key)}, project_of(key))
        case {"project": str(project)}:
            return StreamEvent(name, data, project)
    log.warning("event of no job and no project", name=name)
    return None
