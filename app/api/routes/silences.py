"""Silences and maintenance windows: alerts that are told to nobody for a while."""

from typing import Annotated

from fastapi import APIRouter, Path, Query

from app.api.audited import note
from app.api.deps import OF_BODIES, CallerDep, ServiceDep, refusals
from app.api.fields import Answer, Cursor, Limit
from app.api.silence_body import SilenceIn, SilenceOut, silence_end
from app.store import alert_groups, muting

router = APIRouter(tags=["alerts"])

SilenceId = Annotated[
    str,
    Path(pattern=r"^[0-9a-f]{1,32}$", description="Its id.", examples=["5f0c3a9be81d42670fa1c2d3"]),
]


class SilencesOut(Answer):
    """A page of silences, those that end last first."""

    items: list[SilenceOut]
    next_cursor: str | None


@router.get(
    "/silences",
    operation_id="list_silences",
    summary="List silences",
    responses=refusals(),
)
def list_silences(
    service: ServiceDep,
    caller: CallerDep,
    ended: Annotated[bool, Query(description="Those that have ended, too.")] = False,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> SilencesOut:
    """Those that hold and those to come, a page at a time."""
    with service.store.read() as conn:
        now_s = service.database_time(conn)
        found, next_cursor = muting.page(
            conn,
            caller.project,
            ends_after_s=None if ended else now_s,
            cursor=cursor,
            limit=limit,
        )
    return SilencesOut(
        items=[SilenceOut.of(each, now_s) for each in found], next_cursor=next_cursor
    )


@router.post(
    "/silences",
    operation_id="create_silence",
    summary="Silence alerts",
    status_code=201,
    responses=refusals(409, *OF_BODIES),
)
def create_silence(given: SilenceIn, service: ServiceDep, caller: CallerDep) -> SilenceOut:
    """From its start on, nobody is told of alerts that match; they fire and resolve as ever."""
    with service.store.write() as conn:
        now_s = service.database_time(conn)
        silence = given.silence(caller, now_s)
        muting.add(conn, silence)
        said = given.model_dump(mode="json", exclude_defaults=True)
        note(conn, caller, f"{silence.kind}.create", silence.silence_id, now_s=now_s, **said)
        alert_groups.wake_project(conn, caller.project, at_s=now_s)
    service.announcer.announce({"event": "alert", "project": caller.project})
    return SilenceOut.of(silence, now_s)


@router.get(
    "/silences/{silence_id}",
    operation_id="get_silence",
    summary="See a silence",
    responses=refusals(404),
)
def get_silence(silence_id: SilenceId, service: ServiceDep, caller: CallerDep) -> SilenceOut:
    """One that has ended, too, for as long as results are kept."""
    with service.store.read() as conn:
        found = muting.get(conn, caller.project, silence_id)
        return SilenceOut.of(found, service.database_time(conn))


@router.delete(
    "/silences/{silence_id}",
    operation_id="end_silence",
    summary="End a silence",
    status_code=204,
    responses=refusals(404, *OF_BODIES),
)
def end_silence(silence_id: SilenceId, service: ServiceDep, caller: CallerDep) -> None:
    """What fires now and was kept back is told at once. Saying it twice changes nothing."""
    with service.store.write() as conn:
        now_s = service.database_time(conn)
        found = muting.get(conn, caller.project, silence_id)
        muting.end(conn, caller.project, silence_id, now_s=now_s)
        if found.ends_s > now_s:
            note(
                conn,
                caller,
                f"{found.kind}.end",
                silence_id,
                now_s=now_s,
                **silence_end(found, now_s),
            )
            alert_groups.wake_project(conn, caller.project, at_s=now_s)
    service.announcer.announce({"event": "alert", "project": caller.project})
