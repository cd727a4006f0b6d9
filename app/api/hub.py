"""What has changed, handed on to every open page; a page that reads too slowly starts afresh."""

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import structlog

from app.api.recent_events import Event, RecentEvents
from app.errors import StreamLimit, TooManyRequests
from app.ingest.queue import Listener, Message
from app.trace.names import plain, project_of

log = structlog.get_logger()

MAX_STREAMS = 1000
MAX_STREAMS_OF_PROJECT = 100
MAX_WAITING = 256  # events; a page that is further behind looks everything up again
LISTEN_AGAIN_S = 1.0
EVENT_TYPES = {"window", "job", "alert"}


RESYNC = Event("resync")


class Subscription:
    """Events of one project on their way to one page.

    `is_resumed` where the page goes on from the last event that it saw, and so needs no snapshot.
    """

    def __init__(self, project: str, *, is_resumed: bool = False) -> None:
        self.project = project
        self.is_resumed = is_resumed
        self._waiting: deque[Event] = deque()
        self._news = asyncio.Event()
        self.is_closed = False

    def offer(self, event: Event) -> None:
        """Add an event of its project; when too many wait, one resync stands for all of them.

        A closed stream takes none: whoever reads slowly must not go on by that.
        """
        if self.is_closed:
            return
        if event.project not in (None, self.project):
            return
        if len(self._waiting) >= MAX_WAITING:
            self._waiting.clear()
            event = replace(RESYNC, event_id=event.event_id)
        self._waiting.append(event)
        self._news.set()

    @property
    def has_waiting(self) -> bool:
        """Whether there is an event that the page has not been told."""
        return bool(self._waiting)

    def close(self) -> None:
        """End the stream after what waits already."""
        self.is_closed = True
        self._news.set()

    async def next(self, within_s: float) -> Event | None:
        """The next event; None when there was none in that time, or the stream is closed."""
        try:
            async with asyncio.timeout(within_s):
                await self._news.wait()
        except TimeoutError:
            return None
        event = self._waiting.popleft() if self._waiting else None
        if not self._waiting and not self.is_closed:
            self._news.clear()
        return event


class Hub:
    """Listens once for this process, and tells all of its streams."""

    def __init__(
        self,
        listener: Listener,
        *,
        max_streams: int = MAX_STREAMS,
        max_streams_of_project: int = MAX_STREAMS_OF_PROJECT,
        listen_again_s: float = LISTEN_AGAIN_S,
    ) -> None:
        self._listener = listener
        self._listen_again_s = listen_again_s
        self._max_streams = max_streams
        self._max_streams_of_project = max_streams_of_project
        self._subscriptions: set[Subscription] = set()
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
    def subscription(self, project: str, after: str = "") -> Iterator[Subscription]:
        """A new stream's events of one project, for as long as it lives.

        Those that came `after` the event of this id are in it, where that can still be told.

        Raises:
            StreamLimit: too many streams of the project are open.
            TooManyRequests: too many streams are open.
        """
        self._check_room(project)
        missed = self._recent.since(after)
        subscription = Subscription(project, is_resumed=missed is not None)
        for event in missed or ():
            subscription.offer(event)
        if self._is_closed:
            subscription.close()
        self._subscriptions.add(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions.discard(subscription)

    def _check_room(self, project: str) -> None:
        own = sum(each.project == project for each in self._subscriptions)
        if own >= self._max_streams_of_project:
            raise StreamLimit(f"this project has {own} event streams open", retry_after_s=10)
        if self.num_streams >= self._max_streams:
            raise TooManyRequests("too many event streams are open", retry_after_s=10)

    async def run(self) -> None:
        """Hand on what is heard, until cancelled or the listener is closed."""
        while not self._is_closed:
            try:
                async for message in self._listener.messages():
                    self.tell(RESYNC if message is None else _event(message))
                return
            except Exception:
                log.exception("listening for events failed; trying again")
            await asyncio.sleep(self._listen_again_s)
            self.tell(RESYNC)

    def tell(self, event: Event | None) -> None:
        """Hand an event to every stream of its project, and keep it for those that come back."""
        if event is not None:
            kept = self._recent.keep(event)
            for subscription in self._subscriptions:
                subscription.offer(kept)

    def close(self) -> None:
        """End all streams, so that the server can stop."""
        self._is_closed = True
        for subscription in self._subscriptions:
            subscription.close()

    async def close_listener(self) -> None:
        """Free the listener's connection, once `run` has ended."""
        await self._listener.close()


def _event(message: Message) -> Event | None:
    name = message.get("event")
    if name not in EVENT_TYPES:
        log.warning("unknown event", name=str(name)[:64])
        return None
    said = {field: value for field, value in message.items() if field not in ("event", "project")}
    match message:
        case {"job_id": str(key)}:
            return Event(name, said | {"job_id": plain(key)}, project_of(key))
        case {"project": str(project)}:
            return Event(name, said, project)
    log.warning("event of no job and no project", name=name)
    return None
