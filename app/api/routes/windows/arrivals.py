"""Arrivals at collectives: the ranks that others waited for, by rank, group and step.

A group with all of its members is computed from a closed window's operations.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, TypeVar

from fastapi import Query
from msgspec import Meta
from msgspec.structs import replace
from pydantic import Field
from starlette.responses import Response

from app.api.http.fields import ChosenSteps, ResponseModel, WindowsId
from app.api.routes.dependencies import ApiRouter, JobKey, Responses, ServiceDep
from app.api.routes.windows.windows import (
    BY_RANK,
    RANGE_SEPARATOR,
    json_response,
    last_window,
    shown_result,
)
from app.api.service.service import Service
from app.engine.arrivals.arrivals import group_records
from app.engine.replays import prepare
from app.errors import InvalidRequest, NotFound
from app.result.arrivals import ArrivalsByStep, ArrivalsRecord, RankGroupRecord
from app.result.record import Record
from app.result.window_result import WindowResult
from app.trace.job import job_of
from app.trace.window import parse_step_ranges

_Value = TypeVar("_Value")

# A worker is in one group of each axis; with experts, in a few more.
MAX_GROUPS = 8


class MemberOut(ResponseModel):
    """One rank of a group; times are mean seconds per step."""

    rank: int
    local_rank: int | None
    host: str | None
    waited_for_s: float = Field(
        description="Mean seconds per step that the others waited for this rank."
    )
    waited_s: float = Field(
        description="Mean seconds per step that this rank waited for later ones."
    )
    late_share: float = Field(
        description="Share of the group's collectives to which this rank was late."
    )
    is_own: bool = Field(description="Whether the rank belongs to this worker.")


class GroupOut(ResponseModel):
    """A process group that contains a rank of the worker."""

    name: str
    axis: str
    num_ranks: int
    num_occurrences: int = Field(description="Number of collectives that all members recorded.")
    transfer_s: float | None = Field(
        description="Median transfer time of a collective, from "
        "the arrival of the last member, in seconds."
    )
    waited_s: float = Field(description="Mean seconds per step that a member waits.")
    bandwidth_bytes_s: float | None
    members: list[MemberOut] = Field(
        description="At most 16 members, by `waited_for_s`, descending, and this worker's own "
        "ranks."
    )


def groups_of_worker(result: WindowResult, dp_rank: int, stage: int) -> list[GroupOut]:
    """The worker's groups in a result, longest wait first."""
    arrivals = result.arrivals
    if arrivals is None:
        return []
    own = {
        rank: at
        for at, rank in enumerate(arrivals.rank)
        if (arrivals.dp_rank[at], arrivals.stage[at]) == (dp_rank, stage)
    }
    stage_of = dict(zip(arrivals.rank, arrivals.stage, strict=True))
    groups = [group for group in arrivals.groups if _is_member(group, {*own}, stage_of, stage)]
    return [_group(group, arrivals, own) for group in groups[:MAX_GROUPS]]


def _is_member(
    group: RankGroupRecord, own: set[int], stage_of: Mapping[int, int | None], stage: int
) -> bool:
    listed = {*group.ranks, *(member.rank for member in group.members)}
    if own & listed:
        return True
    # Large groups list some members only; all replicas of one stage are members.
    if group.axis != "dp" or group.num_ranks <= len(group.ranks) or not own:
        return False
    return {stage_of[rank] for rank in listed if rank in stage_of} == {stage}


def _group(group: RankGroupRecord, arrivals: ArrivalsRecord, own: Mapping[int, int]) -> GroupOut:
    """The group for an answer; `own` has the positions of the worker's ranks in `arrivals`."""
    members = [MemberOut.of_record(member, is_own=member.rank in own) for member in group.members]
    in_group = own.keys() & {*group.ranks} or own.keys()
    for rank in sorted(in_group - {member.rank for member in group.members}):
        members.append(_unlisted_member(arrivals, own[rank]))
    return GroupOut.of_record(group, members=members)


def _unlisted_member(arrivals: ArrivalsRecord, at: int) -> MemberOut:
    """A member that is not listed, from the group where its wait was longest."""
    return MemberOut(
        rank=arrivals.rank[at],
        local_rank=arrivals.local_rank[at],
        host=arrivals.host[at],
        waited_for_s=arrivals.waited_for_s[at] or 0.0,
        waited_s=arrivals.waited_s[at] or 0.0,
        late_share=arrivals.late_share[at] or 0.0,
        is_own=True,
    )


router = ApiRouter("windows")

NO_COLLECTIVE = "no collective was recorded by every member of its group in these steps"

_SCHEMA = {"schema": {"$ref": "#/components/schemas/WindowArrivals"}}
_ARRIVALS: Responses = {
    200: {"description": "The window's arrivals.", "content": {"application/json": _SCHEMA}}
}


class WindowArrivals(Record, kw_only=True, frozen=True):
    """Arrivals in a window."""

    window: str
    steps: tuple[int, ...]
    arrivals: Annotated[
        ArrivalsRecord | None,
        Meta(
            description="As in the window's result, with `per_step`. With `group`: only the "
            "members of the group."
        ),
    ]
    reason: Annotated[
        str | None, Meta(description="Reason why `arrivals` is null; otherwise null.")
    ]
    unexplained_share: float | None
    coverage: float | None


class GroupNotFound(NotFound):
    """No collective of that group was recorded by all of its members."""

    code = "group_not_found"


@router.get(
    "/jobs/{job_id}/windows/{window}/arrivals",
    summary="Get the late ranks that others waited for in collectives",
    response_class=Response,
    responses=_ARRIVALS,
)
def get_window_arrivals(
    job_id: JobKey,
    window: WindowsId,
    service: ServiceDep,
    steps: ChosenSteps = None,
    group: Annotated[
        str | None, Query(max_length=255, description="Only this group, with all its members.")
    ] = None,
) -> Response:
    """Waiting in collectives by rank, by group and by step (docs/arrivals.md).

    All times are by each rank's own clock. `arrivals` is null, with a reason, if no collective was
    recorded by all members of its group. All members of a group of more than 16 are only available
    with `group`, for one closed window.
    """
    result = shown_result(service, job_id, window, steps, per_step=True)
    arrivals = result.arrivals
    if group is not None and arrivals is not None:
        arrivals = _arrivals_of_group(service, job_id, window, steps, arrivals, group)
    return json_response(
        WindowArrivals(
            window=str(result.window.id),
            steps=result.steps,
            arrivals=arrivals,
            reason=None if arrivals is not None else _why_no_arrivals(result),
            unexplained_share=result.unexplained_share,
            coverage=result.coverage,
        )
    )


def _why_no_arrivals(result: WindowResult) -> str:
    if result.steps:
        return NO_COLLECTIVE
    skipped = result.skipped_steps
    return skipped[0].reason if skipped else "no step of this window is complete"


def _arrivals_of_group(
    service: Service,
    job_id: str,
    window: str,
    steps: str | None,
    arrivals: ArrivalsRecord,
    name: str,
) -> ArrivalsRecord:
    """The arrivals of a group's ranks, with every member of the group.

    Raises:
        InvalidRequest: several windows, or steps that the window does not have.
        Conflict: the window is open, or its operations have been deleted.
        GroupNotFound: no group of that name has collectives that all of its members recorded.
    """
    group = next((stored for stored in arrivals.groups if stored.name == name), None)
    if group is None or len(group.members) < group.num_ranks:
        if RANGE_SEPARATOR in window:
            raise InvalidRequest(
                "group: all members of a large group are worked out for one window at a time: "
                "name one"
            )
        replay = service.replays.get(job_id, last_window(window))
        if steps is not None:
            replay = prepare(replay.window.only(parse_step_ranges(steps, replay.window.steps)))
        groups = () if replay.arrivals is None else group_records(replay.arrivals, name)
        group = next(iter(groups), None)
    if group is None:
        raise GroupNotFound(
            f"no group {job_of(name)!r} has collectives that all of its members recorded: "
            "`groups` of the same request without `group` has the names"
        )
    ranks = {member.rank for member in group.members}
    at = [position for position, rank in enumerate(arrivals.rank) if rank in ranks]
    arrays = (name for name in BY_RANK if name != "per_step")
    by_rank = {name: _at(getattr(arrivals, name), at) for name in arrays}
    rows = arrivals.per_step.waited_for_s if arrivals.per_step else ()
    return replace(
        arrivals,
        **by_rank,
        groups=(group,),
        num_ranks=len(ranks),
        culprits=tuple(culprit for culprit in arrivals.culprits if culprit.rank in ranks),
        per_step=ArrivalsByStep(waited_for_s=tuple(_at(row, at) for row in rows)),
    )


def _at(values: Sequence[_Value], positions: Iterable[int]) -> tuple[_Value, ...]:
    return tuple(values[position] for position in positions)
