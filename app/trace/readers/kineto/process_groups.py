"""A rank's position in the job, from PyTorch's process groups."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import msgspec

from app.errors import InvalidTrace

# Group names of Megatron, DeviceMesh and users; the first match counts. Groups of experts and those
# that join several axes come first, since their names contain those of a single axis.
_AXES = (
    ("expert", re.compile(r"expert|moe|(^|_)ep(_|$)")),
    ("embedding", re.compile(r"embedding")),
    ("pp", re.compile(r"pipeline|(^|_)pp(_|$)")),
    ("model", re.compile(r"^model_parallel|tensor_and_|(^|_)mp(_|$)")),
    ("tp", re.compile(r"tensor|(^|_)tp(_|$)")),
    ("partial dp", re.compile(r"partial")),
    ("dp", re.compile(r"data|fsdp|hsdp|replicate|(^|_)dp(_|$)")),
    ("cp", re.compile(r"context|sequence|(^|_)(cp|sp|dsp)(_|$)")),
)
AXIS_SIZES = {"pp": "pp_size", "tp": "tp_size", "cp": "dsp_size"}


class ProcessGroup(msgspec.Struct):
    """A process group as `distributedInfo` lists it; `ranks` may be cut short."""

    pg_name: str = ""
    pg_desc: str = ""
    pg_size: int = 0
    ranks: list[int] = []

    @property
    def axis(self) -> str:
        """Its parallel axis, by its description."""
        return axis_of(self.pg_desc)


class DistributedInfo(msgspec.Struct):
    """A file's `distributedInfo`."""

    rank: int | None = None
    world_size: int | None = None
    pg_config: list[ProcessGroup] | None = None


@dataclass(frozen=True, slots=True)
class ParallelPosition:
    """A rank's position and the job's sizes.

    `stages` are the ranks of its pipeline by stage. `only_axis` is the axis of groups without a
    description, "" if unknown.
    """

    rank: int
    dp_rank: int
    stage: int
    peer: int
    sizes: Mapping[str, int]
    stages: tuple[int, ...] = ()
    only_axis: str = ""


def axis_of(description: str) -> str:
    """The parallel axis of a group by its name, "" if unknown."""
    text = description.lower()
    return next((axis for axis, pattern in _AXES if pattern.search(text)), "")


def position_of(
    where: str, rank: int, info: DistributedInfo | None, given: Mapping[str, int]
) -> ParallelPosition:
    """The rank's position: its index in the group of an axis, else by Megatron's order of ranks.

    Raises:
        InvalidTrace: the sizes are unknown, or contradict each other.
    """
    groups = _groups_of_rank(rank, info)
    sizes = _sizes(where, info, groups, given)
    tp, cp, dp = sizes["tp_size"], sizes["dsp_size"], sizes["dp_size"]
    expected = {"tp": tp, "cp": cp, "dp": dp, "pp": sizes["pp_size"]}
    world = prod(expected.values())
    if rank >= world:
        raise InvalidTrace(
            f"{where}: is of rank {rank}, but the sizes make {world:,} ranks: correct them"
        )
    index: dict[str, int] = {}
    rest = rank
    for axis, size in expected.items():
        rest, index[axis] = divmod(rest, size)
        if axis in groups and len(groups[axis].ranks) == size:
            index[axis] = groups[axis].ranks.index(rank)
    stages = groups["pp"].ranks if "pp" in groups else []
    peer = index["cp"] * tp + index["tp"]
    only_axis = "dp" if is_all_data_parallel(info) and dp == world else ""
    return ParallelPosition(rank, index["dp"], index["pp"], peer, sizes, tuple(stages), only_axis)


def _groups_of_rank(rank: int, info: DistributedInfo | None) -> dict[str, ProcessGroup]:
    """By axis, the largest group with this rank; without those of two axes ("dp_with_cp")."""
    largest: dict[str, ProcessGroup] = {}
    for group in (info and info.pg_config) or []:
        if "_with_" in group.pg_desc.lower() or rank not in group.ranks or group.pg_size < 1:
            continue
        if group.axis not in largest or group.pg_size > largest[group.axis].pg_size:
            largest[group.axis] = group
    return largest


def _sizes(
    where: str,
    info: DistributedInfo | None,
    groups: Mapping[str, ProcessGroup],
    given: Mapping[str, int],
) -> dict[str, int]:
    world = info.world_size if info and info.world_size is not None else None
    named = {size: groups[axis].pg_size for axis, size in AXIS_SIZES.items() if axis in groups}
    sizes = {"pp_size": 1, "tp_size": 1, "dsp_size": 1, **named, **given}
    product = prod(sizes[size] for size in ("pp_size", "tp_size", "dsp_size"))
    if "dp_size" in given:
        product *= sizes["dp_size"]
        if world is not None and product != world:
            raise InvalidTrace(
                f"{where}: is of {world:,} ranks, but dp * pp * tp * dsp is {product:,}: correct "
                "the sizes"
            )
        return sizes
    has_axes = bool(given) or bool(groups.keys() & {"pp", "tp", "cp", "dp"})
    if not has_axes and (world is None or world > 1) and not is_all_data_parallel(info):
        raise InvalidTrace(
            f"{where}: does not say how the job is spread over its ranks: give --dp and --pp, and "
            "--tp, --dsp and --vpp where they are not 1"
        )
    if world is None:
        world = product * (groups["dp"].pg_size if "dp" in groups else 1)
    if world < 1 or world % product:
        raise InvalidTrace(
            f"{where}: {world:,} ranks are no multiple of pp {sizes['pp_size']} * tp "
            f"{sizes['tp_size']} * dsp {sizes['dsp_size']}: give the sizes"
        )
    return {**sizes, "dp_size": world // product}


def is_all_data_parallel(info: DistributedInfo | None) -> bool:
    """Whether the only group is that of all ranks, so that the job is purely data-parallel."""
    groups = (info and info.pg_config) or []
    if info is None or len(groups) != 1 or groups[0].axis not in ("", "dp"):
        return False
    return groups[0].pg_size == info.world_size
