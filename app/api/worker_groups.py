"""Groups of ranks that a worker's ranks communicate in, and how late each member was."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from app.api.fields import Answer

# A worker of a pipeline is in one group of each axis; with experts in a few more.
MAX_GROUPS = 8


class MemberOut(Answer):
    """One rank of a group; times are mean seconds a step."""

    rank: int
    local_rank: int | None
    host: str | None
    waited_for_s: float = Field(description="That the others waited for it.")
    waited_s: float = Field(description="That it waited for later ones.")
    late_share: float = Field(description="Share of the group's collectives that it was late to.")
    is_own: bool = Field(description="Whether it is a rank of this worker.")


class GroupOut(Answer):
    """A group that a rank of the worker is a member of."""

    name: str
    axis: str
    num_ranks: int
    num_occurrences: int = Field(description="Collectives that all members recorded.")
    transfer_s: float | None = Field(description="Median, once all members are there.")
    waited_s: float = Field(description="Mean seconds a step that a member waits.")
    bandwidth_bytes_s: float | None
    members: list[MemberOut] = Field(
        description="Most waited for first, 16 at most, and this worker's own ranks."
    )


def groups_of_worker(result: Mapping[str, Any], dp_rank: int, stage: int) -> list[GroupOut]:
    """The groups of a worker in a window's result, those that wait longest first."""
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
    # Of a large group not all members are listed: replicas of one stage are all in it.
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
    """A member beyond those listed, by what it waited in the group where that was most."""
    times = {name: figures[name] or 0.0 for name in ("waited_for_s", "waited_s", "late_share")}
    return MemberOut(
        rank=rank,
        local_rank=figures["local_rank"],
        host=figures["host"],
        is_own=True,
        **times,
    )
