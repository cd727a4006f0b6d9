"""Collectives and transfers between ranks, as each rank recorded its part of them.

One table for every source: the client and torch.profiler.
`app/engine/arrivals` reads it; docs/arrivals.md defines the figures.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

# Kinds of row that are one side of a point-to-point transfer. Only a receiver's stay is evidence
# that its peer was late: a send may finish buffered.
RECEIVE = "recv"
SEND = "send"

GroupAxis = Literal["dp", "tp", "cp", "ep", "pp", ""]


@dataclass(frozen=True, slots=True)
class RankGroup:
    """Ranks that communicate with each other.

    `name` is unique in a job; `axis` is "" where it is not known; `ranks` are global, ascending
    (sender, receiver for a point-to-point pair).
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
    """One row per rank and occurrence of a collective, or per receive; in any order.

    Shapes: all columns [rows]. `group` indexes `groups`, `kind` indexes `kinds` (names such as
    "all-reduce", or `RECEIVE` and `SEND`); `sequence` numbers the occurrences of a group and kind
    within a step from 0, equal on all members; `rank` is global. `start_s` is by the rank's own
    clock, NaN where the source has none, and in a window counts from what the starts of the
    window's trace in the same step count from; `stay_s` is end - start. `num_bytes` is -1 where it
    is not known. `is_continuous` says that the starts of a rank's successive steps count from one
    origin, so that what lies between steps is known.
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
        columns = {name: getattr(self, name)[rows] for name in _COLUMNS}
        return replace(self, **columns)

    def place(self, rank: int) -> RankPlace:
        """Position of a rank; only its number if nothing else is known."""
        return self.places.get(rank, RankPlace(rank))
