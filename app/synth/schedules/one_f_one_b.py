"""1F1B: each stage fills the pipeline, then alternates one forward and one backward."""

from typing_extensions import override

from app.synth.schedules.schedule import Part, Schedule, Work, in_turns


class OneFOneB(Schedule):
    """Stage p runs pp - 1 - p forwards ahead, so that it holds few activations at a time."""

    name = "1f1b"

    @override
    def order(
        self, stage: int, *, pp_size: int, num_microbatches: int, num_chunks: int
    ) -> list[Work]:
        forwards = [Work(Part.FORWARD, k) for k in range(num_microbatches)]
        backwards = [Work(Part.BACKWARD, k) for k in range(num_microbatches)]
        return in_turns(pp_size - 1 - stage, forwards, backwards)
