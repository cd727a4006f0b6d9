"""The table of collectives and transfers between ranks, with one row per participating rank.

Recordings of the client and of torch.profiler have the same table. `app/engine/arrivals` analyses
it; docs/arrivals.md defines the figures.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

# Kinds of rows that are one side of a point-to-point transfer. Only a receiver that waits shows
# that its peer was late: a send may end as soon as its data is in a buffer.
RECEIVE = "recv"
SEND = "send"

GroupAxis = Literal["dp", "tp", "cp", "ep", "pp", ""]


@dataclass(frozen=True, slots=True)
class RankGroup:
    """Ranks that communicate with each other.

    `name` is unique in a job; an unknown `axis` is ""; `ranks` are global and ascending, but
    (sender, receiver) for a point-to-point pair.
    """

    name: str
    axis: GroupAxis
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Position of a global rank; unknown parts are None."""

    rank: int
    dp_rank: int | None = None
    stage: int | None = None
    host: str | None = None
    local_rank: int | None = None


_COLUMNS = ("group", "kind", "step", "sequence", "rank", "start_s", "stay_s", "num_bytes")


@dataclass(frozen=True, slots=True)
class Collectives:
    """One row per rank and occurrence of a collective, or per transfer; in any order.

    Shapes: all columns [rows]. `group` indexes `groups`, `kind` indexes `kinds` (names such as
    "all-reduce", or `RECEIVE` and `SEND`). `sequence` numbers the occurrences of a group and kind
    within a step from 0, equally on all members. `rank` is global. `start_s` is by the rank's own
    clock, NaN where the source has no clock; in a window it has the origin of the step's starts in
    the window's trace. `stay_s` is end - start. An unknown `num_bytes` is -1. With `is_continuous`
    the starts of a rank's successive steps have one origin, so the time between steps is known.
    """

    groups: tuple[RankGroup, ...]
    kinds: tuple[str, ...]
    group: Ints
    kind: Ints
    step: Ints
    sequence: Ints
    rank: Ints
    start_s: Floats
    stay_s: Floats
    num_bytes: Ints
    places: Mapping[int, RankPlace] = field(default_factory=dict)
    is_continuous: bool = False

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return int(self.group.size)

    def select(self, rows: NDArray[np.bool_] | Ints) -> "Collectives":
        """The table with only some of its rows."""
        return replace(self, **{name: getattr(self, name)[rows] for name in _COLUMNS})

    def place(self, rank: int) -> RankPlace:
        """Position of a rank; all parts but its number are None if it is unknown."""
        return self.places.get(rank, RankPlace(rank))
