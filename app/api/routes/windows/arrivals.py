"""Arrivals at collectives: who was waited for, by rank, group and step.

A group with all of its members is computed from a closed window's operations.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.responses import Response

from app.api.http.fields import ChosenSteps, ResponseModel, WindowsId
from app.api.routes.dependencies import JobKey, Responses, ServiceDep, refusals
from app.api.routes.windows.windows import (
    BY_RANK,
    RANGE_SEPARATOR,
    json_response,
    last_window,
    shown_result,
)
from app.api.service.service import Service
from app.engine.arrivals.arrivals import groups_as_json
from app.engine.replays import prepare
from app.errors import InvalidRequest, NotFound
from app.trace.job import job_of
from app.trace.window import parse_step_ranges

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


def groups_of_worker(result: Mapping[str, Any], dp_rank: int, stage: int) -> list[GroupOut]:
    """The worker's groups in a result, longest wait first."""
    found = result.get("arrivals")
    if not found:
        return []
    by_rank = _by_rank(found)
    own = {
        rank
        for rank, each in by_rank.items()
        if (each["dp_rank"], each["stage"]) == (dp_rank, stage)
    }
    named = [group for group in found["groups"] if _is_member(group, own, by_rank, stage)]
    return [_group(group, own, by_rank) for group in named[:MAX_GROUPS]]


def _by_rank(found: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    names = ("dp_rank", "stage", "host", "local_rank", "waited_for_s", "waited_s", "late_share")
    rows = zip(*(found[name] for name in names), strict=True)
    return {
        rank: dict(zip(names, row, strict=True))
        for rank, row in zip(found["rank"], rows, strict=True)
    }


def _is_member(
    group: Mapping[str, Any], own: set[int], by_rank: Mapping[int, Mapping[str, Any]], stage: int
) -> bool:
    listed = {*group["ranks"], *(each["rank"] for each in group["members"])}
    if own & listed:
        return True
    # Large groups list some members only; all replicas of one stage are members.
    if group["axis"] != "dp" or group["num_ranks"] <= len(group["ranks"]) or not own:
        return False
    stages = {by_rank[rank]["stage"] for rank in listed if rank in by_rank}
    return stages == {stage}


def _group(
    group: Mapping[str, Any], own: set[int], by_rank: Mapping[int, Mapping[str, Any]]
) -> GroupOut:
    members = [MemberOut(**each, is_own=each["rank"] in own) for each in group["members"]]
    listed = {each.rank for each in members}
    in_group = own & set(group["ranks"]) if own & set(group["ranks"]) else own
    for rank in sorted(in_group - listed):
        members.append(_of_rank(rank, by_rank[rank]))
    names = [name for name in GroupOut.model_fields if name != "members"]
    return GroupOut(members=members, **{name: group[name] for name in names})


def _of_rank(rank: int, figures: Mapping[str, Any]) -> MemberOut:
    """A member that is not listed, from the group where its wait was longest."""
    times = {name: figures[name] or 0.0 for name in ("waited_for_s", "waited_s", "late_share")}
    return MemberOut(
        rank=rank,
        local_rank=figures["local_rank"],
        host=figures["host"],
        is_own=True,
        **times,
    )


def group_with_members(
    service: Service, job_id: str, window: str, steps: str | None, name: str
) -> dict[str, Any] | None:
    """The group with every member; None if there is no group of that name.

    Raises:
        JobNotFound, WindowNotFound: there is no such job or window.
        InvalidRequest: several windows, or steps that the window does not have.
        Conflict: the window is open, or its operations have been deleted.
    """
    if RANGE_SEPARATOR in window:
        raise InvalidRequest(
            "group: all members of a large group are worked out for one window at a time: name one"
        )
    replay = service.replays.get(job_id, last_window(window))
    if steps is not None:
        replay = prepare(replay.window.only(parse_step_ranges(steps, replay.window.steps)))
    found = replay.arrivals
    return next(iter(groups_as_json(found, name)), None) if found is not None else None


router = APIRouter(tags=["windows"])

NO_COLLECTIVE = "no collective was recorded by every member of its group in these steps"
OLDER_RELEASE = "the release that wrote this window measured no arrivals"

_SCHEMA = {"schema": {"$ref": "#/components/schemas/WindowArrivals"}}
_ARRIVALS: Responses = {
    200: {"description": "The window's arrivals.", "content": {"application/json": _SCHEMA}}
}


class GroupNotFound(NotFound):
    """No collective of that group was recorded by all of its members."""

    code = "group_not_found"


@router.get(
    "/jobs/{job_id}/windows/{window}/arrivals",
    operation_id="get_window_arrivals",
    summary="Get the late ranks that others waited for in collectives",
    response_class=Response,
    responses={**_ARRIVALS, **refusals(404, 409)},
)
def get_window_arrivals(
    job_id: JobKey,
    window: WindowsId,
    service: ServiceDep,
    steps: ChosenSteps = None,
    group: Annotated[
        str | None,
        Query(max_length=255, description="Only this group, with all its members."),
    ] = None,
) -> Response:
    """Waiting in collectives by rank, by group and by step (docs/arrivals.md).

    All times are by each rank's own clock. `arrivals` is null, with a reason, if no collective was
    recorded by all members of its group. All members of a group of more than 16 are only available
    with `group`, for one closed window.
    """
    result = shown_result(service, job_id, window, steps, per_step=True)
    found = result.get("arrivals")
    if group is not None and found is not None:
        found = _arrivals_of_group(service, job_id, window, steps, found, group)
    return json_response(
        {
            "window": result["window"]["id"],
            "steps": result["steps"],
            "arrivals": found,
            "reason": None if found is not None else _why_no_arrivals(result),
            "unexplained_share": result.get("unexplained_share"),
            "coverage": result.get("coverage"),
        }
    )


def _why_no_arrivals(result: Mapping[str, Any]) -> str:
    if not result["steps"]:
        skipped = result["skipped_steps"]
        return skipped[0]["reason"] if skipped else "no step of this window is complete"
    return NO_COLLECTIVE if "arrivals" in result else OLDER_RELEASE


def _arrivals_of_group(
    service: Service,
    job_id: str,
    window: str,
    steps: str | None,
    found: Mapping[str, Any],
    name: str,
) -> dict[str, Any]:
    stored = next((each for each in found["groups"] if each["name"] == name), None)
    group = stored
    if stored is None or len(stored["members"]) < stored["num_ranks"]:
        group = group_with_members(service, job_id, window, steps, name)
    if group is None:
        raise GroupNotFound(
            f"no group {job_of(name)!r} has collectives that all of its members recorded: "
            "`groups` of the same request without `group` has the names"
        )
    return _only_rank(found, {each["rank"] for each in group["members"]}) | {"groups": [group]}


def _only_rank(found: Mapping[str, Any], ranks: set[int]) -> dict[str, Any]:
    """The block for these ranks only."""
    at = [index for index, rank in enumerate(found["rank"]) if rank in ranks]

    def kept(values: Sequence[Any]) -> list[Any]:
        return [values[index] for index in at]

    by_rank = {name: kept(found[name]) for name in BY_RANK if name != "per_step"}
    waited_for_s = [kept(row) for row in (found.get("per_step") or {}).get("waited_for_s", ())]
    culprits = [each for each in found["culprits"] if each["rank"] in ranks]
    return {
        **found,
        **by_rank,
        "num_ranks": len(ranks),
        "culprits": culprits,
        "per_step": {"waited_for_s": waited_for_s},
    }
