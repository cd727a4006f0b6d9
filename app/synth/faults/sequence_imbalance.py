"""A fault that makes micro-batches uneven: documents of different lengths.

All micro-batches have the same number of tokens, but attention takes longer on long documents.
`DocumentLengths` models the lengths and the cost of a micro-batch.
"""

from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Annotated

import numpy as np
from typing_extensions import override

from app.errors import InvalidRequest
from app.synth.cluster import RngOf, World
from app.synth.drawing import DrawnSteps
from app.synth.faults.fault import Fault, Share, affected_steps, at_least
from app.trace.window import Floats, Ints

_NUM_SAMPLED = 20_000  # micro-batches for the mean
_NUM_CANDIDATES = 16  # documents drawn at a time for a micro-batch that is not full


@dataclass(frozen=True, slots=True)
class DocumentLengths:
    """Lengths in tokens: log-normal around `median`, but a share `full_share` has `full` tokens.

    A micro-batch holds `full` tokens of successive documents; the last document is cut.
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
        """[num], tokens per document."""
        body = np.exp(np.log(self.median) + self.sigma * rng.standard_normal(num))
        tokens: Ints = np.clip(np.rint(body), 1, self.full).astype(np.int64)
        tokens[rng.random(num) < self.full_share] = self.full
        return tokens

    def microbatches(self, num: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
        """[num] tokens of micro-batches, and [num] sums of their documents' squared lengths."""
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
        """Compute times of micro-batches relative to their mean.

        Attention takes the share `quadratic_share` of the mean time and grows with the squares of
        the lengths; the rest grows with the number of tokens, which is constant.
        """
        if not 0 <= quadratic_share <= 1:
            raise InvalidRequest(f"a share of {quadratic_share} of the time: give 0 to 1")
        return 1 + quadratic_share * (seq_len_sq / _mean_squares(self) - 1)


@lru_cache(maxsize=64)
def _mean_squares(lengths: DocumentLengths) -> float:
    """The mean of `seq_len_sq`, from the same random micro-batches at every call."""
    return float(lengths.microbatches(_NUM_SAMPLED, np.random.default_rng(0))[1].mean())


@dataclass(frozen=True, slots=True)
class SequenceImbalance(Fault):
    """Documents of very different lengths are packed, so that attention's time varies.

    A micro-batch holds `max_length` tokens, which is the length of a share `full_share` of the
    documents. Attention takes a share `attention_share` of the mean time. With `is_sent` the client
    reports the tokens and squared lengths of micro-batches.
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
                lengths_of = (numbers[dealt].reshape(shape) for numbers in (tokens, squares))
                _set_lengths(drawn, at, *lengths_of)

    def dealt(self, work: Floats, dp_size: int, rng: np.random.Generator) -> Ints:
        """[micro-batches x dp ranks], the drawn micro-batch at every place: in drawn order."""
        return np.arange(work.size)

    def assigned(self, work: Floats) -> Floats:
        """[micro-batches, dp ranks], relative compute times: those of the documents."""
        return work

    @override
    def baseline(self) -> Fault:
        settings = {field.name: getattr(self, field.name) for field in fields(BalancedSequences)}
        return BalancedSequences(**settings)


@dataclass(frozen=True, slots=True)
class BalancedSequences(SequenceImbalance):
    """The same documents, distributed so that all micro-batches of a step take the same time."""

    name = "balanced-sequences"

    @override
    def assigned(self, work: Floats) -> Floats:
        return np.full_like(work, work.mean())


def _set_lengths(drawn: DrawnSteps, at: int, tokens: Ints, squares: Ints) -> None:
    """Report the lengths of one step; those of other steps stay unknown."""
    shape = drawn.forward_s.shape[2:]
    if drawn.tokens is None:
        drawn.tokens = np.full(shape, -1)
    if drawn.seq_len_sq is None:
        drawn.seq_len_sq = np.full(shape, -1)
    drawn.tokens[:, at] = tokens
    drawn.seq_len_sq[:, at] = squares
