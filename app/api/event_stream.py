"""One page's stream of server-sent events, from its first event to its end."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from app.api.hub import Hub, Subscription
from app.api.recent_events import Event
from app.errors import PacelineError

HEARTBEAT_S = 15.0
SEND_WITHIN_S = 10.0
# With the 4 s for which a token is remembered: a revoked one hears nothing after 5 s.
CHECK_EVERY_S = 1.0
HEARTBEAT = b": still here\n"


class EventStream(Response):
    """A snapshot first, then each event; ends with the page, the server, or a reader that froze.

    A page that comes back with the id of the last event that it saw gets what it missed in place
    of the snapshot, where that is still known. The stream ends too, within a moment, once
    `may_go_on` says that its caller is known no more.

    The snapshot is taken after listening began, so nothing that happens is in neither.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        hub: Hub,
        project: str,
        snapshot: Callable[[], dict[str, Any]],
        *,
        may_go_on: Callable[[], Awaitable[bool]],
        last_event_id: str = "",
        check_every_s: float = CHECK_EVERY_S,
        heartbeat_s: float = HEARTBEAT_S,
        send_within_s: float = SEND_WITHIN_S,
    ) -> None:
        super().__init__()
        del self.headers["content-length"]
        self.headers["x-accel-buffering"] = "no"
        self._hub = hub
        self._project = project
        self._snapshot = snapshot
        self._may_go_on = may_go_on
        self._last_event_id = last_event_id
        self._check_every_s = check_every_s
        self._heartbeat_s = heartbeat_s
        self._send_within_s = send_within_s

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._hub.subscription(self._project, self._last_event_id) as subscription:
            first = None if subscription.is_resumed else await self._first()
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
            gone = asyncio.create_task(_close_when_gone(receive, subscription))
            over = asyncio.create_task(self._close_when_over(subscription))
            try:
                await self._send_all(first, subscription, send)
            except TimeoutError:
                # The reader is frozen, and so is the way to tell it anything.
                return
            finally:
                gone.cancel()
                over.cancel()

    async def _first(self) -> Event:
        # The id of before the snapshot: what happens meanwhile is told after it once more.
        last_id = self._hub.last_id
        return Event("snapshot", await run_in_threadpool(self._snapshot), event_id=last_id)

    async def _send_all(self, first: Event | None, subscription: Subscription, send: Send) -> None:
        await self._send_part(send, first.encoded() if first else HEARTBEAT + b"\n")
        while True:
            event = await subscription.next(self._heartbeat_s)
            if event is None and subscription.is_closed:
                break
            part = event.encoded() if event else self._still_here(subscription)
            await self._send_part(send, part)
        await self._send_part(send, b"", more=False)

    def _still_here(self, subscription: Subscription) -> bytes:
        """A sign of life; it moves the page's id past what other projects' pages were told."""
        last_id = "" if subscription.has_waiting else self._hub.last_id
        return HEARTBEAT + Event("heartbeat", event_id=last_id).encoded()

    async def _close_when_over(self, subscription: Subscription) -> None:
        while not subscription.is_closed:
            await asyncio.sleep(self._check_every_s)
            try:
                if not await self._may_go_on():
                    subscription.close()
            except PacelineError:
                # The database does not answer: what was true a moment ago holds until it does.
                continue

    async def _send_part(self, send: Send, body: bytes, *, more: bool = True) -> None:
        async with asyncio.timeout(self._send_within_s):
            await send({"type": "http.response.body", "body": body, "more_body": more})


async def _close_when_gone(receive: Receive, subscription: Subscription) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    subscription.close()
