"""GPipe: all forwards, then all backwards."""

from typing_extensions import override

from app.synth.schedules.schedule import Part, Schedule, Work


class GPipe(Schedule):
    """The plainest order; every stage holds the activations of all micro-batches."""

    name = "gpipe"
    has_chunks = True

    @override
    def order(
        self, stage: int, *, pp_size: int, num_microbatches: int, num_chunks: int
    ) -> list[Work]:
        chunks, microbatches = range(num_chunks), range(num_microbatches)
        forwards = [Work(Part.FORWARD, k, c) for c in chunks for k in microbatches]
        return forwards + [
            Work(Part.BACKWARD, k, c) for c in reversed(chunks) for k in microbatches
        ]
