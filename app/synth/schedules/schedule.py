"""What every pipeline schedule answers."""

from abc import ABC, abstractmethod
from enum import Enum
from typing import ClassVar, NamedTuple

from app.errors import InvalidRequest
from app.trace.ops import Direction


class Part(Enum):
    """What is computed of a micro-batch; the value is the op type."""

    FORWARD = "forward-compute"
    BACKWARD = "backward-compute"
    BACKWARD_INPUT = "backward-input-compute"
    BACKWARD_WEIGHT = "backward-weight-compute"

    @property
    def direction(self) -> Direction:
        """Which way it is passed on; what is computed for the weights is passed on to nobody."""
        if self is Part.BACKWARD_WEIGHT:
            return Direction.NONE
        return Direction.FORWARD if self is Part.FORWARD else Direction.BACKWARD


class Work(NamedTuple):
    """One computation of a stage: a micro-batch through one of its model chunks."""

    part: Part
    microbatch: int
    chunk: int = 0

    @property
    def direction(self) -> Direction:
        """Which way it goes through the model."""
        return self.part.direction


class Schedule(ABC):
    """Order of micro-batches on a stage."""

    name: ClassVar[str]
    has_chunks: ClassVar[bool] = False  # more than one on a stage

    def check(self, *, pp_size: int, num_microbatches: int, num_chunks: int) -> None:
        """Returns if the schedule has an order for such a job.

        Raises:
            InvalidRequest: it has none; the message says what to change.
        """
        if num_chunks > 1 and not self.has_chunks:
            raise InvalidRequest(
                f"schedule {self.name} has one model chunk a stage: set vpp_size to 1, "
                "or choose interleaved"
            )

    @abstractmethod
    def order(
        self, stage: int, *, pp_size: int, num_microbatches: int, num_chunks: int
    ) -> list[Work]:
        """All computations of one stage in one step, first to last."""


def in_turns(ahead: int, forwards: list[Work], backwards: list[Work]) -> list[Work]:
    """Some forwards ahead, then one forward and one backward in turns as long as there are both."""
    ahead = min(ahead, len(forwards))
    order = forwards[:ahead]
    for forward, backward in zip(forwards[ahead:], backwards, strict=False):
        order += [forward, backward]
    return order + backwards[len(forwards) - ahead :]
