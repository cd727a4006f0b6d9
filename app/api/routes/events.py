"""Events: what has changed, as it changes."""

from typing import Any

from fastapi import APIRouter, Request

from app.api.deps import CallerDep, ServiceDep, refusals
from app.api.event_stream import EventStream
from app.api.routes.jobs import jobs_out

router = APIRouter(tags=["events"])

SNAPSHOT_JOBS = 200

_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Events `snapshot`, `window`, `job`, `alert` and `resync`.",
        "content": {
            "text/event-stream": {
                "schema": {
                    "type": "object",
                    "required": ["event", "data"],
                    "properties": {
                        "event": {"enum": ["snapshot", "window", "job", "alert", "resync"]},
                        "data": {"type": "string", "description": "JSON; says which job it is of."},
                    },
                },
                "example": 'event: window\ndata: {"job_id":"llm-70b","window":"1-96"}\n\n',
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
async def stream_events(request: Request, service: ServiceDep, caller: CallerDep) -> EventStream:
    """Server-sent events. The first is a `snapshot` of the jobs; a `resync` says: look again.

    The stream ends within 5 s of the caller's token being revoked, or when it or the session is
    over.
    """

    def snapshot() -> dict[str, Any]:
        return jobs_out(service, caller.project, None, SNAPSHOT_JOBS).model_dump(mode="json")

    async def may_go_on() -> bool:
        return await service.access.is_known(request.scope)

    return EventStream(service.hub, caller.project, snapshot, may_go_on=may_go_on)
