"""1F1B: each stage fills the pipeline, then alternates one forward and one backward."""

from typing_extensions import override

from app.synth.schedules.schedule import Schedule, Work
from app.trace.ops import Direction


class OneFOneB(Schedule):
    """Stage p runs pp - 1 - p forwards ahead, so that it holds few activations at a time."""

    name = "1f1b"

    @override
    def order(self, stage: int, *, pp_size: int, num_microbatches: int) -> list[Work]:
        ahead = min(pp_size - 1 - stage, num_microbatches)
        order = [Work(Direction.FORWARD, k) for k in range(ahead)]
        for k in range(num_microbatches - ahead):
            order += [Work(Direction.FORWARD, ahead + k), Work(Direction.BACKWARD, k)]
        left = range(num_microbatches - ahead, num_microbatches)
        return order + [Work(Direction.BACKWARD, k) for k in left]
