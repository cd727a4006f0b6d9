"""Interleaved 1F1B: several model chunks on a stage, so that the pipeline fills sooner.

Micro-batches go in rounds of one per stage through a stage's first chunk, then through its second
one, and so on (Narayanan et al., SC 2021); backwards take the chunks the other way round.
"""

from collections.abc import Sequence

from typing_extensions import override

from app.errors import InvalidRequest
from app.synth.schedules.schedule import Part, Schedule, Work, in_turns


class Interleaved(Schedule):
    """Stage p runs 2 (pp - 1 - p) forwards ahead, and a round of each chunk but the last."""

    name = "interleaved"
    has_chunks = True

    @override
    def check(self, *, pp_size: int, num_microbatches: int, num_chunks: int) -> None:
        if num_microbatches % pp_size and num_chunks > 1:
            raise InvalidRequest(
                f"schedule interleaved deals micro-batches out in rounds of {pp_size}, one for "
                f"each stage: {num_microbatches} is no multiple of that"
            )

    @override
    def order(
        self, stage: int, *, pp_size: int, num_microbatches: int, num_chunks: int
    ) -> list[Work]:
        rounds = [
            range(first, min(first + pp_size, num_microbatches))
            for first in range(0, num_microbatches, pp_size)
        ]
        chunks = range(num_chunks)
        ahead = pp_size - 1 - stage
        if num_chunks > 1:
            ahead = 2 * ahead + (num_chunks - 1) * pp_size
        return in_turns(
            ahead,
            _in_rounds(Part.FORWARD, rounds, chunks),
            _in_rounds(Part.BACKWARD, rounds, chunks[::-1]),
        )


def _in_rounds(part: Part, rounds: list[range], chunks: Sequence[int]) -> list[Work]:
    return [Work(part, k, chunk) for each in rounds for chunk in chunks for k in each]
