"""Micro-batches have equally many tokens, but documents of different lengths."""

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from app.diagnosis.finding import Culprit
from app.synth.drawn import Drawn
from app.synth.faults.fault import Fault
from app.synth.faults.pauses import struck
from app.synth.faults.severity import refuse_below, refuse_share
from app.synth.lengths import Lengths
from app.synth.world import RngOf, World
from app.trace.window import Floats, Ints


@dataclass(frozen=True, slots=True)
class SequenceImbalance(Fault):
    """Documents of very different lengths are packed, so that attention takes now less, now more.

    A micro-batch holds `max_length` tokens, which a share `full_share` of the documents fills
    alone. Attention takes `attention_share` of a usual micro-batch's time. `is_sent`: the client
    tells of each micro-batch's tokens and squared lengths.
    """

    name = "sequence-imbalance"
    cause = "sequence-imbalance"

    max_length: int = 32_768
    full_share: float = 0.02
    attention_share: float = 0.3
    is_sent: bool = False

    def __post_init__(self) -> None:
        refuse_below("max-length", self.max_length, 1)
        refuse_share("full-share", self.full_share)
        refuse_share("attention-share", self.attention_share)

    @override
    def check(self, world: World) -> None:
        return

    @override
    def change(self, drawn: Drawn, world: World, lasts: Floats, rng_of: RngOf) -> None:
        lengths = Lengths(full_share=self.full_share, full=self.max_length)
        shape = world.num_microbatches, world.parallelism.dp_size
        for at, step in struck(drawn, lasts):
            found = lengths.microbatches(shape[0] * shape[1], rng_of(step))
            tokens, squares = (numbers.reshape(shape) for numbers in found)
            work = self.dealt(lengths.work(squares, self.attention_share))
            drawn.forward_s[..., at, :] *= work
            drawn.backward_s[..., at, :] *= work
            if self.is_sent:
                _tell(drawn, at, tokens, squares)

    def dealt(self, work: Floats) -> Floats:
        """What each micro-batch costs [micro-batches, dp ranks]: what its documents do."""
        return work

    @override
    def culprits(self, world: World) -> tuple[Culprit, ...]:
        return ()

    @override
    def undone(self) -> Fault:
        return BalancedSequences(
            max_length=self.max_length,
            full_share=self.full_share,
            attention_share=self.attention_share,
            is_sent=self.is_sent,
            when=self.when,
        )


@dataclass(frozen=True, slots=True)
class BalancedSequences(SequenceImbalance):
    """The same documents, dealt out so that every micro-batch of a step costs the same."""

    name = "balanced-sequences"

    @override
    def dealt(self, work: Floats) -> Floats:
        return np.full_like(work, work.mean())


def _tell(drawn: Drawn, at: int, tokens: Ints, squares: Ints) -> None:
    """Say it of one step; of those before and after nothing is known."""
    shape = drawn.forward_s.shape[2:]
    if drawn.tokens is None:
        drawn.tokens = np.full(shape, -1)
    if drawn.seq_len_sq is None:
        drawn.seq_len_sq = np.full(shape, -1)
    drawn.tokens[:, at] = tokens
    drawn.seq_len_sq[:, at] = squares
