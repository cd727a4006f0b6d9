"""Pipeline schedules: the order in which a stage computes its micro-batches.

GPipe runs all forwards, then all backwards. 1F1B fills the pipeline, then alternates one forward
and one backward. Interleaved 1F1B has several model chunks on a stage, so that the pipeline fills
sooner: micro-batches go in rounds of one per stage through a stage's first chunk, then through its
second one, and so on (Narayanan et al., SC 2021); backwards take the chunks in the reverse order.
ZB-H1 splits backwards and fills the gaps with the half that no other stage waits for (Qi et al.,
ICLR 2024).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum
from typing import ClassVar, NamedTuple

from typing_extensions import override

from app.errors import InvalidRequest
from app.trace.job import Parallelism
from app.trace.ops import Direction


class ComputeKind(Enum):
    """A computation of a micro-batch; the value is its op type."""

    FORWARD = "forward-compute"
    BACKWARD = "backward-compute"
    BACKWARD_INPUT = "backward-input-compute"
    BACKWARD_WEIGHT = "backward-weight-compute"

    @property
    def direction(self) -> Direction:
        """The direction in which its output is sent; weight gradients are not sent."""
        return _DIRECTIONS[self._value_]


# By value: strings cache their hashes, members of an Enum compute theirs every time.
_DIRECTIONS = {
    "forward-compute": Direction.FORWARD,
    "backward-compute": Direction.BACKWARD,
    "backward-input-compute": Direction.BACKWARD,
    "backward-weight-compute": Direction.NONE,
}


class StageWork(NamedTuple):
    """One computation of a stage: a micro-batch through one of its model chunks."""

    part: ComputeKind
    microbatch: int
    chunk: int = 0

    @property
    def direction(self) -> Direction:
        """The direction in which its output is sent."""
        return self.part.direction


class Schedule(ABC):
    """The order of micro-batches on a stage."""

    name: ClassVar[str]
    has_chunks: ClassVar[bool] = False  # more than one on a stage

    def check(self, sizes: Parallelism, num_microbatches: int) -> None:
        """Raise InvalidRequest, with the remedy, unless the schedule is defined for a job."""
        if sizes.vpp_size > 1 and not self.has_chunks:
            raise InvalidRequest(
                f"schedule {self.name} has one model chunk a stage: set vpp_size to 1, "
                "or choose interleaved"
            )

    @abstractmethod
    def order(self, stage: int, sizes: Parallelism, num_microbatches: int) -> list[StageWork]:
        """All computations of a stage in a step, in order."""


def alternate(ahead: int, forwards: list[StageWork], backwards: list[StageWork]) -> list[StageWork]:
    """`ahead` forwards, then forwards and backwards in turns, then the remaining backwards."""
    ahead = min(ahead, len(forwards))
    order = forwards[:ahead]
    for forward, backward in zip(forwards[ahead:], backwards, strict=False):
        order += [forward, backward]
    return order + backwards[len(forwards) - ahead :]


class GPipe(Schedule):
    """All forwards first; every stage holds the activations of all micro-batches."""

    name = "gpipe"
    has_chunks = True

    @override
    def order(self, stage: int, sizes: Parallelism, num_microbatches: int) -> list[StageWork]:
        chunks, microbatches = range(sizes.vpp_size), range(num_microbatches)
        forwards = [StageWork(ComputeKind.FORWARD, k, c) for c in chunks for k in microbatches]
        return forwards + [
            StageWork(ComputeKind.BACKWARD, k, c) for c in reversed(chunks) for k in microbatches
        ]


class OneFOneB(Schedule):
    """Stage p runs pp - 1 - p forwards ahead, so it holds few activations."""

    name = "1f1b"

    @override
    def order(self, stage: int, sizes: Parallelism, num_microbatches: int) -> list[StageWork]:
        forwards = [StageWork(ComputeKind.FORWARD, k) for k in range(num_microbatches)]
        backwards = [StageWork(ComputeKind.BACKWARD, k) for k in range(num_microbatches)]
        return alternate(sizes.pp_size - 1 - stage, forwards, backwards)


class Interleaved(Schedule):
    """Stage p runs 2 (pp - 1 - p) forwards ahead, and a round per chunk except the last one."""

    name = "interleaved"
    has_chunks = True

    @override
    def check(self, sizes: Parallelism, num_microbatches: int) -> None:
        if num_microbatches % sizes.pp_size and sizes.vpp_size > 1:
            raise InvalidRequest(
                f"schedule interleaved deals micro-batches out in rounds of {sizes.pp_size}, one "
                f"for each stage: {num_microbatches} is no multiple of that"
            )

    @override
    def order(self, stage: int, sizes: Parallelism, num_microbatches: int) -> list[StageWork]:
        pp_size, chunks = sizes.pp_size, range(sizes.vpp_size)
        rounds = [
            range(first, min(first + pp_size, num_microbatches))
            for first in range(0, num_microbatches, pp_size)
        ]
        ahead = pp_size - 1 - stage
        if len(chunks) > 1:
            ahead = 2 * ahead + (len(chunks) - 1) * pp_size
        return alternate(
            ahead,
            _in_rounds(ComputeKind.FORWARD, rounds, chunks),
            _in_rounds(ComputeKind.BACKWARD, rounds, chunks[::-1]),
        )


def _in_rounds(part: ComputeKind, rounds: list[range], chunks: Sequence[int]) -> list[StageWork]:
    return [
        StageWork(part, k, chunk)
        for microbatches in rounds
        for chunk in chunks
        for k in microbatches
    ]


class ZeroBubble(Schedule):
    """1F1B; stage p computes the gradients of weights p micro-batches after those of inputs."""

    name = "zero-bubble"

    @override
    def order(self, stage: int, sizes: Parallelism, num_microbatches: int) -> list[StageWork]:
        order: list[StageWork] = []
        postponed: list[StageWork] = []
        for work in OneFOneB().order(stage, sizes, num_microbatches):
            if work.part is ComputeKind.FORWARD:
                order.append(work)
                continue
            order.append(work._replace(part=ComputeKind.BACKWARD_INPUT))
            postponed.append(work._replace(part=ComputeKind.BACKWARD_WEIGHT))
            if len(postponed) > stage:
                order.append(postponed.pop(0))
        return order + postponed


SCHEDULES: dict[str, Schedule] = {
    schedule.name: schedule for schedule in (GPipe(), OneFOneB(), Interleaved(), ZeroBubble())
}
