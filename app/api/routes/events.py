"""Events: what has changed, as it changes."""

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request

from app.api.deps import CallerDep, ServiceDep, refusals
from app.api.event_stream import EventStream
from app.api.routes.jobs import JobOut, jobs_out

router = APIRouter(tags=["events"])

SNAPSHOT_JOBS = 200  # every page that opens gets them; who wants more asks for the jobs
_KINDS = ["snapshot", "window", "job", "alert", "resync", "heartbeat"]

_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Events `snapshot`, `window`, `job`, `alert`, `resync` and `heartbeat`.",
        "content": {
            "text/event-stream": {
                "schema": {
                    "type": "object",
                    "required": ["event", "data"],
                    "properties": {
                        "id": {"type": "string", "description": "To go on from, later."},
                        "event": {"enum": _KINDS},
                        "data": {
                            "type": "string",
                            "description": "JSON; says which job it is of, if of one.",
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
    operation_id="stream_events",
    summary="Follow the project's jobs live",
    status_code=200,
    response_class=EventStream,
    responses={**_STREAM, **refusals()},
)
async def stream_events(
    request: Request,
    service: ServiceDep,
    caller: CallerDep,
    last_event_id: Annotated[
        str, Header(alias="Last-Event-ID", description="Of the last event that was seen.")
    ] = "",
    after: Annotated[
        str, Query(max_length=64, description="The same, for who cannot send that header.")
    ] = "",
) -> EventStream:
    """Server-sent events. The first is a `snapshot` of the jobs; a `resync` says: look again.

    A `heartbeat` every 15 s says that the stream is alive.

    Who comes back with the id of the last event gets what was missed in place of the snapshot, if
    this process still knows it: it keeps the last 1,024 events. The stream ends within 5 s of the
    caller's token being revoked, or when it or the session is over.
    """

    def snapshot() -> dict[str, Any]:
        page = jobs_out(service, caller.project, None, SNAPSHOT_JOBS)
        return {"items": [_in_short(job) for job in page.items], "next_cursor": page.next_cursor}

    async def may_go_on() -> bool:
        return await service.access.is_known(request.scope)

    return EventStream(
        service.hub,
        caller.project,
        snapshot,
        may_go_on=may_go_on,
        last_event_id=last_event_id or after,
    )


def _in_short(job: JobOut) -> dict[str, Any]:
    window = job.latest_window
    return {
        "job_id": job.job_id,
        "state": job.state,
        "window": window.window_id if window else None,
        "slowdown": job.slowdown,
    }
