"""Events: one stream of server-sent events per page."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated

import structlog
from fastapi import Header, Query, Request
from pydantic.config import JsonDict
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from app.api.http.fields import timestamp_or_none
from app.api.http.work_places import send_part, until_disconnect
from app.api.routes.dependencies import ApiRouter, CallerDep, Responses, ServiceDep
from app.api.routes.jobs.jobs import JobOut, jobs_out
from app.api.service.hub import EventHub, EventSubscription, StreamEvent
from app.api.service.service import Service
from app.errors import PacelineError

log = structlog.get_logger()

HEARTBEAT_EVERY_S = 15.0
MAX_SEND_S = 10.0
# With the 4 s for which tokens are cached: no event after 5 s for a revoked token.
CHECK_EVERY_S = 1.0
HEARTBEAT = b": still here\n"


class EventStream(Response):
    """Sends a snapshot, then each event; ends with the page, the server, or a frozen reader.

    A page that reconnects with the id of its last event gets the missed events in place of the
    snapshot, if they are still known. The stream also ends once `may_go_on` says that its caller is
    no longer valid. The snapshot is taken after listening began, so no event is missed.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        hub: EventHub,
        project: str,
        snapshot: Callable[[], JsonDict],
        *,
        may_go_on: Callable[[], Awaitable[bool]],
        last_event_id: str = "",
        check_every_s: float = CHECK_EVERY_S,
        heartbeat_s: float = HEARTBEAT_EVERY_S,
        send_within_s: float = MAX_SEND_S,
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
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            gone = asyncio.create_task(_close_on_disconnect(receive, subscription))
            over = asyncio.create_task(self._close_when_over(subscription))
            try:
                await self._send_all(first, subscription, send)
            except TimeoutError:
                # The reader is frozen: nothing can be sent to it.
                return
            finally:
                gone.cancel()
                over.cancel()

    async def _first(self) -> StreamEvent:
        # The id before the snapshot: events meanwhile are sent again after it.
        last_id = self._hub.last_id
        return StreamEvent("snapshot", await run_in_threadpool(self._snapshot), event_id=last_id)

    async def _send_all(
        self, first: StreamEvent | None, subscription: EventSubscription, send: Send
    ) -> None:
        within_s = self._send_within_s
        await send_part(send, first.encoded() if first else HEARTBEAT + b"\n", within_s)
        while True:
            event = await subscription.next(self._heartbeat_s)
            if event is None and subscription.is_closed:
                break
            part = event.encoded() if event else self._still_here(subscription)
            await send_part(send, part, within_s)
        await send_part(send, b"", within_s, more=False)

    def _still_here(self, subscription: EventSubscription) -> bytes:
        """A heartbeat, with the latest id of all projects."""
        last_id = "" if subscription.has_waiting else self._hub.last_id
        return HEARTBEAT + StreamEvent("heartbeat", event_id=last_id).encoded()

    async def _close_when_over(self, subscription: EventSubscription) -> None:
        while not subscription.is_closed:
            await asyncio.sleep(self._check_every_s)
            try:
                if not await self._may_go_on():
                    subscription.close()
            except PacelineError:
                # While the database is away, the last answer holds.
                continue


async def _close_on_disconnect(receive: Receive, subscription: EventSubscription) -> None:
    await until_disconnect(receive)
    subscription.close()


LAG_EVERY_S = 2.0


async def tell_when_behind(service: Service, every_s: float = LAG_EVERY_S) -> None:
    """Tell open streams every few seconds how far the service is behind, and once that it is not.

    Runs until it is cancelled.
    """
    was_told = False
    while True:
        await asyncio.sleep(every_s)
        if not service.hub.num_streams:
            continue
        try:
            progress = (await service.status.processed.get()).of_service
        except PacelineError:
            continue  # readiness says so; pages keep what they have been told for a while
        except Exception:
            log.exception("how far it is behind is not known")
            continue
        if progress.is_behind or was_told:
            at = timestamp_or_none(progress.at_s)
            lag: JsonDict = {
                "as_of": None if at is None else at.isoformat(),
                "behind_s": progress.behind_s if progress.is_behind else None,
            }
            service.hub.tell(StreamEvent("lag", lag))
        was_told = progress.is_behind


router = ApiRouter("events")

SNAPSHOT_JOBS = 200  # in the snapshot of every page; the jobs' route has all
_KINDS = ["snapshot", "window", "job", "alert", "lag", "resync", "heartbeat"]

_STREAM: Responses = {
    200: {
        "description": "Events `snapshot`, `window`, `job`, `alert`, `lag`, `resync` and "
        "`heartbeat`.",
        "content": {
            "text/event-stream": {
                "schema": {
                    "type": "object",
                    "required": ["event", "data"],
                    "properties": {
                        "id": {
                            "type": "string",
                            "description": "Id of the event; send it as "
                            "Last-Event-ID to resume the stream.",
                        },
                        "event": {"enum": _KINDS},
                        "data": {
                            "type": "string",
                            "description": "JSON object; contains the job id if the event is "
                            "about one job.",
                        },
                    },
                },
                "example": "id: 5f0c1e-17\nevent: window\n"
                'data: {"job_id":"llm-70b","window":"1-96"}\n\n',
            }
        },
    }
}


@router.get(
    "/events",
    summary="Stream changes of the project's jobs",
    status_code=200,
    response_class=EventStream,
    responses={**_STREAM},
)
async def stream_events(
    request: Request,
    service: ServiceDep,
    caller: CallerDep,
    last_event_id: Annotated[
        str,
        Header(
            alias="Last-Event-ID",
            description="Id of the last received event, to resume the stream.",
        ),
    ] = "",
    after: Annotated[
        str,
        Query(
            max_length=64,
            description="Same as Last-Event-ID, for clients that cannot send this header.",
        ),
    ] = "",
) -> EventStream:
    """Server-sent events, first a `snapshot` of the jobs. On `resync`, load everything again.

    A `heartbeat` is sent every 15 s, and `lag` every 2 s while the service has not processed what
    workers sent: `as_of`, and `behind_s`, null once it has caught up. A client that reconnects with
    the id of the last event gets the missed events instead of the snapshot, if this process still
    has them: it keeps the last 1,024 events. The stream ends within 5 s after the caller's token is
    revoked, or when the token or the session expires.
    """

    def snapshot() -> JsonDict:
        page = jobs_out(service, caller.project, None, SNAPSHOT_JOBS)
        return {"items": [_in_short(job) for job in page.items], "next_cursor": page.next_cursor}

    return EventStream(
        service.hub,
        caller.project,
        snapshot,
        may_go_on=partial(service.auth.is_known, request.scope),
        last_event_id=last_event_id or after,
    )


def _in_short(job: JobOut) -> JsonDict:
    window = job.latest_window
    return {
        "job_id": job.job_id,
        "state": job.state,
        "window": window.window_id if window else None,
        "slowdown": job.slowdown,
    }
