"""How long are the documents that a made job trains on, and what does a micro-batch cost?"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from app.errors import InvalidRequest
from app.trace.window import Floats, Ints

_NUM_USUAL = 20_000  # micro-batches from which the mean is taken
_NUM_TRIED = 16  # documents for every micro-batch that is not full yet


@dataclass(frozen=True, slots=True)
class Lengths:
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
            documents = self.documents(open_.size * _NUM_TRIED, rng).reshape(-1, _NUM_TRIED)
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
        return 1 + quadratic_share * (seq_len_sq / _usual_squares(self) - 1)


@lru_cache(maxsize=64)
def _usual_squares(lengths: Lengths) -> float:
    """The mean of `seq_len_sq`, always from the same micro-batches."""
    return float(lengths.microbatches(_NUM_USUAL, np.random.default_rng(0))[1].mean())
