"""Synthetic documents: their lengths in each micro-batch, and the Python objects made of them."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence

import torch

from examples.torch_pipeline.batches import NUM_SEQUENCES, USUAL, Batch
from examples.torch_pipeline.model import LENGTH, NUM_TOKENS

# Sequence lengths of each micro-batch, dp ranks -> micro-batches of each rank, equally many.
Distribute = Callable[[Sequence[Sequence[int]], int], Sequence[Sequence[int]]]

LONG_SHARE = 0.3  # of the rows, where documents are uneven
KEPT = 24  # micro-batches whose documents are not garbage yet
PARSED_BEFORE = 5  # micro-batches, times the rank


def global_batch(step: int, num_rows: int, *, is_uneven: bool) -> list[tuple[int, ...]]:
    """Lengths of the documents of each row, which has `LENGTH` tokens; the same on all ranks."""
    draw = random.Random(step)  # noqa: S311
    return [_lengths(draw) if is_uneven else USUAL for _ in range(num_rows)]


def _lengths(draw: random.Random) -> tuple[int, ...]:
    """Usual ones, or one long document and short ones: few documents have most tokens."""
    if draw.random() >= LONG_SHARE:
        return USUAL
    longest = draw.randint(LENGTH // 2, LENGTH - NUM_SEQUENCES + 1)
    rest, others = LENGTH - longest, NUM_SEQUENCES - 1
    return (longest, *(rest // others + (at < rest % others) for at in range(others)))


def squares_of(lengths: Sequence[int]) -> int:
    """Sum of squared lengths of a row, which attention's work grows with."""
    return sum(each**2 for each in lengths)


def as_drawn(lengths: Sequence[Sequence[int]], dp_size: int) -> list[list[int]]:
    """Without advice: each dp rank computes what it has drawn."""
    size = len(lengths) // dp_size
    return [[*range(first, first + size)] for first in range(0, len(lengths), size)]


def pasted_function(code: str) -> Distribute:
    """The last function that the code defines; without code, `as_drawn`.

    Raises:
        ValueError: the code defines no function.
    """
    if not code:
        return as_drawn
    names: dict[str, object] = {}
    exec(code, names)  # noqa: S102 - this is the test of pasting
    functions = [each for name, each in names.items() if callable(each) and name[:2] != "__"]
    if not functions:
        raise ValueError("the pasted code defines no function")
    return functions[-1]  # type: ignore[return-value]


def batch_of(step: int, lengths: Sequence[Sequence[int]], rows: Sequence[int]) -> Batch:
    """These rows of a global batch."""
    made = torch.Generator().manual_seed(step)
    first = torch.randint(NUM_TOKENS, (len(lengths), 1), generator=made)[list(rows)]
    inputs = (first + torch.arange(LENGTH)) % NUM_TOKENS
    of_rows = torch.tensor([lengths[row] for row in rows])
    return Batch(inputs, (inputs + 1) % NUM_TOKENS, of_rows)


class _Sentence:
    """A sentence that knows its document."""

    def __init__(self, document: list[_Sentence]) -> None:
        self.document = document
        self.tokens: list[int] = []


class Documents:
    """Documents of the last micro-batches, as objects in cycles; older ones are garbage.

    Ranks have different numbers, and have parsed some before, so that their collectors run in
    different steps.
    """

    def __init__(self, sentences: int, rank: int) -> None:
        self._sentences, self._draw = sentences, random.Random(rank)  # noqa: S311
        self._last: deque[list[_Sentence]] = deque(maxlen=KEPT)
        for _ in range(PARSED_BEFORE * rank):
            self.parse()

    def parse(self, *_: object) -> None:
        """Parse the documents of a micro-batch."""
        document: list[_Sentence] = []
        number = int(self._sentences * self._draw.uniform(0.5, 1.5))
        document.extend(_Sentence(document) for _ in range(number))
        self._last.append(document)
