"""The collectives that one rank recorded inside its groups, as one batch brought them."""

from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray

from app.trace.collectives import RankGroup
from app.trace.window import Ints

COLUMNS = ("step", "group", "kind", "sequence", "start_ns", "duration_ns", "num_bytes")


@dataclass(frozen=True, slots=True, eq=False)
class GroupRows:
    """What one batch says of its rank's groups; arrays are not to be written.

    Shapes: all columns [rows] int64. `group` indexes `groups`, `kind` indexes `kinds`. `start_ns`
    and `num_bytes` are -1 where they are not known. Of a rank that is `alone` nothing else is
    recorded: no step waits for it. `local_rank` numbers the GPUs of its host, None if not known.
    """

    groups: tuple[RankGroup, ...]
    kinds: tuple[str, ...]
    step: Ints
    group: Ints
    kind: Ints
    sequence: Ints
    start_ns: Ints
    duration_ns: Ints
    num_bytes: Ints
    local_rank: int | None = None
    is_alone: bool = False

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return int(self.step.size)

    def select(self, rows: NDArray[Any] | slice) -> "GroupRows":
        """The same with only some of the rows."""
        return replace(self, **{name: getattr(self, name)[rows] for name in COLUMNS})
