"""The steps of one run that are not settled, the lowest first, and how much they hold."""

from heapq import heappop, heappush

from app.ingest.op_table import Part
from app.ingest.step import OpenStep
from app.trace.window import StepKind

# What a worker that runs away can make us hold; beyond, the lowest step is waited for no longer.
MAX_STEPS = 10_000
MAX_OPS = 32_000_000


class OpenSteps:
    """Steps by their numbers."""

    def __init__(self) -> None:
        self._steps: dict[int, OpenStep] = {}
        self._heap: list[int] = []
        self._num_ops = 0

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def lowest(self) -> OpenStep | None:
        """The one that settles next."""
        return self._steps[self._heap[0]] if self._heap else None

    @property
    def are_too_many(self) -> bool:
        """Whether there is too much in memory to go on waiting."""
        return len(self._heap) > MAX_STEPS or self._num_ops > MAX_OPS

    def get(self, number: int) -> OpenStep | None:
        """The step of this number, if something of it has come."""
        return self._steps.get(number)

    def put(
        self,
        number: int,
        now_s: float,
        *,
        worker: int,
        rank: int,
        part: Part | None,
        num_declared: int | None,
        kind: StepKind | None = None,
    ) -> None:
        """Put in what one batch says of a step."""
        step = self._steps.get(number)
        if step is None:
            step = self._steps[number] = OpenStep(number, now_s)
            heappush(self._heap, number)
        step.take(worker, rank, part, num_declared, kind)
        self._num_ops += part.num_ops if part else 0

    def remove_through(self, number: int) -> None:
        """Let go of this step and of all lower ones."""
        while self._heap and self._heap[0] <= number:
            self._num_ops -= self._steps.pop(heappop(self._heap)).num_ops
