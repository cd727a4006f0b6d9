"""Faults that make work uneven: documents of different lengths, and experts' loads.

Micro-batches have equally many tokens, but attention takes longer on long documents.
`DocumentLengths` says how long documents are and what a micro-batch of them costs.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

import numpy as np
from typing_extensions import override

from app.errors import InvalidRequest
from app.synth.cluster import RngOf, World
from app.synth.drawing import DrawnSteps
from app.synth.faults.fault import Fault, Share, affected_steps, at_least, log_normal_around
from app.trace.window import Floats, Ints

_NUM_SAMPLED = 20_000  # micro-batches from which the mean is taken
_NUM_CANDIDATES = 16  # documents for every micro-batch that is not full yet


@dataclass(frozen=True, slots=True)
class DocumentLengths:
    """Documents in tokens: log-normal around `median`, and a share of `full` length.

    A micro-batch holds `full` tokens: documents one after the other, the last one cut off.
    """

    median: float = 800.0
    sigma: float = 1.3
    full_share: float = 0.02
    full: int = 32_768

    def __post_init__(self) -> None:
        if not (self.median >= 1 and self.sigma >= 0 and 0 <= self.full_share <= 1):
            raise InvalidRequest(
                "lengths: the median is at least 1 token, sigma at least 0, full_share 0 to 1"
            )
        if self.full < 1:
            raise InvalidRequest(f"lengths: a micro-batch of {self.full} tokens holds nothing")

    def documents(self, num: int, rng: np.random.Generator) -> Ints:
        """[num], tokens of each."""
        body = np.exp(np.log(self.median) + self.sigma * rng.standard_normal(num))
        tokens: Ints = np.clip(np.rint(body), 1, self.full).astype(np.int64)
        tokens[rng.random(num) < self.full_share] = self.full
        return tokens

    def microbatches(self, num: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
        """Tokens of each micro-batch, and the sum of its documents' squared lengths; both [num]."""
        tokens, squares = np.zeros(num, np.int64), np.zeros(num, np.int64)
        while (open_ := np.flatnonzero(tokens < self.full)).size:
            documents = self.documents(open_.size * _NUM_CANDIDATES, rng).reshape(
                -1, _NUM_CANDIDATES
            )
            before = tokens[open_, None] + np.cumsum(documents, axis=1) - documents
            kept = np.clip(self.full - before, 0, documents)
            tokens[open_] += kept.sum(axis=1)
            squares[open_] += (kept**2).sum(axis=1)
        return tokens, squares

    def work(self, seq_len_sq: Ints, quadratic_share: float) -> Floats:
        """How much longer each micro-batch computes than a usual one, 1.0 in the mean.

        Attention takes `quadratic_share` of a usual micro-batch's time and grows with the squares
        of the lengths; all else grows with the tokens, which are the same for all.
        """
        if not 0 <= quadratic_share <= 1:
            raise InvalidRequest(f"a share of {quadratic_share} of the time: give 0 to 1")
        return 1 + quadratic_share * (seq_len_sq / _mean_squares(self) - 1)


@lru_cache(maxsize=64)
def _mean_squares(lengths: DocumentLengths) -> float:
    """The mean of `seq_len_sq`, always from the same micro-batches."""
    return float(lengths.microbatches(_NUM_SAMPLED, np.random.default_rng(0))[1].mean())


@dataclass(frozen=True, slots=True)
class SequenceImbalance(Fault):
    """Documents of very different lengths are packed, so that attention takes now less, now more.

    A micro-batch holds `max_length` tokens, which a share `full_share` of the documents fills
    alone. Attention takes `attention_share` of a usual micro-batch's time. `is_sent`: the client
    tells of each micro-batch's tokens and squared lengths.
    """

    name = "sequence-imbalance"
    cause = "sequence-imbalance"

    max_length: Annotated[int, at_least(1)] = 32_768
    full_share: Share = 0.02
    attention_share: Share = 0.3
    is_sent: bool = False

    @override
    def change(self, drawn: DrawnSteps, world: World, lasts: Floats, rng_of: RngOf) -> None:
        lengths = DocumentLengths(full_share=self.full_share, full=self.max_length)
        shape = world.num_microbatches, world.parallelism.dp_size
        for at, step in affected_steps(drawn, lasts):
            rng = rng_of(step)
            tokens, squares = lengths.microbatches(shape[0] * shape[1], rng)
            work = lengths.work(squares, self.attention_share)
            dealt = self.dealt(work, world.parallelism.dp_size, rng)
            work = self.assigned(work[dealt].reshape(shape))
            drawn.forward_s[..., at, :] *= work
            drawn.backward_s[..., at, :] *= work
            if self.is_sent:
                _set_lengths(drawn, at, *(each[dealt].reshape(shape) for each in (tokens, squares)))

    def dealt(self, work: Floats, dp_size: int, rng: np.random.Generator) -> Ints:
        """[micro-batches x dp ranks], which of the drawn ones each place has: as they come."""
        return np.arange(work.size)

    def assigned(self, work: Floats) -> Floats:
        """What each micro-batch costs [micro-batches, dp ranks]: what its documents do."""
        return work

    @override
    def baseline(self) -> Fault:
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
    def assigned(self, work: Floats) -> Floats:
        return np.full_like(work, work.mean())


def _set_lengths(drawn: DrawnSteps, at: int, tokens: Ints, squares: Ints) -> None:
    """Say it of one step; of those before and after nothing is known."""
    shape = drawn.forward_s.shape[2:]
    if drawn.tokens is None:
        drawn.tokens = np.full(shape, -1)
    if drawn.seq_len_sq is None:
        drawn.seq_len_sq = np.full(shape, -1)
    drawn.tokens[:, at] = tokens
    drawn.seq_len_sq[:, at] = squares


@dataclass(frozen=True, slots=True)
class ExpertImbalance(Fault):
    """Experts get uneven numbers of tokens, so ranks of a block compute longer or shorter.

    The loads of a block's ranks are drawn for every stage and micro-batch, with a standard
    deviation of `spread` around a mean of 1. Not a fault of the command line, whose jobs have no
    experts.
    """

    name = "expert-imbalance"
    cause = "expert-imbalance"

    spread: Share = 0.3

    @override
    def check(self, world: World) -> None:
        if world.parallelism.ep_size < 2:
            raise InvalidRequest("uneven experts in a job without experts: its ep_size is 1")

    @override
    def change(self, drawn: DrawnSteps, world: World, lasts: Floats, rng_of: RngOf) -> None:
        sizes = world.parallelism
        shape = (
            *(sizes.pp_size, world.num_microbatches),
            *(sizes.dp_size // sizes.ep_size, sizes.ep_size),
        )
        sigma = np.sqrt(np.log(1 + self.spread**2))
        for at, step in affected_steps(drawn, lasts):
            load = log_normal_around(1.0, sigma, rng_of(step), shape)
            load /= load.mean(axis=3, keepdims=True)
            load = load.reshape(*shape[:2], sizes.dp_size)
            drawn.forward_s[..., at, :] *= load[:, None]
            drawn.backward_s[..., at, :] *= load[:, None]
