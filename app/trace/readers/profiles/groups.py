"""Which ranks a collective is between, and where ranks are in the job."""

import re
from collections.abc import Sequence

from app.errors import InvalidTrace
from app.trace.collectives import RankGroup, RankPlace
from app.trace.readers.kineto_groups import DistributedInfo, Group, axis_of, place_of
from app.trace.readers.profiles.events import CollectiveArgs
from app.trace.readers.profiles.profile import RankProfile

# Axes as `RankGroup` has them; others join several axes or none.
_AXIS = {"dp": "dp", "partial dp": "dp", "tp": "tp", "cp": "cp", "pp": "pp", "expert": "ep"}
_DEFAULT_GROUP = "default_pg"
# PyTorch's hash of a group's ranks, by which no two groups are called.
_UNIQUE_NAME = re.compile(r"[0-9a-f]{16,64}$")
_MOST_LISTED = 8


def group_of(call: CollectiveArgs, info: DistributedInfo | None) -> RankGroup | None:
    """The group of one collective, with all its ranks; None where the file does not say them."""
    ranks = call.ranks
    if not ranks:
        ranks = _configured(call, info)
    if not ranks:
        return None
    description = "" if call.description == "undefined" else call.description
    if not description:
        description = call.group if _is_default(call, info) else ""
    axis = _AXIS.get(axis_of(call.description), "")
    if not axis and is_data_parallel(info):
        axis = "dp"
    title = _DEFAULT_GROUP if _is_default(call, info) else description[:64] or "group"
    return RankGroup(f"{title} {ranks_text(ranks)}", axis, ranks)


def _configured(call: CollectiveArgs, info: DistributedInfo | None) -> tuple[int, ...]:
    """The ranks that `distributedInfo` lists for the group of that name."""
    if _is_default(call, info) and info is not None and info.world_size:
        return tuple(range(info.world_size))
    for group in (info and info.pg_config) or []:
        if group.pg_name == call.group and len(group.ranks) == group.pg_size > 0:
            return tuple(sorted(group.ranks))
    return ()


def _is_default(call: CollectiveArgs, info: DistributedInfo | None) -> bool:
    if call.description:
        return call.description == _DEFAULT_GROUP
    world = info.world_size if info else None
    return call.group == "0" and call.group_size == world


def is_data_parallel(info: DistributedInfo | None) -> bool:
    """Whether no group but that of all ranks is known: plain data parallelism."""
    groups: Sequence[Group] = (info and info.pg_config) or ()
    return all(group.pg_size == (info and info.world_size) for group in groups)


def ranks_text(ranks: Sequence[int]) -> str:
    """Ranks in brackets: "[0-3]", "[0, 2]", "[0, 16, ... 112]"."""
    first, last = ranks[0], ranks[-1]
    if len(ranks) > 2 and last - first == len(ranks) - 1:
        return f"[{first}-{last}]"
    if len(ranks) <= _MOST_LISTED:
        return str(list(ranks))
    return f"[{first}, {ranks[1]}, ... {last}]"


def place(profile: RankProfile, rank: int, *, has_transfers: bool) -> RankPlace:
    """Where the rank is: by its groups, else its rank in plain data parallelism.

    `has_transfers` says whether ranks send to each other, as stages of a pipeline do.
    """
    info = profile.info
    dp_rank: int | None = rank
    stage: int | None = 0
    if info is not None and info.pg_config:
        try:
            found = place_of(profile.file, rank, info, {})
            dp_rank, stage = found.dp_rank, found.stage
        except InvalidTrace:
            dp_rank, stage = rank, 0
    if has_transfers and is_data_parallel(info):
        dp_rank, stage = None, None
    return RankPlace(rank, dp_rank, stage, profile.host, profile.device)


def sizes(profile: RankProfile, world_size: int) -> dict[str, int]:
    """The job's sizes by the groups of one rank: dp is all ranks where nothing else is said."""
    plain = {"dp_size": world_size, "pp_size": 1, "tp_size": 1, "dsp_size": 1}
    if profile.info is None or not profile.info.pg_config or profile.rank is None:
        return plain
    try:
        return plain | dict(place_of(profile.file, profile.rank, profile.info, {}).sizes)
    except InvalidTrace:
        return plain


def is_unique(group: str) -> bool:
    """Whether a group's name is PyTorch's hash of its ranks."""
    return bool(_UNIQUE_NAME.match(group))
