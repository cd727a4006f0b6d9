"""Arrivals: ranks that the others waited for at collectives (docs/arrivals.md)."""

from typing import Annotated, Literal

from msgspec import Meta

from app.result.record import Record

Axis = Annotated[str, Meta(extra_json_schema={"enum": ["dp", "tp", "cp", "ep", "pp", ""]})]
# The groups that are listed, those that wait longest first; what says where a rank is.
MAX_GROUPS = 50
# Ranks that are listed, those waited for longest.
MAX_RANKS = 256

DelayKind = Literal["compute", "host", "data-wait", "gc", "unknown"]


class GroupMember(Record, kw_only=True, frozen=True):
    """One rank of a group, with mean seconds a step."""

    rank: int
    local_rank: int | None
    host: str | None
    waited_for_s: float | None
    waited_s: float | None
    late_share: float | None


class RankGroupRecord(Record, kw_only=True, frozen=True):
    """Ranks that meet in one kind of collective."""

    name: str
    axis: Axis
    ranks: Annotated[tuple[int, ...], Meta(description="The group's first 64 ranks.")]
    num_ranks: int
    num_occurrences: int
    transfer_s: Annotated[
        float | None,
        Meta(
            description="Median transfer time of a collective, from the arrival of the last "
            "member, in seconds."
        ),
    ]
    waited_s: Annotated[
        float | None, Meta(description="Mean seconds per step that a member waits.")
    ]
    bandwidth_bytes_s: float | None
    members: Annotated[
        tuple[GroupMember, ...],
        Meta(description="Members by `waited_for_s`, descending; at most 16 but with `group`."),
    ]


class LateRankRecord(Record, kw_only=True, frozen=True):
    """A rank that is late far more often than by chance, and by much."""

    rank: int
    dp_rank: int | None
    stage: int | None
    host: str | None
    local_rank: int | None
    group: str
    axis: Axis
    kind: DelayKind
    waited_for_s: float | None
    share: Annotated[
        float | None, Meta(description="Share of the step that others waited for this rank.")
    ]
    late_share: float | None
    steps_late: Annotated[
        float | None, Meta(description="Share of the steps in which this rank was late.")
    ]
    own_delay_s: float | None


class ArrivalsByStep(Record, kw_only=True, frozen=True):
    """Figures by step; only with `per_step=true`."""

    waited_for_s: Annotated[
        tuple[tuple[float | None, ...], ...], Meta(description="Seconds as [step][rank].")
    ]


class ArrivalsRecord(Record, kw_only=True, frozen=True):
    """Ranks that the others waited for at collectives. Arrays by rank are parallel."""

    num_occurrences: int
    num_ranks: Annotated[
        int | None, Meta(description="Number of ranks that recorded a collective.")
    ] = None
    waiting_share: Annotated[
        float | None, Meta(description="Share of GPU time that ranks waited for later ones.")
    ]
    largest_share: Annotated[
        float | None,
        Meta(description="Largest share of the step that the others waited for a single rank."),
    ]
    rank: Annotated[
        tuple[int, ...],
        Meta(description="Global ranks, ascending: the 256 ranks that the others waited for most."),
    ]
    dp_rank: tuple[int | None, ...]
    stage: tuple[int | None, ...]
    host: tuple[str | None, ...]
    local_rank: Annotated[tuple[int | None, ...], Meta(description="Index of the GPU on its host.")]
    waited_for_s: Annotated[
        tuple[float | None, ...],
        Meta(description="Mean seconds per step that the others waited for this rank."),
    ]
    waited_s: Annotated[
        tuple[float | None, ...],
        Meta(description="Mean seconds per step that this rank waited for later ones."),
    ]
    late_share: Annotated[
        tuple[float | None, ...],
        Meta(description="Share of this rank's collectives to which it was late."),
    ]
    own_delay_s: Annotated[
        tuple[float | None, ...],
        Meta(
            description="Mean seconds per step of this rank's own delay, without its waits in "
            "other groups."
        ),
    ]
    groups: Annotated[
        tuple[RankGroupRecord, ...], Meta(description="At most 50 groups, by waiting, descending.")
    ]
    culprits: tuple[LateRankRecord, ...]
    per_step: ArrivalsByStep | None = None
