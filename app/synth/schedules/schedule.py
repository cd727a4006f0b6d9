"""What every pipeline schedule answers."""

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

from app.trace.ops import Direction


class Work(NamedTuple):
    """One computation of a stage: a micro-batch, forward or backward."""

    direction: Direction
    microbatch: int


class Schedule(ABC):
    """Order of micro-batches on a stage."""

    name: ClassVar[str]

    @abstractmethod
    def order(self, stage: int, *, pp_size: int, num_microbatches: int) -> list[Work]:
        """All computations of one stage in one step, first to last."""
