"""Arrivals: whom everybody waited for at collectives, by rank, group and step."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from app.api.deps import JobKey, Responses, ServiceDep, refusals
from app.api.fields import ChosenSteps, WindowsId
from app.api.group_members import group_of
from app.api.routes.windows import BY_RANK, json_response
from app.api.service import Service
from app.api.window_range import shown_result
from app.errors import NotFound
from app.trace.names import plain

router = APIRouter(tags=["windows"])

NO_COLLECTIVE = "no collective was recorded by every member of its group in these steps"
OLDER_RELEASE = "the release that wrote this window measured no arrivals"

_SCHEMA = {"schema": {"$ref": "#/components/schemas/WindowArrivals"}}
_ARRIVALS: Responses = {
    200: {"description": "The arrivals.", "content": {"application/json": _SCHEMA}}
}


class GroupNotFound(NotFound):
    """No collective of a group of that name was recorded by all of its members."""

    code = "group_not_found"


@router.get(
    "/jobs/{job_id}/windows/{window}/arrivals",
    operation_id="get_window_arrivals",
    summary="See whom everybody waited for at collectives",
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
        Query(max_length=255, description="This group alone, with all of its members."),
    ] = None,
) -> Response:
    """By rank, by group and by step, each on the rank's own clock (docs/arrivals.md).

    `arrivals` is null, with a reason, where no collective was recorded by all members of its group.
    All members of a group of more than 16 are worked out from the operations of one closed window.
    """
    result = shown_result(service, job_id, window, steps, per_step=True)
    found = result.get("arrivals")
    if group is not None and found is not None:
        found = _of_group(service, job_id, window, steps, found, group)
    return json_response(
        {
            "window": result["window"]["id"],
            "steps": result["steps"],
            "arrivals": found,
            "reason": None if found is not None else _why_not(result),
            "unexplained_share": result.get("unexplained_share"),
            "coverage": result.get("coverage"),
        }
    )


def _why_not(result: Mapping[str, Any]) -> str:
    if not result["steps"]:
        skipped = result["skipped_steps"]
        return skipped[0]["reason"] if skipped else "no step of this window is complete"
    return NO_COLLECTIVE if "arrivals" in result else OLDER_RELEASE


def _of_group(
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
        group = group_of(service, job_id, window, steps, name)
    if group is None:
        raise GroupNotFound(
            f"no group {plain(name)!r} has collectives that all of its members recorded: "
            "`groups` of the same request without `group` has the names"
        )
    return _only(found, {each["rank"] for each in group["members"]}) | {"groups": [group]}


def _only(found: Mapping[str, Any], ranks: set[int]) -> dict[str, Any]:
    """The figures of these ranks alone."""
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
